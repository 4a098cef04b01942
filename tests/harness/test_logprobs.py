"""Logprobs: which turn is asked for them, and what they may not say."""

from dataclasses import replace

import pytest

from harness.budget import cut_plan, describe_price
from harness.logprobs import (
    LOGPROB_TOKENS,
    MAX_APART,
    check_logprobs,
    choose_logprob_turns,
    find_logprob_faults,
    price_logprobs,
)
from harness.pairing import select_latest
from harness.plan import CellSpec, Plan
from harness.probes import Probe, plan_probes
from harness.transcript import CellRecord, Margin, TurnRecord
from tests.harness.run_builders import SERVE_OFF, SERVE_ON, judge_run, make_plan, make_scenario, run_healthy

TOKENS = 24
PLAIN = tuple(-0.01 * n for n in range(1, TOKENS + 1))


def plan_of(*, cap: int = TOKENS) -> Plan:
    plan = make_plan(make_scenario(turns=1, cap=cap), repetitions=1)
    return replace(plan, logprob_paths=("serve",))


def answer(records: tuple[CellRecord, ...], spec: CellSpec, **changes: object) -> CellRecord:
    turn = next(r for r in records if r.spec.arm == spec.arm).turns[0]
    return CellRecord(
        spec=spec,
        started_at="2025-01-01T00:00:00Z",
        argv=("engine",),
        protocol="serve",
        ready_ns=1,
        turns=(replace(turn, turn=0, **changes),),  # type: ignore[arg-type]
        exit_code=0,
    )


def run_asked(plain: dict[str, object], drafted: dict[str, object]) -> tuple[Plan, tuple[CellRecord, ...]]:
    """Return a healthy run whose engine was asked for logprobs too."""
    plan = plan_of()
    records = run_healthy(plan)
    off, on = choose_logprob_turns(plan, select_latest(records))[0].specs
    return plan, (*records, answer(records, off, **plain), answer(records, on, **drafted))


def test_one_turn_is_asked_on_the_path_that_reports_them_without_drafts_and_with_them() -> None:
    plan = plan_of(cap=2 * LOGPROB_TOKENS)
    records = run_healthy(plan)

    probes = plan_probes(plan, judge_run(plan, records)[0], records)

    assert [probe.spec.arm for probe in probes] == [SERVE_OFF, SERVE_ON]
    assert {probe.spec.probe and probe.spec.probe.kind for probe in probes} == {"logprobs"}
    assert sum(probe.worst_case_tokens for probe in probes) == price_logprobs(plan) == 2 * LOGPROB_TOKENS
    assert {prompt_of(probe) for probe in probes} == {records[0].turns[0].prompt.decode()}


def prompt_of(probe: Probe) -> str:
    ((turn,),) = (conversation.turns for conversation in probe.scenario.conversations)
    assert turn.kind == "prompt"
    return turn.text


def test_turn_with_many_drafts_right_and_many_wrong_is_asked() -> None:
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        forwards = {"copy-1": 7, "code-1": 12}[turn.conversation]
        return replace(turn, forwards=forwards, accepted_tokens=24 - forwards) if spec.arm.depth else turn

    plan = plan_of()
    turns = choose_logprob_turns(plan, select_latest(run_healthy(plan, bend)))

    assert [turn.conversation for turn in turns] == ["code-1"]


@pytest.mark.parametrize(
    ("stopped", "asked"),
    [(("copy-1",), "code-1"), (("code-1",), "copy-1"), (("copy-1", "code-1"), "copy-1")],
)
def test_a_turn_whose_length_depends_on_when_it_was_stopped_is_asked_last(
    stopped: tuple[str, ...], asked: str
) -> None:
    def bend(_: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, finish="stop-string") if turn.conversation in stopped else turn

    plan = plan_of()
    turns = choose_logprob_turns(plan, select_latest(run_healthy(plan, bend)))

    assert [turn.conversation for turn in turns] == [asked]


def test_nothing_is_asked_before_the_cells_are_done_or_where_no_path_reports_them() -> None:
    plan = plan_of()
    records = run_healthy(plan)
    cut = records[:-1]

    assert plan_probes(plan, judge_run(plan, cut)[0], cut) == ()
    assert plan_probes(plan, judge_run(plan, records)[0], records, first_only=True) == ()
    silent = replace(plan, logprob_paths=())
    assert plan_probes(silent, judge_run(silent, records)[0], records) == ()


def test_zeros_for_tokens_that_are_not_certain_are_a_fault_of_the_counts() -> None:
    zeros = (*PLAIN[:5], 0.0, 0.0, *PLAIN[7:])
    plan, records = run_asked({"logprobs": PLAIN}, {"logprobs": zeros})

    comparison, verdict = judge_run(plan, records)

    assert (verdict.status, verdict.verdict_class) == ("fail", "counters")
    assert "logprobs: 2 of 24 tokens have exactly 0 in serve/3" in verdict.sentence
    assert [check.state for check in comparison.logprobs] == ["wrong"]


@pytest.mark.parametrize(
    "drafted",
    [
        PLAIN,
        (*PLAIN[:5], 0.0, *PLAIN[6:]),
        tuple(value - 0.9 * MAX_APART for value in PLAIN),
        (*PLAIN[:5], PLAIN[5] - 1.1 * MAX_APART, *PLAIN[6:]),
        (None, *PLAIN[1:]),
    ],
    ids=["the same", "one zero", "rounded", "one far apart", "one not reported"],
)
def test_what_rounding_or_a_slip_can_do_is_no_fault(drafted: tuple[float | None, ...]) -> None:
    plan, records = run_asked({"logprobs": PLAIN}, {"logprobs": drafted})

    comparison, verdict = judge_run(plan, records)

    assert verdict.status == "pass"
    assert [check.state for check in comparison.logprobs] == ["agree"]
    assert any("logprobs of serve/3: " in note for note in comparison.notes)


def test_zeros_of_certain_tokens_are_no_fault() -> None:
    certain = tuple(-1e-6 for _ in PLAIN)
    plan, records = run_asked({"logprobs": certain}, {"logprobs": (0.0,) * TOKENS})

    assert find_logprob_faults(plan, select_latest(records)) == ()


def test_logprobs_further_apart_than_rounding_are_a_fault_up_to_the_first_other_token() -> None:
    far = 1.1 * MAX_APART
    off = (*PLAIN[:5], PLAIN[5] - far, PLAIN[6], PLAIN[7] - far, *PLAIN[8:])
    plan, records = run_asked({"logprobs": PLAIN}, {"logprobs": off})
    (finding,) = find_logprob_faults(plan, select_latest(records))
    assert "2 of 24 tokens are further apart than 0.5" in finding.reason
    assert "token 5, has -0.060 in serve/0 and -0.610 in serve/3" in finding.reason

    text = records[-1].turns[0].text
    flipped = text[:20] + b"XXXX" + text[24:]
    plan, records = run_asked({"logprobs": PLAIN}, {"logprobs": off, "text": flipped})
    assert find_logprob_faults(plan, select_latest(records)) == ()


@pytest.mark.parametrize(("gap", "faults"), [(3.0, 1), (8.0, 0)])
def test_zeros_that_the_margins_do_not_allow_need_no_second_arm(gap: float, faults: int) -> None:
    margins = (Margin(best=1, second=2, gap=gap),) * TOKENS
    zeros = (0.0,) * TOKENS
    plan, records = run_asked({"logprobs": zeros, "margins": margins}, {})

    found = find_logprob_faults(plan, select_latest(records))

    assert len(found) == faults
    assert all(finding.arms == (SERVE_OFF,) for finding in found)


def test_engine_that_was_asked_and_gave_none_is_noted_and_passes() -> None:
    plan, records = run_asked({}, {})

    comparison, verdict = judge_run(plan, records)

    assert verdict.status == "pass"
    assert "logprobs of serve/3: the engine was asked and gave none" in comparison.notes


def test_logprobs_that_were_to_be_asked_for_and_were_not_leave_the_verdict_open() -> None:
    plan = plan_of()

    _, verdict = judge_run(plan, run_healthy(plan))

    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "unproven")
    assert "logprobs of serve/3 were not checked" in verdict.sentence


def test_a_run_without_a_draft_has_nothing_to_ask() -> None:
    plan = plan_of(cap=1)

    checks = check_logprobs(plan, select_latest(run_healthy(plan)))

    assert [check.state for check in checks] == ["not reported"]


def test_a_budget_keeps_room_for_them_and_drops_them_last() -> None:
    plan = plan_of()
    whole = plan.worst_case_tokens + price_logprobs(plan)
    assert cut_plan(plan, whole).left_out == ()
    assert "conversation 'code-1'" in cut_plan(plan, whole - 1).left_out[-1]

    bare = cut_plan(plan, 4 * TOKENS)
    assert bare.left_out[-1] == "left out to keep to the budget: the logprobs"
    assert judge_run(bare, run_healthy(bare))[1].status == "pass"
    assert "64 at most for the logprobs of one turn" in describe_price(plan)
    assert "logprobs" not in describe_price(bare)


def test_messages_are_asked_as_messages_and_only_without_an_answer_among_them() -> None:
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        surprising = turn.turn == 1 and spec.arm.depth
        turn = replace(turn, forwards=12, accepted_tokens=12) if surprising else turn
        return replace(turn, entry="messages") if spec.arm.path == "serve" else turn

    plan = replace(make_plan(make_scenario(turns=2), repetitions=1), logprob_paths=("serve",))
    records = run_healthy(plan, bend)

    probes = plan_probes(plan, judge_run(plan, records)[0], records)

    assert [probe.spec.probe and probe.spec.probe.turn for probe in probes] == [0, 0]
    ((turn,),) = (conversation.turns for conversation in probes[0].scenario.conversations)
    assert (turn.kind, turn.text) == ("user", "copy 0")
