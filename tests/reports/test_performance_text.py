"""What the reports say of speed."""

from dataclasses import replace

import numpy as np
from junitparser import JUnitXml

from benchmarks.calibration import Law, build_calibration_plan, measure
from harness.cli.results import compare_records
from harness.plan import Plan
from harness.report import Report, build_report
from harness.run_checks import find_report_problem
from harness.verdict import Verdict, judge
from reports.junit import render_junit
from reports.markdown import render_markdown
from reports.text import render_text
from tests.harness.run_builders import make_plan, report_run, run_healthy


def report(effect: float, plan: Plan) -> Report:
    records = measure(plan, Law(effect=effect), np.random.default_rng([5, 1]))
    comparison = compare_records(plan, records)
    return build_report(plan, records, comparison, judge(plan, comparison))


def test_the_text_says_what_moved_and_what_it_rests_on():
    text = " ".join(render_text(report(-0.06, build_calibration_plan(16)), width=110).split())
    assert text.startswith("FAIL: slower: pr:serve/0 is slower than main:serve/0")
    for words in (
        "main:serve/0, pr:serve/0 decode tok/s slower",
        "tokens per forward 1.000x exact, time per forward 1.0",
        "the price of speculation that drafts nothing",
        "checks: A/A ",
        "How speed was judged, settled before the first cell",
        "16 timed pairs of cells for 1 contrast: build pr:serve/0",
        "plan sha256",
    ):
        assert words in text


def test_a_refusal_is_told():
    plan = build_calibration_plan(4)
    assert "need at least 8 pairs" in render_text(report(0.0, plan), width=110)


def test_without_timed_pairs_one_line_says_what_is_missing():
    plan = make_plan()
    text = render_text(report_run(plan, run_healthy(plan)), width=110)
    assert "1 pair is no ground to say faster or slower: --performance times 8 and more" in text


def test_the_engines_own_figure_stands_beside_ours_with_both_definitions():
    plan = make_plan()
    text = " ".join(render_text(report_run(plan, run_healthy(plan)), width=110).split())
    assert "decode tok/s: 1000 / TPOT, by the client's clock" in text
    assert "Colibri divides by prefill and decode time in chat mode, by decode time alone in serve" in text


def test_markdown_and_junit_tell_it_too():
    slow = report(-0.06, build_calibration_plan(16))
    assert "| pr:serve/0 | decode tok/s | slower | 0.9" in render_markdown(slow)
    cases = {case.name: case for suite in JUnitXml.fromstring(render_junit(slow).encode()) for case in suite}
    assert cases["speed build pr:serve/0"].result[0].type == "slower"
    equal = report(0.0, build_calibration_plan(16))
    cases = {case.name: case for suite in JUnitXml.fromstring(render_junit(equal).encode()) for case in suite}
    assert cases["speed build pr:serve/0"].result == []


def test_a_slower_build_bears_its_verdict_and_no_other():
    slower = report(-0.06, build_calibration_plan(16))
    assert find_report_problem(slower) is None
    sound = judge_sound()
    assert find_report_problem(replace(slower, verdict=sound)) == (
        "its verdict is pass, and a build is slower beyond the bound"
    )
    equal = report(0.0, build_calibration_plan(16))
    assert find_report_problem(replace(equal, verdict=slower.verdict)) == (
        "its verdict is fail, and 0 of its findings are faults"
    )


def judge_sound() -> Verdict:
    plan = make_plan()
    return report_run(plan, run_healthy(plan)).verdict
