"""The JSON report is the Report value."""

import json

from harness.report import Report
from reports.json import render_json
from tests.harness.run_builders import make_plan, report_run, run_healthy


def test_the_json_report_reads_back_and_ends_in_a_newline():
    plan = make_plan()
    report = report_run(plan, run_healthy(plan))
    text = render_json(report)
    assert text.endswith("}\n")
    assert Report.from_json(text) == report
    data = json.loads(text)
    assert data["verdict"]["status"] == "pass"
    assert {word["name"] for word in data["words"]} >= {"ttft_ms", "tokens_per_forward"}
