"""The table of words in Markdown, as docs/metrics.md shows it."""

from collections.abc import Iterable

from harness.metric_words import Metric


def render_definitions(words: Iterable[Metric]) -> str:
    """Return a Markdown table: name, label in reports, unit, definition."""
    rows = [f"| `{w.name}` | {w.label} | {w.unit} | {w.definition} |" for w in words]
    return "\n".join(["| word | in reports | unit | definition |", "|---|---|---|---|", *rows]) + "\n"
