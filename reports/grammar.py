"""The part of the text report on answers under a grammar."""

from harness.grammar_validity import ValidityRow
from harness.report import Report
from reports.numbers import format_decimal
from reports.page import Page

# The others are in report.json; an engine that ignores its grammar breaks it in most answers.
MAX_INVALID = 4


def add_validity(page: Page, report: Report) -> None:
    """Add how many answers of each arm are valid, and the first invalid ones; nothing without a grammar."""
    rows = report.comparison.validity
    for scenario in dict.fromkeys(row.scenario for row in rows):
        _add_scenario(page, scenario, [row for row in rows if row.scenario == scenario])


def _add_scenario(page: Page, scenario: str, rows: list[ValidityRow]) -> None:
    effect = "binds" if rows[0].binds else "is a source of drafts only: validity is shown, not judged"
    page.add_heading(f"Answers under the grammar of {scenario}, which {effect}")
    cells = [
        (
            row.arm.label,
            f"{row.answers:,}",
            f"{row.valid:,}",
            f"{row.unfinished:,}",
            format_decimal(row.forwards_per_token),
        )
        for row in rows
    ]
    headers = ("arm", "answers", "valid", "unfinished", "forwards per token")
    styles = ["red" if row.invalid and row.binds else "" for row in rows]
    page.add_table(headers, cells, numeric=range(1, 5), styles=styles)
    invalid = [_describe_invalid(row) for row in rows if row.invalid]
    for line in invalid[:MAX_INVALID]:
        page.add_item(line)


def _describe_invalid(row: ValidityRow) -> str:
    first = row.invalid[0]
    place = f"{first.conversation}, turn {first.turn + 1}"
    return f"{row.arm.label}: {len(row.invalid)} invalid, the first in {place}: {first.reason}"
