"""Whether an arm did what it is for, from counters, in every way in which it may not have."""

from dataclasses import replace

import pytest

from harness.engagement import Engagement
from harness.plan import CellSpec, build_plan
from harness.transcript import CellRecord, Failure, TurnRecord
from tests.harness.run_builders import (
    CHAT_OFF,
    CHAT_ON,
    SERVED,
    Bend,
    judge_run,
    make_plan,
    make_scenario,
    run_healthy,
)


def bend_arm(label: str, **changes: object) -> Bend:
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, **changes) if spec.arm.label == label else turn  # type: ignore[arg-type]

    return bend


def row_of(label: str, bend: Bend, cap: int = 24, repetitions: int = 2) -> Engagement:
    plan = make_plan(make_scenario(cap=cap), repetitions=repetitions)
    return pick(label, judge_run(plan, run_healthy(plan, bend))[0].engagements)


def pick(label: str, rows: tuple[Engagement, ...]) -> Engagement:
    return next(row for row in rows if row.arm.label == label)


def healthy(_: object, turn: TurnRecord) -> TurnRecord:
    return turn


def test_a_healthy_run_has_its_evidence_in_numbers():
    assert row_of("chat/3", healthy).state == "on"
    assert row_of("chat/3", healthy).evidence == "192 tokens in 48 forwards, drafted 144, accepted 144"
    off = row_of("serve/0", healthy)
    assert (off.state, off.evidence) == ("off", "192 tokens in 192 forwards, drafted 0, accepted 0")


@pytest.mark.parametrize(
    ("label", "changes", "words"),
    [
        ("chat/3", {"drafted_tokens": 0, "accepted_tokens": 0, "forwards": 24}, "no sign of drafts"),
        ("chat/3", {"drafted_tokens": None, "accepted_tokens": None, "forwards": 24}, "no sign of drafts"),
        # One token more than forwards is what an engine shows that skips the last forward, drafts or not.
        ("chat/3", {"drafted_tokens": None, "accepted_tokens": None, "forwards": 23}, "no sign of drafts"),
        ("chat/3", {"drafted_tokens": None, "accepted_tokens": None, "forwards": None}, "not reported"),
        ("chat/0", {"drafted_tokens": 5}, "drafted 5 in copy-1 turn 1"),
        ("chat/0", {"forwards": 20}, "24 tokens in 20 forwards"),
        ("chat/0", {"forwards": 23, "finish": "stop"}, "24 tokens in 23 forwards"),
        ("chat/0", {"forwards": None, "drafted_tokens": None, "accepted_tokens": None}, "not reported"),
        ("chat/0", {"emitted_tokens": None}, "not reported"),
    ],
)
def test_an_arm_that_is_not_what_it_is_for_is_void(label: str, changes: dict[str, object], words: str):
    row = row_of(label, bend_arm(label, **changes))
    assert row.state == "void"
    assert words in row.evidence


@pytest.mark.parametrize(
    ("label", "changes", "state"),
    [
        ("chat/3", {"drafted_tokens": None, "accepted_tokens": None, "forwards": 12}, "on"),
        ("chat/3", {"drafted_tokens": 9, "accepted_tokens": 0, "forwards": 24}, "on"),
        ("chat/3", {"drafts_paused": 1}, "mixed"),
        ("chat/0", {"forwards": 23}, "off"),
        ("chat/0", {"drafted_tokens": None, "accepted_tokens": None}, "off"),
    ],
)
def test_other_ways_to_count_are_no_fault(label: str, changes: dict[str, object], state: str):
    assert row_of(label, bend_arm(label, **changes)).state == state


@pytest.mark.parametrize(("silent", "state"), [(15, "on"), (16, "void"), (30, "void")])
def test_an_engine_that_ceases_to_draft_for_the_rest_of_a_cell_is_void(silent: int, state: str):
    plan = make_plan(make_scenario(turns=16))

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        number = turn.turn + (16 if turn.conversation == "code-1" else 0)
        mute = spec.arm == CHAT_ON and number >= 32 - silent
        return replace(turn, forwards=24, drafted_tokens=0, accepted_tokens=0) if mute else turn

    row = pick("chat/3", judge_run(plan, run_healthy(plan, bend))[0].engagements)
    assert row.state == state
    assert ("no sign of drafts from" in row.evidence) == (state == "void")


def test_texts_that_draft_now_and_then_are_no_silence():
    plan = make_plan(make_scenario(turns=16))

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        # As by lookup: most turns find nothing, and the last ones happen to be such turns.
        mute = spec.arm == CHAT_ON and (turn.turn % 4 or turn.conversation == "code-1")
        return replace(turn, forwards=24, drafted_tokens=0, accepted_tokens=0) if mute else turn

    row = pick("chat/3", judge_run(plan, run_healthy(plan, bend))[0].engagements)
    assert row.state == "on"


def test_caps_of_one_token_leave_nothing_to_draft():
    row = row_of("chat/3", healthy, cap=1)
    assert (row.state, row.evidence) == ("idle", "every cap is 1 token: nothing can be drafted")
    assert row_of("chat/3", healthy, cap=2).state == "on"


def test_the_worst_repetition_counts_and_is_named_if_they_differ():
    plan = make_plan()
    records = [*run_healthy(plan)]
    index = next(i for i, record in enumerate(records) if record.spec.key == "chat/3 quick 1")
    records[index] = replace(records[index], kv_resumed_tokens=40)
    row = pick("chat/3", judge_run(plan, tuple(records))[0].engagements)
    assert row.state == "void"
    assert row.evidence == "repetition 1: the engine resumed a saved conversation of 40 tokens"


def test_a_resumed_conversation_of_no_tokens_is_none():
    plan = make_plan()
    records = tuple(replace(record, kv_resumed_tokens=0) for record in run_healthy(plan))
    assert {row.state for row in judge_run(plan, records)[0].engagements} == {"on", "off"}


def test_failed_and_missing_cells_have_their_own_states():
    plan = make_plan(repetitions=1)
    records = [record for record in run_healthy(plan) if record.spec.arm != CHAT_ON]
    records = [fail(record) if record.spec.arm == CHAT_OFF else record for record in records]
    rows = judge_run(plan, tuple(records))[0].engagements
    assert [row.state for row in rows] == ["failed", "not measured", "off", "on"]
    assert rows[0].totals.turns == 0


def fail(record: CellRecord) -> CellRecord:
    return replace(record, failure=Failure(code="engine-died", message="died", hint=""))


def test_the_banner_proves_nothing():
    plan = make_plan()
    bend = bend_arm("serve/3", drafted_tokens=0, accepted_tokens=0, forwards=24)
    records = tuple(replace(r, banner=("MTP ACTIVE (draft=3)",)) for r in run_healthy(plan, bend))
    assert pick("serve/3", judge_run(plan, records)[0].engagements).state == "void"


def test_an_arm_of_unknown_depth_is_not_judged():
    plan = build_plan((make_scenario(),), capabilities=SERVED)
    comparison, verdict = judge_run(plan, run_healthy(plan))

    rows = {row.arm.label: row for row in comparison.engagements}
    assert {row.state for row in rows.values()} == {"unknown"}
    assert verdict.status == "pass"
    assert verdict.sentence.startswith(
        "PASS: whole gives the same tokens as chat mode at whatever depth the server runs ("
    )


def test_drafts_that_are_reported_as_0_show_an_off_arm():
    row = row_of("chat/0", bend_arm("chat/0", forwards=None, drafted_tokens=0))

    assert row.state == "off"


def test_answers_whose_tokens_nobody_counts_are_no_sampled_ones():
    plan = build_plan((make_scenario(),), capabilities=SERVED)

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        silent = dict.fromkeys(
            ("emitted_tokens", "forwards", "drafted_tokens", "accepted_tokens", "token_lengths")
        )
        return replace(turn, **silent)

    verdict = judge_run(plan, run_healthy(plan, bend))[1]
    assert verdict.sentence.startswith("PASS: whole gives the same answers as chat mode at whatever depth")
    assert verdict.sentence.endswith("tokens not counted)")
