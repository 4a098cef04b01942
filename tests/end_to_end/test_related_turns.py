"""Differences within a cell, between numbers of slots and between samples: engines with one seeded fault."""

from pathlib import Path

import pytest

from harness.report import Report
from scenarios import scenario_paths
from tests.end_to_end.comparisons import Compare

RELATED = """
schema = 1
name = "related"

[defaults]
max_tokens = 12

[[conversation]]
id = "cold-then-warm"

[[conversation.turn]]
user = "Tell me a story about the market."
max_tokens = 24

[[conversation.turn]]
user = "Tell me a story about the market."
after = 0
max_tokens = 24
same_as = [1]

[[conversation]]
id = "branches"

[[conversation.turn]]
user = "Describe the harbour in detail."

[[conversation.turn]]
user = "What is 6 * 5?"

[[conversation.turn]]
user = "Tell me a story about the harbour."
after = 1

[[conversation.turn]]
user = "What is 6 * 5?"
after = 1
same_as = [2]
"""

Answer = tuple[Report, int]


def run(compare: Compare, scenario: Path, out: Path, defect: str, *more: str) -> Answer:
    done = compare(out, "--set", f"REF_DEFECT={defect}", "--json", *more, scenario=scenario)
    return Report.from_json(done.stdout), done.returncode


@pytest.fixture
def related_file(tmp_path: Path) -> Path:
    path = tmp_path / "related.toml"
    path.write_text(RELATED)
    return path


@pytest.mark.parametrize(
    ("defect", "status", "verdict_class"),
    [
        ("", 0, "identical"),
        ("cold-warm-tie", 0, "near-tie"),
        ("prefix-dropped-on-hit", 1, "prefix-reuse"),
        ("draft-kv-not-trimmed-on-reuse", 1, "counters"),
    ],
)
def test_turns_of_one_cell_are_judged_by_margins_and_counts(
    defect: str, status: int, verdict_class: str, compare: Compare, related_file: Path, tmp_path: Path
) -> None:
    report, returncode = run(compare, related_file, tmp_path / "run", defect, "--repetitions", "1")

    assert (returncode, report.verdict.verdict_class) == (status, verdict_class)
    named = [f for f in report.comparison.findings if f.verdict_class == verdict_class]
    assert bool(defect) == any(f.contrast.startswith("within ") for f in named)


@pytest.mark.parametrize(
    ("defect", "status", "verdict_class"),
    [
        ("batch-tie", 0, "near-tie"),
        ("kernel-switch", 3, "numerics"),
        ("row-permutation", 1, "state"),
    ],
)
def test_requests_at_once_are_judged_by_margins(
    defect: str, status: int, verdict_class: str, compare: Compare, tmp_path: Path
) -> None:
    report, returncode = run(compare, scenario_paths()["two-slots"], tmp_path / "run", defect)

    assert (returncode, report.verdict.verdict_class) == (status, verdict_class)
    found = {f.verdict_class for f in report.comparison.findings if f.contrast == "slots 2"}
    assert found <= {verdict_class, "unproven"}
    assert verdict_class in found


@pytest.mark.parametrize(
    ("defect", "status", "verdict_class", "said"),
    [
        ("", 0, "identical", "8 tests of 60 draws show no other distribution, error rate 0.001 each"),
        ("wrong-q", 1, "state", "draw from different distributions (p = 0.0001"),
        ("seed-ignored", 3, "nondeterministic", "does not equal itself"),
        ("shared-rng", 3, "nondeterministic", "does not draw one answer again in one process"),
    ],
)
def test_a_sampled_scenario_decides_by_itself(
    defect: str, status: int, verdict_class: str, said: str, compare: Compare, tmp_path: Path
) -> None:
    report, returncode = run(compare, scenario_paths()["sampled"], tmp_path / "run", defect)

    assert (returncode, report.verdict.verdict_class) == (status, verdict_class)
    assert said in report.verdict.sentence
    # No token of one arm was held against another's, so nothing is certified.
    assert not (tmp_path / "run" / "certificate.json").exists()
