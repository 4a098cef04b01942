"""Speed-ups are taken over identical pairs, and split without a rest."""

from dataclasses import replace

import pytest

from harness.plan import CellSpec
from harness.speed import Speedup
from harness.transcript import CellRecord, TurnRecord
from tests.harness.run_builders import SERVE_ON, Bend, judge_run, make_plan, make_scenario, run_healthy


def healthy(_: object, turn: TurnRecord) -> TurnRecord:
    return turn


def speedup(path: str, bend: Bend = healthy, category: str | None = None) -> Speedup:
    plan = make_plan()
    rows = judge_run(plan, run_healthy(plan, bend))[0].speedups
    return next(row for row in rows if row.on.path == path and row.category == category)


def test_the_medians_of_each_arm_are_taken_over_its_turns():
    plan = make_plan()
    rows = judge_run(plan, run_healthy(plan))[0].speeds
    assert [round(row.decode_tokens_per_s or 0) for row in rows] == [250, 667, 250, 667]
    assert {row.ttft_ms for row in rows} == {50.0}
    assert {(row.rated_turns, row.turns) for row in rows} == {(8, 8)}


def test_the_speed_up_splits_into_tokens_and_time_per_forward():
    row = speedup("serve")
    # Four tokens a forward, and a forward takes 6 ms for 4.
    assert row.speedup_ratio == pytest.approx(8 / 3)
    assert row.tokens_per_forward_ratio == 4.0
    assert row.time_per_forward_ratio == pytest.approx(1.5)
    assert (row.pairs, row.rated_pairs, row.remark) == (8, 8, "")


def test_classes_are_also_shown_one_by_one():
    assert speedup("chat", category="copy").pairs == 4
    plan = make_plan(make_scenario())
    one = replace(plan.scenarios[0], conversations=plan.scenarios[0].conversations[:1])
    plan = make_plan(one)
    assert {row.category for row in judge_run(plan, run_healthy(plan))[0].speedups} == {None}


def change_all(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    return replace(turn, text=b"X" + turn.text[1:]) if spec.arm == SERVE_ON else turn


def test_pairs_that_differ_are_not_judged():
    row = speedup("serve", change_all)
    assert (row.speedup_ratio, row.pairs, row.remark) == (None, 0, "not judged: texts differ")

    def change_some(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return change_all(spec, turn) if turn.conversation == "copy-1" else turn

    row = speedup("serve", change_some)
    assert row.pairs == 4
    assert row.speedup_ratio == pytest.approx(8 / 3)


def test_pairs_too_short_for_a_rate_are_said_to_be():
    plan = make_plan(make_scenario(cap=4))
    row = judge_run(plan, run_healthy(plan))[0].speedups[0]
    assert (row.pairs, row.rated_pairs) == (8, 0)
    assert row.remark == "not reported: no identical pair has a rate on both sides"
    assert row.tokens_per_forward == 4.0


def test_void_arms_have_no_speed_up():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return (
            replace(turn, drafted_tokens=0, accepted_tokens=0, forwards=24) if spec.arm == SERVE_ON else turn
        )

    assert speedup("serve", bend).remark == "not judged: no pair to compare"


def test_chat_mode_without_a_serve_cell_to_lend_boundaries_has_no_rate():
    plan = make_plan()
    records: tuple[CellRecord, ...] = tuple(r for r in run_healthy(plan) if r.spec.arm.path == "chat")
    rows = judge_run(plan, records)[0].speeds
    assert [row.decode_tokens_per_s for row in rows] == [None] * 4
    assert rows[0].ttft_ms == 50.0
