"""The report for a terminal: the verdict in one sentence first, then the evidence it rests on."""

from collections.abc import Iterable

from harness.report import PinRow, Report
from reports import evidence, figures, findings, grammar, performance
from reports.page import Page

_STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow", "invalid": "bold magenta"}
# A run that differs everywhere needs no list of all places; report.json holds them.
MAX_REASONS = 6


def render_text(report: Report, *, width: int = 100, colour: bool = False) -> str:
    """Return the report as text that ends in a newline.

    Args:
        report: what to show.
        width: columns; 80 is enough for every table.
        colour: write ANSI colours.
    """
    page = Page(width=width, colour=colour)
    page.add_line(report.verdict.sentence, style=_STYLES[report.verdict.status])
    _add_reasons(page, report.verdict.reasons)
    _add_list(page, "Builds", report.changes)
    evidence.add_arms(page, report)
    evidence.add_contrasts(page, report)
    findings.add_findings(page, report)
    evidence.add_differences(page, report)
    evidence.add_distributions(page, report)
    evidence.add_failures(page, report)
    grammar.add_validity(page, report)
    figures.add_prefill(page, report)
    figures.add_speed(page, report)
    performance.add_performance(page, report)
    findings.add_degenerate(page, report)
    figures.add_facts(page, report)
    _add_settings(page, report)
    _add_list(page, "Notes", report.comparison.notes)
    circumstances = (f"{item.name}: {item.value}" for item in report.environment)
    _add_list(page, "Run", (*circumstances, findings.describe_cost(report)))
    return page.render()


def _add_reasons(page: Page, reasons: tuple[str, ...]) -> None:
    for reason in reasons[:MAX_REASONS] if len(reasons) > 1 else ():
        page.add_item(reason)
    if len(reasons) > MAX_REASONS:
        page.add_item(f"and {len(reasons) - MAX_REASONS} more, in report.json")


def _add_settings(page: Page, report: Report) -> None:
    if not report.pins:
        return
    page.add_heading("Engine settings fixed for the run")
    rows = [
        (f"{pin.name}={pin.value}", evidence.name_arms(pin.arms, report), _state_reason(pin))
        for pin in report.pins
    ]
    page.add_table(("setting", "arms", "why"), rows, numeric=())


def _state_reason(pin: PinRow) -> str:
    return f"set by the user; {pin.reason}" if pin.overridden else pin.reason


def _add_list(page: Page, heading: str, items: Iterable[str]) -> None:
    shown = tuple(items)
    if shown:
        page.add_heading(heading)
        for item in shown:
            page.add_item(item)
