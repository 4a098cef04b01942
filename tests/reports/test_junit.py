"""The report for a CI system: one case for each contrast and scenario, and nothing that XML cannot hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, TestCase

from harness.plan import CellSpec
from harness.report import Report
from harness.transcript import TurnRecord
from reports.junit import render_junit
from tests.harness.run_builders import (
    CHAT_ON,
    SERVE_ON,
    make_plan,
    make_scenario,
    report_run,
    run_healthy,
)


def parse(report: Report) -> dict[tuple[str, str], TestCase]:
    suites = JUnitXml.fromstring(render_junit(report).encode())
    return {(case.classname, case.name): case for suite in suites for case in suite}


def two_scenarios(bend=lambda _, turn: turn) -> Report:
    plan = make_plan(make_scenario("one"), make_scenario("two"))
    return report_run(plan, run_healthy(plan, bend))


def in_scenario_two(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if (spec.arm, spec.scenario) != (SERVE_ON, "two"):
        return turn
    return replace(turn, text=b"zz" + turn.text[2:])


def test_every_contrast_and_scenario_is_a_case():
    cases = parse(two_scenarios())
    names = {name for group, name in cases if group == "coli-ab.one"}
    assert {"path off", "path on", "speculation chat", "self serve/3"} <= names
    assert ("coli-ab.two", "path on") in cases
    assert ("coli-ab.run", "verdict") in cases
    assert not any(case.result for case in cases.values())


def test_fault_fails_the_cases_of_its_scenario_and_no_other():
    cases = parse(two_scenarios(in_scenario_two))
    (failure,) = cases["coli-ab.two", "path on"].result
    assert isinstance(failure, Failure)
    assert "tokens at byte 0" in failure.text
    assert not cases["coli-ab.one", "path on"].result
    assert isinstance(cases["coli-ab.run", "verdict"].result[0], Failure)


def test_void_arm_is_an_error_and_no_pass():
    def void(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm != CHAT_ON:
            return turn
        return replace(turn, drafted_tokens=0, accepted_tokens=0, forwards=turn.emitted_tokens)

    plan = make_plan()
    cases = parse(report_run(plan, run_healthy(plan, void)))
    (error,) = cases["coli-ab.quick", "path on"].result
    assert isinstance(error, Error)
    assert error.type == "inconclusive"
    assert isinstance(cases["coli-ab.run", "verdict"].result[0], Error)


def test_fault_of_one_arm_alone_is_a_case_of_its_own():
    def impossible(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, accepted_tokens=99) if spec.arm == CHAT_ON else turn

    plan = make_plan()
    cases = parse(report_run(plan, run_healthy(plan, impossible)))
    failed = [name for (_, name), case in cases.items() if case.result and name.startswith("chat/3: ")]
    assert failed


@given(st.text(max_size=200))
def test_any_text_gives_xml_that_parses(text: str) -> None:
    report = two_scenarios(in_scenario_two)
    report = replace(report, verdict=replace(report.verdict, sentence=f"FAIL: {text}"))
    assert parse(report)["coli-ab.run", "verdict"].result


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\ufffe"])
def test_characters_that_xml_cannot_hold_are_replaced(character: str) -> None:
    report = two_scenarios(in_scenario_two)
    report = replace(report, verdict=replace(report.verdict, sentence=f"FAIL: a{character}b"))
    assert parse(report)["coli-ab.run", "verdict"].result[0].message == "FAIL: a?b"
