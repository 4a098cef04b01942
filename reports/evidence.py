"""The parts of the text report that the verdict rests on: arms, contrasts, differences and failures."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from harness.contrasts import ContrastResult, FoundDifference, list_found
from harness.findings import Finding
from harness.identity import Difference
from harness.plan import Arm
from harness.report import Report
from harness.verdict import describe_position
from reports.findings import count_more
from reports.numbers import format_count, format_decimal, format_percent
from reports.page import Page

# More than these are in report.json; the first ones are what one looks at.
MAX_DIFFERENCES = 8
MAX_STDERR_LINES = 8

_STATE_STYLES = {
    "identical": "",
    "sampled": "",
    "on": "",
    "off": "",
    "different": "red",
    "failed": "magenta",
}


def name_arms(arms: Collection[Arm], report: Report) -> str:
    """Return the labels of ``arms``, or ``all`` when no arm is left out."""
    known = [row.arm for row in report.arms]
    return "all" if len(arms) == len(known) else " ".join(arm.label for arm in known if arm in arms)


def add_arms(page: Page, report: Report) -> None:
    """Add the matrix of arms with the counters that show whether speculation was on."""
    page.add_heading("Arms")
    rows = [
        (
            row.arm.label,
            row.state,
            format_count(row.totals.emitted_tokens),
            format_count(row.totals.forwards),
            format_count(row.totals.drafted_tokens),
            format_count(row.totals.accepted_tokens),
            format_percent(row.totals.acceptance_rate),
            format_decimal(row.totals.tokens_per_forward),
        )
        for row in report.arms
    ]
    headers = ("arm", "state", "tokens", "forwards", "drafted", "accepted", "acceptance", "tok/fwd")
    page.add_table(
        headers, rows, numeric=range(2, 8), styles=[_STATE_STYLES.get(r.state, "yellow") for r in report.arms]
    )
    if len(report.scenarios) > 1:
        _add_scenario_matrix(page, report)
    for item in report.comparison.engagements:
        if item.state == "void":
            page.add_item(f"{item.arm.label} in {item.scenario} is void: {item.evidence}")
    _add_not_measured(page, report)
    _add_uncounted(page, report)


def _add_uncounted(page: Page, report: Report) -> None:
    """Say why the arms of a pass need not have as many tokens."""
    totals: defaultdict[str, set[int | None]] = defaultdict(set)
    for item in report.comparison.engagements:
        totals[item.scenario].add(item.totals.emitted_tokens)
    names = [scenario for scenario, counts in totals.items() if len(counts) > 1]
    if names and report.verdict.status == "pass":
        page.add_item(
            f"the arms need not have as many tokens in {', '.join(names)}: behind a stop string or a cancel "
            "an engine goes on until it hears of it, and drawn answers are of any length"
        )


def _add_not_measured(page: Page, report: Report) -> None:
    """Add a line for each set of scenarios that arms lack: a run that was ended early lacks most of them."""
    lacking: defaultdict[Arm, list[str]] = defaultdict(list)
    for item in report.comparison.engagements:
        if item.state == "not measured":
            lacking[item.arm].append(item.scenario)
    groups: defaultdict[tuple[str, ...], list[Arm]] = defaultdict(list)
    for arm, scenarios in lacking.items():
        groups[tuple(scenarios)].append(arm)
    for names, arms in groups.items():
        page.add_item(f"not measured: {name_arms(arms, report)} in {', '.join(names)}")


def _add_scenario_matrix(page: Page, report: Report) -> None:
    figures = {(e.scenario, e.arm): e.totals.tokens_per_forward for e in report.comparison.engagements}
    measured = {e.scenario for e in report.comparison.engagements if e.state != "not measured"}
    arms = [row.arm for row in report.arms]
    rows = [
        (s.name, *(format_decimal(figures.get((s.name, arm))) for arm in arms))
        for s in report.scenarios
        if s.name in measured
    ]
    page.add_heading("Tokens per forward")
    page.add_table(("scenario", *(arm.label for arm in arms)), rows, numeric=range(1, len(arms) + 1))


def add_contrasts(page: Page, report: Report) -> None:
    """Add one row for each contrast, and why the undecided ones are."""
    page.add_heading("Contrasts")
    results = report.comparison.contrasts
    rows = [
        (
            r.contrast.name,
            f"{r.contrast.a.label} = {r.contrast.b.label}",
            format_count(r.pairs_checked),
            format_count(r.pairs_identical),
            format_count(r.tokens_compared),
            r.state,
        )
        for r in results
    ]
    page.add_table(
        ("contrast", "must hold", "pairs", "identical", "tokens", "result"),
        rows,
        numeric=(2, 3, 4),
        styles=[_STATE_STYLES.get(r.state, "yellow") for r in results],
    )
    for result in results:
        for remark in _remarks(result, report.comparison.findings):
            page.add_item(f"{result.contrast.name}: {remark}")


def add_distributions(page: Page, report: Report) -> None:
    """Add what the tests of sampled answers say, if there are any."""
    if report.comparison.distributions:
        page.add_heading("Sampled answers")
        for row in report.comparison.distributions:
            page.add_item(row.sentence, style="red" if row.test.differs else "")


def _remarks(result: ContrastResult, findings: Iterable[Finding]) -> list[str]:
    # A reason that is a finding's can hold at many places.
    own = [f for f in findings if f.contrast == result.contrast.name]
    own = [f for f in own if f"{f.place}: {f.reason}" in result.reasons]
    told = {f"{finding.place}: {finding.reason}" for finding in own}
    remarks = [reason for reason in result.reasons if reason not in told]
    remarks += _join_places(own)
    if result.excluded_after_difference:
        turns = format_count(result.excluded_after_difference)
        remarks.append(f"{turns} later turns left out, an earlier answer differed")
    if result.repeated_differences:
        turns = format_count(result.repeated_differences)
        remarks.append(f"{turns} later turns differ in nothing but what had differed in their conversation")
    skipped = [f"{count.field} in {format_count(count.pairs)}" for count in result.not_compared]
    if skipped:
        remarks.append(f"not reported on both sides: {', '.join(skipped)} pairs")
    return remarks


def _join_places(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield each reason once, with the first of the places that it holds for."""
    places: dict[str, list[str]] = {}
    for finding in findings:
        places.setdefault(finding.reason, []).append(finding.place)
    for reason, found in places.items():
        yield f"{found[0]}{count_more(found)}: {reason}"


def add_differences(page: Page, report: Report) -> None:
    """Add the first differences of each conversation: position, both sides, context."""
    items = list_found(report.comparison.contrasts)
    if not items:
        return
    page.add_heading("First differences")
    for result, found in items[:MAX_DIFFERENCES]:
        _add_found(page, result, found)
    if len(items) > MAX_DIFFERENCES:
        page.add_item(f"and {len(items) - MAX_DIFFERENCES} more, in report.json")


def _add_found(page: Page, result: ContrastResult, found: FoundDifference) -> None:
    place = f"{found.scenario}, {found.conversation}, turn {found.turn + 1}"
    page.add_item(f"{result.contrast.name}: {place} ({_name_repetitions(found)})", style="bold")
    a, b = result.contrast.a.label, result.contrast.b.label
    if a == b:
        a, b = f"{a} (first)", f"{b} (again)"
    for difference in found.differences:
        _add_difference(page, difference, a, b)


def _name_repetitions(found: FoundDifference) -> str:
    pairs = list(zip(found.repetitions_a, found.repetitions_b, strict=True))
    named = ", ".join(str(a) if a == b else f"{a} and {b}" for a, b in pairs)
    return f"repetition{'s' if len(pairs) > 1 or pairs[0][0] != pairs[0][1] else ''} {named}"


def _add_difference(page: Page, difference: Difference, a: str, b: str) -> None:
    page.add_line(f"    {describe_position(difference)}")
    if difference.field == "tokens":
        page.add_line(f"      after {difference.context}")
    margin = max(len(a), len(b))
    page.add_line(f"      {a.ljust(margin)}  {difference.a}", style="green")
    page.add_line(f"      {b.ljust(margin)}  {difference.b}", style="red")


def add_failures(page: Page, report: Report) -> None:
    """Add the cells that failed, with the last lines that the engine wrote to stderr."""
    if not report.comparison.failures:
        return
    page.add_heading("Failed cells")
    for item in report.comparison.failures:
        failure = item.failure
        page.add_item(f"{item.spec.key}: {failure.code}: {failure.message}", style="magenta")
        if failure.hint:
            page.add_item(f"remedy: {failure.hint}")
        for line in failure.stderr_tail[-MAX_STDERR_LINES:]:
            page.add_line(f"    stderr | {line}")
