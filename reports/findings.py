"""The part of the text report that names each difference, with the evidence and the rule that decided."""

from collections.abc import Iterable

from harness.findings import Finding
from harness.report import Report
from reports.numbers import format_count
from reports.page import Page

MAX_FINDINGS = 6

_STYLES = {"fail": "red", "open": "yellow", "explained": "green"}
_WORDS = {"fail": "a fault", "open": "open", "explained": "explained"}


def add_findings(page: Page, report: Report) -> None:
    """Add the findings: class, place, reason, rule and evidence; findings that are alike share an entry."""
    groups = join_alike(report.comparison.findings)
    if not groups:
        return
    page.add_heading("What the differences are")
    for findings in groups[:MAX_FINDINGS]:
        _add_finding(page, findings)
    if len(groups) > MAX_FINDINGS:
        page.add_item(f"and {len(groups) - MAX_FINDINGS} more, in report.json")


def join_alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return the findings in groups of one class, rule, reason and evidence, in order of appearance."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.verdict_class, finding.rule, finding.reason, finding.facts)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _add_finding(page: Page, findings: list[Finding]) -> None:
    first = findings[0]
    subjects = ", ".join(dict.fromkeys(f.contrast or f.arms[0].label for f in findings))
    more = count_more(f.place for f in findings)
    head = f"{first.verdict_class} ({_WORDS[first.effect]}): {subjects}: {first.place}{more}"
    page.add_item(head, style=_STYLES[first.effect])
    page.add_item(f"rule {first.rule!r}: {first.reason}", level=1)
    for fact in first.facts:
        page.add_item(fact, level=1)


def count_more(places: Iterable[str]) -> str:
    """Return how many places there are besides the first, in words; nothing when it is the only one.

    >>> count_more(["a", "b", "a", "c"])
    ' and 2 more places'
    """
    more = len(set(places)) - 1
    return f" and {more} more place{'' if more == 1 else 's'}" if more else ""


def add_degenerate(page: Page, report: Report) -> None:
    """Add the answers whose speed is shown and not judged."""
    answers = report.comparison.degenerate
    if not answers:
        return
    page.add_heading("Degenerate answers: their speed is shown and not judged")
    arms: dict[tuple[str, str], list[str]] = {}
    for answer in answers:
        place = f"{answer.scenario}, {answer.conversation}, turn {answer.turn + 1}"
        arms.setdefault((place, f"{answer.kind}: {answer.evidence}"), []).append(answer.arm.label)
    for (place, evidence), labels in arms.items():
        page.add_item(f"{place}: {evidence} ({' '.join(labels)})")


def describe_cost(report: Report) -> str:
    """Return what the verdict cost, as one line."""
    tokens = format_count(report.comparison.tokens_decoded)
    probes = format_count(report.comparison.probe_tokens)
    planned = format_count(report.comparison.planned_tokens)
    return f"{tokens} tokens decoded for this verdict, {probes} of them by probes; {planned} planned"
