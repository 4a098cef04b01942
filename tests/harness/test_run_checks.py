"""What an edited or mixed-up run directory shows, and that nothing of a real run is taken for it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.budget import cut_plan
from harness.builds import add_baseline, join_builds
from harness.findings import Finding
from harness.plan import Arm, Build, CellSpec, Plan, ProbeMark
from harness.report import Report
from harness.run_checks import find_plan_problem, find_record_problem, find_report_problem
from harness.transcript import CellRecord
from tests.harness.run_builders import CHAT_ON, SERVE_ON, make_plan, make_scenario, report_run, run_healthy

PLAN = make_plan()
RECORDS = run_healthy(PLAN)


def test_plans_as_they_are_built_hold_together() -> None:
    builds = [Build(name=name, engine="reference") for name in ("main", "pr")]
    baseline, records = add_baseline(PLAN, PLAN, RECORDS, "runs/old")

    assert find_plan_problem(PLAN) is None
    assert find_plan_problem(make_plan(make_scenario("a"), make_scenario("b", slots=2))) is None
    assert find_plan_problem(join_builds(builds, [PLAN, PLAN])) is None
    assert find_plan_problem(baseline) is None
    assert find_record_problem(baseline, [*records, *RECORDS]) is None
    assert find_plan_problem(cut_plan(make_plan(make_scenario("a"), make_scenario("b")), 400)) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"contrasts": ()}, "it has no contrast"),
        ({"contrasts": PLAN.contrasts[1:]}, "no contrast of the kind 'self' holds chat/0 against chat/0"),
        ({"contrasts": PLAN.contrasts[:-1]}, "kind 'speculation' holds serve/0 against serve/3"),
        ({"contrasts": (*PLAN.contrasts, PLAN.contrasts[0])}, "the contrast 'self chat/0' is in it twice"),
        ({"arms": PLAN.arms[:-1]}, "the cell 'serve/3 quick 0' is of none of its arms and scenarios"),
        ({"arms": ()}, "it has no arm"),
        ({"scenarios": ()}, "it has no scenario"),
        ({"cells": PLAN.cells[:-1]}, "is not among its cells"),
        ({"cells": (*PLAN.cells, PLAN.cells[0])}, "is in it twice"),
        ({"repetitions": 3}, "the cell 'chat/0 quick 2' of its arms"),
    ],
)
def test_a_plan_that_was_cut_is_named(change: dict[str, object], words: str) -> None:
    problem = find_plan_problem(replace(PLAN, **change))  # type: ignore[arg-type]
    assert problem is not None
    assert words in problem


def test_a_contrast_of_other_arms_is_named() -> None:
    moved = replace(PLAN.contrasts[-1], name="x", b=Arm(path="serve", depth=7))
    problem = find_plan_problem(replace(PLAN, contrasts=(*PLAN.contrasts, moved)))
    assert problem == "the contrast 'x' is not between its arms"


def test_two_builds_that_are_not_held_against_each_other_are_named() -> None:
    plan = join_builds([Build(name=name, engine="reference") for name in ("main", "pr")], [PLAN, PLAN])
    bare = replace(plan, contrasts=tuple(c for c in plan.contrasts if c.kind != "build"))
    assert find_plan_problem(bare) == "no contrast of the kind 'build' holds main:chat/0 against pr:chat/0"


def with_spec(change: Callable[[CellSpec], CellSpec]) -> tuple[CellRecord, ...]:
    return (replace(RECORDS[0], spec=change(RECORDS[0].spec)), *RECORDS[1:])


def with_turns(*numbers: int, **changes: object) -> tuple[CellRecord, ...]:
    turns = [RECORDS[0].turns[number] for number in numbers]
    turns[-1] = replace(turns[-1], **changes)  # type: ignore[arg-type]
    return (replace(RECORDS[0], turns=tuple(turns)), *RECORDS[1:])


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (with_spec(lambda s: replace(s, arm=Arm(path="serve", depth=5))), "the plan has no such cell"),
        (with_spec(lambda s: replace(s, scenario="other")), "the plan has no such cell"),
        (with_spec(lambda s: replace(s, repetition=9)), "the plan has no such cell"),
        (
            with_spec(lambda s: replace(s, probe=ProbeMark(kind="cold", conversation="none", turn=0))),
            "the plan has no such cell",
        ),
        (
            with_spec(lambda s: replace(s, probe=ProbeMark(kind="cold", conversation="copy-1", turn=2))),
            "the plan has no such cell",
        ),
        ((*RECORDS, RECORDS[0]), "line 9, cell 'chat/0 quick 0': its attempt 0 is there twice"),
        (with_turns(0, 0), "turn 1 of 'copy-1' is there twice"),
        (with_turns(0, conversation="none"), "turn 1 of 'none' is not in the scenario"),
        (with_turns(0, turn=2), "turn 3 of 'copy-1' is not in the scenario"),
        (with_turns(0, emitted_tokens=-1), "emitted_tokens is below 0"),
    ],
)
def test_records_of_another_run_are_named(records: tuple[CellRecord, ...], words: str) -> None:
    problem = find_record_problem(PLAN, records)
    assert problem is not None
    assert words in problem


def test_attempts_and_probes_at_other_depths_belong_to_a_run() -> None:
    mark = ProbeMark(kind="depth", conversation="copy-1", turn=1)
    probe = replace(
        RECORDS[0], spec=CellSpec(arm=replace(CHAT_ON, depth=1), scenario="quick", repetition=0, probe=mark)
    )
    again = replace(RECORDS[0], attempt=1)

    assert find_record_problem(PLAN, [*RECORDS, again, probe]) is None
    assert find_record_problem(PLAN, []) is None


REPORT = report_run(PLAN, RECORDS)


def broken(plan: Plan) -> Report:
    def bend(spec, turn):  # type: ignore[no-untyped-def]
        return replace(turn, text=b"x" + turn.text[1:]) if spec.arm == SERVE_ON else turn

    return report_run(plan, run_healthy(plan, bend))


def as_pass(report: Report) -> Report:
    return replace(report, verdict=REPORT.verdict)


def test_reports_as_they_are_built_hold_together() -> None:
    assert REPORT.verdict.status == "pass"
    assert broken(PLAN).verdict.status != "pass"
    for report in (REPORT, broken(PLAN), report_run(PLAN, RECORDS[:3])):
        assert find_report_problem(report) is None


def test_a_verdict_that_its_evidence_does_not_bear_is_named() -> None:
    fault = Finding(
        verdict_class="state",
        effect="fail",
        rule="r",
        contrast="",
        arms=(CHAT_ON,),
        scenario="quick",
        conversation="copy-1",
        turn=0,
        reason="seen",
    )
    comparison = REPORT.comparison
    cases = {
        "its verdict is pass, and its exit status 1": replace(
            REPORT, verdict=replace(REPORT.verdict, exit_status=1)
        ),
        "its verdict is pass, and its sentence 'FAIL": replace(
            REPORT, verdict=replace(REPORT.verdict, sentence="FAIL: no")
        ),
        "2 of its findings are faults": as_pass(broken(PLAN)),
        "of its cells were not measured": as_pass(report_run(PLAN, RECORDS[:3])),
        "1 of its findings are faults": replace(REPORT, comparison=replace(comparison, findings=(fault,))),
        "nothing was compared": replace(REPORT, comparison=replace(comparison, contrasts=())),
        "no contrast has the arm chat/0": replace(
            REPORT,
            comparison=replace(
                comparison,
                contrasts=tuple(c for c in comparison.contrasts if c.contrast.a.label == "serve/0"),
            ),
        ),
    }
    for words, report in cases.items():
        problem = find_report_problem(report)
        assert problem is not None, words
        assert words in problem
