"""The report for a pull request: what stands first, what a model's text cannot do to it, and its size."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from harness.contrasts import FoundDifference
from harness.identity import Difference
from harness.plan import CellSpec
from harness.report import NamedValue, PinRow, Report
from harness.transcript import TurnRecord
from reports.markdown import LIMIT_BYTES, MAX_DIFFERENCES, render_markdown
from tests.harness.run_builders import (
    CHAT_OFF,
    SERVE_ON,
    make_plan,
    make_scenario,
    report_run,
    run_healthy,
)


def changed(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if (spec.arm, turn.turn) != (SERVE_ON, 1):
        return turn
    return replace(turn, text=turn.text[:20] + b"<script>@you|`" + turn.text[34:])


def failing_report() -> Report:
    plan = make_plan()
    return report_run(plan, run_healthy(plan, changed))


def visible(text: str) -> str:
    """Return the part that is shown without unfolding anything."""
    return re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)


def test_verdict_stands_first_then_both_sides_of_the_first_difference_then_speed():
    text = render_markdown(failing_report())
    assert text.startswith("### coli-ab: FAIL\n\n")
    shown = visible(text)
    assert "@@ tokens at byte 20, token 5 @@" in shown
    assert shown.index("First differences") < shown.index("Speed")
    assert re.search(r"^- chat/3: ", shown, re.MULTILINE)
    assert re.search(r"^\+ serve/3: ", shown, re.MULTILINE)
    assert "| serve/0" not in shown
    assert text.count("<details>") == text.count("</details>")


def test_equal_differences_of_two_contrasts_are_shown_once():
    report = failing_report()
    different = [c for c in report.comparison.contrasts if c.found]
    shown = visible(render_markdown(report))
    assert shown.count("```diff") < sum(len(c.found) for c in different)
    assert "the same in" in shown
    assert "the same in" not in visible(render_markdown(report_run(make_plan(), run_healthy(make_plan()))))


def test_passing_run_has_no_differences():
    plan = make_plan()
    text = render_markdown(report_run(plan, run_healthy(plan)))
    assert text.startswith("### coli-ab: PASS\n")
    assert "First differences" not in text


def test_text_of_a_model_is_neither_a_tag_nor_a_mention_nor_a_cell_border():
    report = failing_report()
    first = report.verdict.reasons[0]
    hostile = replace(
        report.verdict, sentence=f"FAIL: {first} <img src=x> @maintainer &commat;other | a `b` [c](d)"
    )
    text = render_markdown(replace(report, verdict=hostile))
    outside = re.sub(r"```diff.*?```", "", text, flags=re.DOTALL)
    assert "<img" not in outside
    assert "@maintainer" not in outside
    assert "&commat;" not in outside
    assert "\\| a \\`b\\` \\[c\\](d)" in outside


@given(st.text(max_size=300))
def test_no_side_of_a_difference_ends_its_fence(side: str) -> None:
    report = failing_report()
    contrasts = list(report.comparison.contrasts)
    index = next(i for i, c in enumerate(contrasts) if c.found)
    found = contrasts[index].found[0]
    spoilt = replace(found, differences=(replace(found.differences[0], a=side, context=side),))
    contrasts[index] = replace(contrasts[index], found=(spoilt,))
    comparison = replace(report.comparison, contrasts=tuple(contrasts))
    lines = render_markdown(replace(report, comparison=comparison)).splitlines()
    fences = [line for line in lines if line.startswith("```")]
    assert fences == ["```diff", "```"] * (len(fences) // 2)


def worst_report() -> Report:
    """Return a report that has far more of everything than any comment can hold."""
    plan = make_plan(*(make_scenario(f"scenario-{n}", turns=3) for n in range(12)))
    report = report_run(plan, run_healthy(plan, changed))
    long = "é" * 5000
    difference = Difference(field="tokens", byte_offset=1, token_index=1, context=long, a=long, b=long)
    found = tuple(
        FoundDifference(
            scenario="scenario-0",
            conversation=f"c{n}",
            turn=n,
            repetitions_a=(0,),
            repetitions_b=(0,),
            differences=(difference,) * 9,
        )
        for n in range(200)
    )
    contrasts = tuple(replace(c, found=found) for c in report.comparison.contrasts)
    comparison = replace(
        report.comparison, contrasts=contrasts, notes=tuple(long + str(n) for n in range(500))
    )
    return replace(
        report,
        comparison=comparison,
        pins=tuple(
            PinRow(name=f"N{n}", value=long, reason=long, overridden=True, arms=(CHAT_OFF,))
            for n in range(300)
        ),
        environment=tuple(NamedValue(name=f"n{n}", value=long) for n in range(300)),
        changes=(long,) * 50,
    )


def test_worst_case_keeps_to_the_limit_and_says_what_it_left_out():
    text = render_markdown(worst_report())
    assert len(text.encode()) <= LIMIT_BYTES
    assert text.startswith("### coli-ab: FAIL")
    assert "First differences" in text
    assert "Left out to keep to 65,536 bytes" in text
    assert text.count("```diff") == MAX_DIFFERENCES
    assert text.count("<details>") == text.count("</details>")
