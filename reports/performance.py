"""The part of the text report that says what is faster or slower, and what that rests on."""

from harness.performance import Performance
from harness.report import Report
from harness.speed_words import (
    METRIC_LABELS,
    describe_checks,
    describe_ratio,
    describe_settled,
    describe_split,
    describe_statement,
)
from reports.numbers import NOT_REPORTED
from reports.page import Page


def add_performance(page: Page, report: Report) -> None:
    """Add what is said of the speed of two arms; one line where too little was timed for a table."""
    shown = [item for item in report.comparison.performance if report.speed is not None]
    if not shown:
        _add_need(page, report)
        return
    page.add_heading("Speed: what is said of the second arm, and its ratio to the first")
    rows = [
        (
            f"{item.contrast.a.label}, {item.contrast.b.label}",
            METRIC_LABELS[row.metric],
            describe_statement(row),
            describe_ratio(row.ratio),
            NOT_REPORTED if row.p_value is None else f"{row.p_value:.4f}",
            str(row.pairs),
        )
        for item in shown
        for row in item.rows
    ]
    page.add_table(("arms", "figure", "said", "ratio", "p", "pairs"), rows, numeric=range(3, 6))
    for item in shown:
        _add_grounds(page, item)
    if report.speed is not None:
        page.add_heading("How speed was judged, settled before the first cell")
        for text in describe_settled(report.speed):
            page.add_item(text)


def _add_grounds(page: Page, item: Performance) -> None:
    page.add_item(f"{item.contrast.name}: {describe_split(item)}")
    page.add_item(f"checks: {describe_checks(item)}", level=1)
    for remark in dict.fromkeys(row.remark for row in item.rows if row.remark):
        page.add_item(f"not judged: {remark}", level=1)


def _add_need(page: Page, report: Report) -> None:
    rows = [item.rows[0] for item in report.comparison.performance if item.rows]
    if rows:
        pairs, needed = max(row.pairs for row in rows), max(row.needed_pairs for row in rows)
        timed = "1 pair is" if pairs == 1 else f"{pairs} pairs are"
        page.add_item(f"{timed} no ground to say faster or slower: --performance times {needed} and more")
