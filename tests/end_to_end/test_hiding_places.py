"""Branches, cancels, relations and refusals on the embedded engine, and the scenarios that hold them."""

from pathlib import Path

import pytest

from harness.report import Report
from harness.rundir import RunContents, read_run
from harness.transcript import CellRecord
from scenarios import scenario_paths
from tests.end_to_end.comparisons import Compare

LINKS = """
schema = 1
name = "links"
context_tokens = 96

[defaults]
max_tokens = 8

[[conversation]]
id = "talk"

[[conversation.turn]]
user = "Tell me a story about a fox."
max_tokens = 60
cancel_after_tokens = 2

[[conversation.turn]]
user = "Tell me a story about a fox."
after = 0

[[conversation.turn]]
user = "What is ice?"

[[conversation.turn]]
user = "Tell me a story about a fox."
after = 0
same_as = [2]

[[conversation]]
id = "parts"

[[conversation.turn]]
prompt = "[gMASK]<sop><|user|>Give me a list of 5 birds.<|assistant|><think></think>"
caps = "grid"

[[conversation.turn]]
append = ""

[[conversation.turn]]
prompt = "[gMASK]<sop><|user|>Give me a list of 5 birds.<|assistant|><think></think>"
max_tokens = 24
same_as = [1, 2]

[[conversation]]
id = "over"

[[conversation.turn]]
user = " and"
repeats = [200]
expect_refusal = true
"""


@pytest.fixture(scope="module")
def linked(compare: Compare, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, RunContents]:
    directory = tmp_path_factory.mktemp("links")
    (directory / "links.toml").write_text(LINKS)
    done = compare(directory / "run", "--json", scenario=directory / "links.toml")
    return Report.from_json(done.stdout), read_run(directory / "run")


def planned(contents: RunContents) -> list[CellRecord]:
    return [record for record in contents.records if record.spec.probe is None]


def test_healthy_engine_keeps_every_relation(linked: tuple[Report, RunContents]) -> None:
    report, _ = linked

    assert report.verdict.status == "pass"
    within = {c.contrast.name: c for c in report.comparison.contrasts if c.contrast.kind == "within"}
    assert {c.state for c in within.values()} == {"identical"}
    assert len(within) == 4


def test_turns_end_as_the_scenario_asks(linked: tuple[Report, RunContents]) -> None:
    _, contents = linked

    for record in planned(contents):
        assert record.failure is None
        finishes = {(turn.conversation, turn.turn): turn.finish for turn in record.turns}
        assert finishes["talk", 0] in {"cancelled", "stop"}
        assert finishes["over.times-200", 0] == "refused"


@pytest.mark.parametrize("name", ["context-end", "hiding-places"])
def test_shipped_scenario_passes_and_reaches_its_places(name: str, compare: Compare, tmp_path: Path) -> None:
    done = compare(tmp_path / "run", "--repetitions", "1", "--json", scenario=scenario_paths()[name])

    assert Report.from_json(done.stdout).verdict.status == "pass"
    for record in planned(read_run(tmp_path / "run")):
        finishes = {turn.finish for turn in record.turns}
        asked = {"context-end": {"length", "refused"}, "hiding-places": {"length", "stop"}}
        assert asked[name] <= finishes


def test_requests_at_once_are_answered_as_each_alone(compare: Compare, tmp_path: Path) -> None:
    done = compare(tmp_path / "run", "--repetitions", "1", "--json", scenario=scenario_paths()["two-slots"])

    report = Report.from_json(done.stdout)
    slots = next(c for c in report.comparison.contrasts if c.contrast.kind == "slots")
    assert (report.verdict.status, slots.state) == ("pass", "identical")
    assert slots.pairs_checked == 7
