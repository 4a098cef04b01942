"""Seeded defects that text alone does not show: what else is looked at names each of them."""

from pathlib import Path

import pytest

from harness.report import Report
from tests.end_to_end.comparisons import Compare

SCENARIO = """
schema = 1
name = "seen"

[defaults]
max_tokens = 24

[[conversation]]
id = "first"

[[conversation.turn]]
user = "Tell me a story about a fox named Ida."

[[conversation]]
id = "second"
slot = 1

[[conversation.turn]]
user = "Tell me a story about the harbour."
"""


@pytest.fixture(scope="module")
def seen_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "seen.toml"
    path.write_text(SCENARIO)
    return path


def judge(compare: Compare, scenario: Path, out: Path, *more: str) -> Report:
    return Report.from_json(compare(out, "--repetitions", "1", "--json", *more, scenario=scenario).stdout)


@pytest.mark.parametrize(
    ("defect", "verdict_class", "said"),
    [
        ("logprob-zero", "counters", "logprobs: "),
        ("state-carried-between-arms", "prefix-reuse", "left .coli_kv"),
        ("slot-zero-hard-coded", "counters", "seen, second, turn 1, forwards"),
    ],
)
def test_the_defect_is_named(
    defect: str, verdict_class: str, said: str, compare: Compare, seen_file: Path, tmp_path: Path
) -> None:
    report = judge(compare, seen_file, tmp_path / "run", "--set", f"REF_DEFECT={defect}")

    assert (report.verdict.status, report.verdict.verdict_class) == ("fail", verdict_class)
    assert said in report.verdict.sentence


@pytest.mark.parametrize("settings", [(), ("--set", "REF_KERNELS=int8-batch")], ids=["healthy", "rounding"])
def test_neither_the_healthy_engine_nor_one_that_rounds_is_accused(
    settings: tuple[str, ...], compare: Compare, seen_file: Path, tmp_path: Path
) -> None:
    report = judge(compare, seen_file, tmp_path / "run", *settings)

    assert report.verdict.status != "fail"
    assert [check.state for check in report.comparison.logprobs] == ["agree"]
