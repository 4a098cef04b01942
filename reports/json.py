"""The Report as JSON, for programs; the words in it are defined by its own ``words`` list."""

from harness.report import Report


def render_json(report: Report) -> str:
    """Return the report as indented JSON that ends in a newline."""
    return report.to_json() + "\n"
