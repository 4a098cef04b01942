"""The verdict's precedence as a table, and its sentences."""

from dataclasses import replace

import pytest

from harness.findings import Finding, VerdictClass
from harness.plan import Arm, CellSpec, Plan
from harness.record_json import from_json, to_json
from harness.scenario import Scenario
from harness.transcript import CellRecord, Failure, TurnRecord
from harness.verdict import EXIT_STATUSES, Verdict, is_void_for_good, judge
from tests.harness.run_builders import CHAT_ON, SERVE_ON, judge_run, make_plan, make_scenario, run_healthy


def different(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if (spec.arm, turn.conversation, turn.turn) != (SERVE_ON, "copy-1", 1):
        return turn
    return replace(turn, text=turn.text[:20] + b"XXXX" + turn.text[24:])


def void(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if spec.arm != CHAT_ON:
        return turn
    return replace(turn, drafted_tokens=0, accepted_tokens=0, forwards=24)


def unsteady(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    return replace(turn, text=b"!" + turn.text[1:]) if (spec.arm, spec.repetition) == (CHAT_ON, 1) else turn


def fail_one(records: tuple[CellRecord, ...]) -> tuple[CellRecord, ...]:
    failure = Failure(code="engine-timeout", message="no output for 600 s", hint="")
    return (replace(records[0], failure=failure), *records[1:])


def declared(cached: int) -> Scenario:
    scenario = make_scenario()
    talk = scenario.conversations[0]
    turn = replace(talk.turns[1], expect_prompt_tokens=48, expect_cached_tokens=cached)
    return replace(scenario, conversations=(replace(talk, turns=(talk.turns[0], turn)),))


def run(faults: str) -> Verdict:
    plan: Plan = make_plan(
        declared(37 if "prefix" in faults else 38), repetitions=1 if "once" in faults else 2
    )

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        for name, change in (("different", different), ("void", void), ("unsteady", unsteady)):
            if name in faults:
                turn = change(spec, turn)
        return turn

    records = run_healthy(plan, bend)
    if "missing" in faults:
        records = records[:-1]
    return judge_run(plan, fail_one(records) if "failed" in faults else records)[1]


@pytest.mark.parametrize(
    ("faults", "status"),
    [
        ("", "pass"),
        ("once", "pass"),
        ("void", "inconclusive"),
        ("unsteady", "inconclusive"),
        ("missing", "inconclusive"),
        ("different once", "inconclusive"),
        ("void unsteady missing", "inconclusive"),
        ("different", "fail"),
        ("prefix", "fail"),
        ("prefix once", "fail"),
        ("different void", "inconclusive"),
        ("different unsteady", "inconclusive"),
        ("different missing", "fail"),
        ("failed", "invalid"),
        ("failed different", "invalid"),
        ("failed different void unsteady missing prefix", "invalid"),
    ],
)
def test_the_gravest_evidence_decides(faults: str, status: str):
    verdict = run(faults)
    assert verdict.status == status
    assert verdict.exit_status == EXIT_STATUSES[verdict.status]
    assert verdict.sentence.startswith(f"{status.upper()}: ")
    assert bool(verdict.reasons) is (status != "pass")
    assert "\n" not in verdict.sentence


def test_the_exit_statuses_are_those_of_the_readme():
    assert EXIT_STATUSES == {"pass": 0, "fail": 1, "inconclusive": 3, "invalid": 4}


def test_a_pass_states_what_was_compared():
    assert run("").sentence == (
        "PASS: serve mode gives the same tokens as chat mode at depth 0 and 3 "
        "(4 arms, 24 pairs, 576 tokens compared)"
    )


def test_a_failure_names_contrast_place_position_and_both_sides():
    verdict = run("different")
    assert verdict.sentence == (
        "FAIL: state: serve mode does not give the same tokens as chat mode: path on differs in quick, "
        "copy-1, turn 2, "
        "tokens at byte 20, token 5: chat/3 gives 'co15co16co17co18co19co20', "
        "serve/3 gives 'XXXXco16co17co18co19co20'"
    )
    assert verdict.reasons == (
        "state, by the rule 'the paths are strict': one prompt, one depth, two answers",
        "path on: 1 conversation differs in quick, copy-1, turn 2, tokens at byte 20, token 5",
        "serve/3 is the odd one out: it is in every contrast that differs",
    )


def test_a_difference_in_a_counter_alone_is_named_as_such():
    plan = make_plan()
    records = run_healthy(
        plan, lambda spec, turn: replace(turn, finish="stop") if spec.arm == SERVE_ON else turn
    )
    sentence = judge_run(plan, records)[1].sentence
    claim = "serve mode does not do the same as chat mode"
    assert sentence.startswith(f"FAIL: finish-reason: {claim}: path on differs")
    assert sentence.endswith("finish_reason: chat/3 gives length, serve/3 gives stop")


def test_a_wrong_prefix_names_the_counts():
    assert run("prefix").sentence == (
        "FAIL: prefix-reuse: chat/0 in quick, copy-1, turn 2: took 38 of 48 tokens from the cache, "
        "37 expected"
    )


def test_speculation_that_changes_both_paths_alike_needs_evidence():
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=b"!" + turn.text[1:]) if spec.arm.depth else turn

    verdict = judge_run(plan, run_healthy(plan, bend))[1]
    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "unproven")
    assert "neither a fault nor a near-tie is shown: the engine gave no margin" in verdict.sentence
    assert not any("odd one out" in reason for reason in verdict.reasons)
    assert not any("is undecided" in reason for reason in verdict.reasons)


def test_an_open_verdict_gives_the_first_reason_and_counts_the_rest():
    assert run("void").sentence == (
        "INCONCLUSIVE: chat/3 is void in quick: no sign of drafts: 48 tokens in 48 forwards, drafted 0, "
        "accepted 0 (and 2 more reasons)"
    )
    assert run("unsteady").sentence.startswith(
        "INCONCLUSIVE: chat/3 does not equal itself in quick, copy-1, turn 1, tokens at byte 0: "
        "'co10co11co12co13co14co15', and '!o10co11co12co13co14co15' when run again"
    )
    assert run("missing").sentence.startswith("INCONCLUSIVE: 1 of 8 cells were not measured")


def test_answers_that_are_all_empty_prove_nothing():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=b"", token_lengths=None)

    plan = make_plan()
    verdict = judge_run(plan, run_healthy(plan, bend))[1]
    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "void")
    assert "every answer that was compared is empty" in verdict.sentence


def test_an_invalid_run_names_the_first_cell_that_failed():
    assert run("failed").sentence == (
        "INVALID: 1 of 8 cells could not be measured; the first is cell 'chat/0 quick 0': engine-timeout: no "
        "output for 600 s"
    )


def test_a_verdict_survives_json():
    verdict = run("different")
    assert from_json(Verdict, to_json(verdict)) == verdict


def run_without_drafts(*arms: Arm) -> bool:
    """Return whether a run is void for good in which these arms drafted nothing."""
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        quiet = {"drafted_tokens": 0, "accepted_tokens": 0, "forwards": turn.emitted_tokens}
        return replace(turn, **quiet) if spec.arm in arms else turn  # type: ignore[arg-type]

    comparison = judge_run(plan, run_healthy(plan, bend))[0]
    return is_void_for_good(plan, comparison)


def test_a_depth_that_is_void_on_every_path_is_void_for_good():
    assert run_without_drafts(CHAT_ON, SERVE_ON)
    assert not run_without_drafts(CHAT_ON)
    assert not run_without_drafts()


def test_what_was_not_run_is_not_void():
    plan = make_plan()
    assert not is_void_for_good(plan, judge_run(plan, ())[0])


def test_an_arm_that_does_not_repeat_itself_names_what_is_open():
    plan = make_plan()
    comparison = judge_run(plan, run_healthy(plan, void))[0]

    def leave_open(verdict_class: VerdictClass) -> Finding:
        return Finding(
            verdict_class=verdict_class,
            effect="open",
            rule="a rule",
            contrast="speculation chat",
            arms=(CHAT_ON,),
            scenario="quick",
            conversation="copy-1",
            turn=0,
            reason=f"it is {verdict_class}",
        )

    findings = (leave_open("numerics"), leave_open("nondeterministic"))
    verdict = judge(plan, replace(comparison, findings=findings, engagements=()))
    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "nondeterministic")
