"""The report as JUnit XML, so that a CI system lists one test case for each contrast and scenario."""

import re
from collections.abc import Iterable

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from harness.contrasts import ContrastResult
from harness.performance import Performance
from harness.report import Report
from harness.speed_words import describe_row
from harness.verdict import describe_found, describe_reason

NAME = "coli-ab"

# What XML 1.0 does not allow in a text: control characters, surrogates and two that are no characters.
_NOT_XML = re.compile("[^\\t\\n\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def render_junit(report: Report) -> str:
    """Return the report as JUnit XML.

    A proven fault is a failure. What was not shown either way, and what could not be measured, is an error:
    a skipped test would look like a pass.
    """
    suite = TestSuite(NAME)
    suite.add_testcase(_build_verdict(report))
    for result in report.comparison.contrasts:
        for scenario in result.scenarios:
            suite.add_testcase(_build_contrast(report, result, scenario))
    if report.speed is not None:
        for performance in report.comparison.performance:
            suite.add_testcase(_build_speed(performance))
    for case in _build_counts(report):
        suite.add_testcase(case)
    for item in report.comparison.failures:
        suite.add_testcase(
            _build_case("cells", item.spec.key, error=("failed", _clean(item.failure.message)))
        )
    xml = JUnitXml(NAME)
    xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    text: str = xml.tostring().decode("utf-8")  # type: ignore[no-untyped-call]
    return text if text.endswith("\n") else text + "\n"


def _build_verdict(report: Report) -> TestCase:
    status, sentence = report.verdict.status, _clean(report.verdict.sentence)
    if status == "pass":
        return _build_case("run", "verdict")
    if status == "fail":
        return _build_case("run", "verdict", failure=(report.verdict.verdict_class, sentence))
    return _build_case("run", "verdict", error=(status, sentence))


def _build_contrast(report: Report, result: ContrastResult, scenario: str) -> TestCase:
    name = result.contrast.name
    own = [f for f in report.comparison.findings if (f.contrast, f.scenario) == (name, scenario)]
    faults = [finding for finding in own if finding.effect == "fail"]
    if faults:
        told = "\n".join((*_describe_found(result, scenario), *map(describe_reason, faults)))
        return _build_case(scenario, name, failure=(faults[0].verdict_class, _clean(told)))
    if result.contrast.kind == "self" and any(found.scenario == scenario for found in result.found):
        told = "\n".join(_describe_found(result, scenario))
        return _build_case(scenario, name, error=("nondeterministic", _clean(told)))
    if result.state in ("undecided", "not checked") and (result.reasons or not result.pairs_checked):
        told = "; ".join(result.reasons) or "nothing was compared"
        return _build_case(scenario, name, error=("inconclusive", _clean(told)))
    return _build_case(scenario, name)


def _describe_found(result: ContrastResult, scenario: str) -> Iterable[str]:
    return (describe_found(result, found) for found in result.found if found.scenario == scenario)


def _build_speed(item: Performance) -> TestCase:
    """Return the case of one contrast's speed: a build that is slower beyond the bound has failed."""
    name, told = f"speed {item.contrast.name}", "\n".join(map(describe_row, item.rows))
    if item.contrast.kind == "build" and any(row.fails for row in item.rows):
        return _build_case("speed", name, failure=("slower", _clean(told)))
    if item.rows[0].statement in ("too few pairs", "not judged"):
        return _build_case("speed", name, error=("inconclusive", _clean(told)))
    return _build_case("speed", name)


def _build_counts(report: Report) -> Iterable[TestCase]:
    """Return a failed case for each fault that one arm shows alone."""
    for finding in report.comparison.findings:
        if finding.effect == "fail" and not finding.contrast:
            yield _build_case(
                finding.scenario,
                f"{finding.arms[0].label}: {finding.rule}, {finding.conversation} turn {finding.turn + 1}",
                failure=(finding.verdict_class, _clean(finding.reason)),
            )


def _build_case(
    group: str,
    name: str,
    *,
    failure: tuple[str, str] | None = None,
    error: tuple[str, str] | None = None,
) -> TestCase:
    case = TestCase(_clean(name), f"{NAME}.{group}")
    if failure is not None:
        case.result = [_fill(Failure(), *failure)]
    elif error is not None:
        case.result = [_fill(Error(), *error)]
    return case


def _fill(result: Failure | Error, kind: str, text: str) -> Failure | Error:
    result.type, result.message, result.text = kind, text.partition("\n")[0], text
    return result


def _clean(text: str) -> str:
    """Return text without the characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)
