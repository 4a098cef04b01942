"""What counts as failing in a run, and the small plan that runs one contrast alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.failing import Failing, build_pair_plan, find_failing
from harness.findings import VerdictClass
from harness.plan import CellSpec, Plan
from harness.transcript import CellRecord, Failure, TurnRecord
from tests.harness.run_builders import (
    CHAT_OFF,
    CHAT_ON,
    SERVE_OFF,
    SERVE_ON,
    judge_run,
    make_plan,
    make_scenario,
    run_healthy,
)


def spoil(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if spec.arm == SERVE_ON and (turn.conversation, turn.turn) == ("code-1", 1):
        return replace(turn, text=turn.text[:4] + b"X" + turn.text[5:])
    return turn


def find(plan: Plan, records: Sequence[CellRecord]) -> tuple[Failing, ...]:
    return find_failing(plan, records, judge_run(plan, tuple(records))[0])


def test_a_healthy_run_has_nothing_to_minimize():
    plan = make_plan()
    assert find(plan, run_healthy(plan)) == ()


def test_failing_contrasts_come_in_the_order_of_the_verdict_with_their_class():
    plan = make_plan()
    first, second = find(plan, run_healthy(plan, spoil))
    assert (first.contrast.name, second.contrast.name) == ("path on", "speculation serve")
    assert (first.verdict_class, second.verdict_class) == ("state", "unproven")
    assert (first.symptom, first.conversation, first.turn, first.is_one_sided) == (
        "tokens",
        "code-1",
        1,
        False,
    )
    assert first.prompt is not None
    assert first.common == b"co10"
    assert first.difference is not None
    assert first.difference.token_index == 1
    assert first.wanted[0] == "cold"


def test_another_class_is_another_way_to_fail():
    plan = make_plan()
    first, second = find(plan, run_healthy(plan, spoil))
    assert first.looks_like(replace(first, verdict_class="near-tie"))
    assert not first.is_like(replace(first, verdict_class="near-tie"))
    assert not first.looks_like(second)
    assert not first.looks_like(replace(first, symptom="finish_reason"))


def test_what_a_void_arm_differs_in_is_not_what_fails():
    def without_forwards(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        turn = spoil(spec, turn)
        silent = replace(turn, forwards=None, drafted_tokens=None, accepted_tokens=None)
        return silent if spec.arm == SERVE_OFF else turn

    plan = make_plan()
    failing = find(plan, run_healthy(plan, without_forwards))
    assert [(item.contrast.name, item.verdict_class) for item in failing] == [
        ("path on", "state"),
        ("void serve/0", "void"),
    ]
    assert failing[1].is_one_sided


def test_an_arm_that_does_not_equal_itself_can_be_minimized():
    def flicker(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=b"X" + turn.text[1:]) if spec.repetition and spec.arm == CHAT_ON else turn

    plan = make_plan()
    own = next(item for item in find(plan, run_healthy(plan, flicker)) if item.contrast.kind == "self")
    assert (own.contrast.name, own.verdict_class) == ("self chat/3", "nondeterministic")
    small = build_pair_plan(plan, own)
    assert [spec.key for spec in small.cells] == ["chat/3 quick 0", "chat/3 quick 1"]


def test_an_arm_whose_answers_loop_can_be_minimized():
    def loop(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=b"loop" * 24) if spec.arm == SERVE_ON else turn

    plan = make_plan(repetitions=1)
    names = [item.contrast.name for item in find(plan, run_healthy(plan, loop))]
    assert "degenerate serve/3" in names


def test_a_cell_that_failed_is_a_case_of_its_own_arm():
    plan = make_plan()
    records = [
        replace(r, turns=r.turns[:3], failure=Failure(code="engine-died", message="it died", hint=""))
        if r.spec.arm == CHAT_OFF
        else r
        for r in run_healthy(plan)
    ]
    crash = find(plan, records)[0]
    assert (crash.contrast.name, crash.symptom, crash.message, crash.verdict_class) == (
        "failed chat/0",
        "failure:engine-died",
        "it died",
        "failed",
    )
    assert (crash.conversation, crash.turn) == ("code-1", 1)
    small = build_pair_plan(plan, crash)
    assert [spec.key for spec in small.cells] == ["chat/0 quick 0"]


def test_the_small_plan_runs_only_the_arms_of_its_contrast_and_shows_the_same():
    plan = replace(make_plan(), budget_tokens=1000, until="fault")
    failing = find(plan, run_healthy(plan, spoil))[0]
    small = build_pair_plan(plan, failing)
    assert [spec.key for spec in small.cells] == ["chat/3 quick 0", "serve/3 quick 0"]
    assert (small.budget_tokens, small.until) == (None, "end")
    again = find(small, run_healthy(small, spoil))
    assert [(item.looks_like(failing), item.verdict_class) for item in again] == [(True, "unproven")]
    assert find(small, run_healthy(small)) == ()


@pytest.mark.parametrize(
    ("named", "arms"),
    [("prefix-reuse", ["chat/3", "serve/3", "chat/0", "serve/0"]), ("state", ["chat/3", "serve/3"])],
)
def test_a_prefix_that_is_blamed_is_told_from_drafts_in_the_small_plan_too(
    named: VerdictClass, arms: list[str]
):
    plan = make_plan()
    failing = replace(find(plan, run_healthy(plan, spoil))[0], verdict_class=named)
    small = build_pair_plan(plan, failing)
    assert [spec.arm.label for spec in small.cells] == arms
    assert [contrast.name for contrast in small.contrasts] == ["self chat/3", "self serve/3", "path on"]


def test_counts_that_cannot_be_right_are_a_case_of_their_arm():
    def overcount(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm == SERVE_ON and turn.conversation == "code-1":
            return replace(turn, accepted_tokens=(turn.drafted_tokens or 0) + 1)
        return turn

    plan = make_plan(make_scenario())
    failing = find(plan, run_healthy(plan, overcount))
    first = next(item for item in failing if item.symptom == "more accepted than drafted")
    assert (first.contrast.name, first.conversation, first.turn) == ("counts serve/3", "code-1", 0)
    assert (first.is_one_sided, first.verdict_class) == (True, "counters")
    assert first.message.startswith("accepted ")
