"""README.md says what the commands really take and return."""

import re
import shlex
from pathlib import Path

import pytest

from harness.cli import EXIT_INTERRUPTED, EXIT_OUR_BUG, EXIT_USAGE, build_parser
from harness.verdict import EXIT_STATUSES
from scenarios import scenario_paths

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GOLDEN = ROOT / "tests" / "reports" / "golden"
BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for block in BLOCKS
    for line in block.splitlines()
    if line.startswith("coli-ab ") and not line.startswith("coli-ab serve") and "runs/RUN" not in line
]


def test_there_are_examples() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_is_a_command_that_exists(command: str) -> None:
    arguments = build_parser().parse_args(shlex.split(command)[1:])
    for name in getattr(arguments, "scenario", None) or []:
        assert name in scenario_paths() or name.endswith(".toml")


def test_its_report_has_the_columns_of_a_report() -> None:
    golden = "\n".join(path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.txt"))
    columns = {" ".join(line.split()) for line in golden.splitlines()}
    shown = re.findall(r"^  (.+)\n  ─+$", README, flags=re.MULTILINE)
    assert len(shown) == 3
    assert {" ".join(line.split()) for line in shown} <= columns


def test_the_exit_statuses_are_the_ones_in_the_code() -> None:
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    assert listed == {*EXIT_STATUSES.values(), EXIT_USAGE, EXIT_OUR_BUG, EXIT_INTERRUPTED}


@pytest.mark.parametrize("name", ["compare-command", "test-command"])
def test_each_of_the_two_commands_is_one_line(name: str) -> None:
    (block,) = re.findall(rf"<!-- {name} -->\n```\n(.*?)```\n<!-- /{name} -->", README, flags=re.DOTALL)
    assert len(block.splitlines()) == 1


def test_every_document_it_names_is_there() -> None:
    for path in re.findall(r"`(docs/[\w/-]+\.md|[A-Z]+\.md)`", README):
        assert (ROOT / path).is_file()
