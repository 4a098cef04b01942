"""The evidence as a whole: failures, facts and notes."""

from dataclasses import replace

from harness.comparison import Comparison
from harness.plan import CellSpec
from harness.record_json import from_json, to_json
from harness.scenario import Scenario
from harness.transcript import INTERRUPTED_CODE, Failure, TurnRecord
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

DIED = Failure(code="engine-died", message="died", hint="look", stderr_tail=("boom",))


def expect(*facts: str) -> Scenario:
    scenario = make_scenario()
    first = scenario.conversations[0]
    turns = (replace(first.turns[0], expect=facts), *first.turns[1:])
    return replace(scenario, conversations=(replace(first, turns=turns), *scenario.conversations[1:]))


def test_the_evidence_survives_json():
    plan = make_plan(expect("co11"))
    comparison, _ = judge_run(plan, run_healthy(plan))
    assert from_json(Comparison, to_json(comparison)) == comparison


def test_facts_are_found_byte_by_byte_in_every_repetition():
    plan = make_plan(expect("co11", "CO11", "zz"))

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        lost = (spec.arm, spec.repetition, turn.conversation) == (SERVE_ON, 1, "copy-1")
        return replace(turn, text=b"zz") if lost else turn

    facts = judge_run(plan, run_healthy(plan, bend))[0].facts
    assert [(row.fact, row.found, row.missing) for row in facts] == [
        ("co11", (CHAT_OFF, CHAT_ON, SERVE_OFF), (SERVE_ON,)),
        ("CO11", (), (CHAT_OFF, CHAT_ON, SERVE_OFF, SERVE_ON)),
        ("zz", (), (CHAT_OFF, CHAT_ON, SERVE_OFF, SERVE_ON)),
    ]


def test_a_fact_that_no_arm_finds_is_a_note_and_no_verdict():
    plan = make_plan(expect("zebra"))
    comparison, verdict = judge_run(plan, run_healthy(plan))
    assert verdict.status == "pass"
    assert any("no arm's answer holds 'zebra'" in note for note in comparison.notes)


def test_failures_are_listed_with_their_last_attempt():
    plan = make_plan()
    records = list(run_healthy(plan))
    first = replace(records[0], failure=DIED)
    records[0] = first
    records.append(replace(first, attempt=1))
    comparison, _ = judge_run(plan, tuple(records))
    assert [(f.spec.key, f.attempt, f.failure.code) for f in comparison.failures] == [
        ("chat/0 quick 0", 1, "engine-died")
    ]
    assert (comparison.cells_planned, comparison.cells_measured) == (8, 7)


def test_a_failure_that_was_repeated_is_a_note():
    plan = make_plan()
    records = list(run_healthy(plan))
    records.append(replace(records[0], attempt=1))
    records[0] = replace(records[0], failure=DIED, turns=())
    comparison, verdict = judge_run(plan, tuple(records))
    assert (comparison.failures, verdict.status) == ((), "pass")
    assert comparison.notes == ("cell 'chat/0 quick 0': attempt 0 failed (engine-died) and was repeated",)


def test_an_interrupted_cell_is_not_a_failure_of_the_engine():
    plan = make_plan()
    records = list(run_healthy(plan))[:3]
    records[2] = replace(records[2], failure=replace(DIED, code=INTERRUPTED_CODE))
    comparison, verdict = judge_run(plan, tuple(records))
    assert (comparison.failures, verdict.status) == ((), "inconclusive")
    assert comparison.cells_measured == 2


def test_records_of_cells_that_are_not_planned_change_nothing():
    plan = make_plan()
    records = run_healthy(plan)
    other = run_healthy(make_plan(make_scenario("other")))
    assert judge_run(plan, records + other) == judge_run(plan, records)


def test_what_decides_nothing_is_noted():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm == CHAT_ON:
            return replace(turn, drafts_paused=1)
        if spec.arm == SERVE_ON:
            return replace(turn, drafted_tokens=4, accepted_tokens=0, forwards=24)
        return turn

    plan = make_plan(repetitions=1)
    notes = judge_run(plan, run_healthy(plan, bend))[0].notes
    assert any("chat/3 in quick is mixed: the engine paused drafting 4 times" in note for note in notes)
    assert any("no draft was kept" in note for note in notes)
    assert any("was not checked" in note for note in notes)


def test_remarks_of_the_runner_are_passed_on():
    plan = make_plan()
    records = list(run_healthy(plan))
    records[1] = replace(records[1], notes=("the engine was killed at the end",))
    notes = judge_run(plan, tuple(records))[0].notes
    assert notes == ("cell 'chat/3 quick 0': the engine was killed at the end",)


def test_another_prefix_of_the_same_messages_is_no_other_prompt():
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        turn = replace(turn, entry="messages")
        if spec.arm != SERVE_ON or turn.turn == 0 or not turn.cached_tokens or not turn.prefill_tokens:
            return turn
        return replace(turn, cached_tokens=turn.cached_tokens + 1, prefill_tokens=turn.prefill_tokens - 1)

    comparison, _ = judge_run(plan, run_healthy(plan, bend))
    classes = {row.verdict_class for row in comparison.findings if row.contrast == "speculation serve"}
    assert classes == {"prefix-reuse"}
