"""A grammar on both paths and depths of the embedded engine: enforced, ignored, and only drafted from."""

from pathlib import Path

import pytest

from harness.report import Report
from scenarios import scenario_paths
from tests.end_to_end.comparisons import Compare

DRAFTS = """\
schema = 1
name = "drafts"
grammar_file = "code.gbnf"
grammar_binds = false
[defaults]
max_tokens = 32
[[conversation]]
id = "code"
[[conversation.turn]]
user = "Remember: the code is 4821."
"""


@pytest.fixture(scope="module")
def grammar_file() -> Path:
    return scenario_paths()["grammar"]


def test_healthy_engine_gives_valid_answers_only_with_fewer_forwards_than_tokens(
    compare: Compare, grammar_file: Path, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", "--json", "--repetitions", "1", scenario=grammar_file)

    report = Report.from_json(done.stdout)
    assert (report.verdict.status, done.returncode) == ("pass", 0)
    rows = {row.arm.label: row for row in report.comparison.validity}
    assert {(row.answers, row.valid, row.unfinished) for row in rows.values()} == {(5, 5, 0)}
    assert rows["serve/0"].forwards_per_token == rows["chat/0"].forwards_per_token == 1
    assert rows["serve/3"].forwards_per_token == rows["chat/3"].forwards_per_token
    assert (rows["serve/3"].forwards_per_token or 1) < 0.6
    drafted = {row.arm.label: row.totals.drafted_tokens or 0 for row in report.arms}
    assert drafted["serve/3"] == drafted["chat/3"] > 0


def test_grammar_that_one_path_ignores_is_named(compare: Compare, grammar_file: Path, tmp_path: Path) -> None:
    settings = ("--set", "REF_DEFECT=grammar-ignored-on-path", "--repetitions", "1")
    done = compare(tmp_path / "run", "--json", *settings, scenario=grammar_file)

    report = Report.from_json(done.stdout)
    assert (report.verdict.status, done.returncode) == ("fail", 1)
    assert "breaks the grammar that binds it: serve/0 in grammar, place, turn 1" in report.verdict.sentence
    assert {row.arm.path for row in report.comparison.validity if row.invalid} == {"serve"}


def test_an_answer_that_serve_mode_gives_up_is_a_broken_grammar(
    compare: Compare, grammar_file: Path, tmp_path: Path
) -> None:
    settings = ("--set", "REF_DEFECT=matcher-advanced-by-rejected", "--repetitions", "1", "--until", "fault")
    done = compare(tmp_path / "run", "--json", *settings, scenario=grammar_file)

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.verdict_class) == (1, "grammar")
    assert "breaks the grammar that binds it: serve/3 in grammar, place, turn 1" in report.verdict.sentence


def test_grammar_that_is_only_drafted_from_leaves_the_text_as_it_is(compare: Compare, tmp_path: Path) -> None:
    scenario = tmp_path / "drafts.toml"
    scenario.write_text(DRAFTS)
    (tmp_path / "code.gbnf").write_text('root ::= "I will remember that the code is " [0-9]+ "."\n')

    done = compare(tmp_path / "run", "--json", "--repetitions", "1", scenario=scenario)

    report = Report.from_json(done.stdout)
    assert (report.verdict.status, done.returncode) == ("pass", 0)
    pins = {pin.name: [arm.label for arm in pin.arms] for pin in report.pins}
    assert pins["GRAMMAR"] == ["chat/3"]
    assert "REF_GRAMMAR_CONSTRAIN" not in pins
    rows = {row.arm.label: row for row in report.comparison.validity}
    assert {row.valid for row in rows.values()} == {1}
    assert (rows["serve/3"].forwards_per_token or 1) < 1
