"""docs/metrics.md shows the table of words that the code holds."""

from pathlib import Path

from harness.metric_words import METRICS
from reports.definitions import render_definitions

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_document_holds_the_table_of_the_code():
    text = DOCUMENT.read_text(encoding="utf-8")
    shown = text.split("<!-- words -->\n")[1].split("<!-- /words -->")[0]
    assert shown == render_definitions(METRICS)


def test_every_word_is_defined_once():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(metric.definition.endswith(".") and "|" not in metric.definition for metric in METRICS)
