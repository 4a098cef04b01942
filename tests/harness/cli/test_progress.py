"""Progress: the live line on a terminal, plain lines elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.cli.progress import LiveProgress, PlainProgress, describe_cell, open_progress
from harness.plan import CellSpec, Plan, build_plan
from harness.scenario import parse_scenario
from harness.transcript import CellRecord, Failure, TurnRecord
from tests.harness.cli.cli_samples import SCENARIO


@pytest.fixture
def plan() -> Plan:
    scenario = parse_scenario(SCENARIO, "s.toml", lambda name: Path(name).read_text())
    return build_plan([scenario], repetitions=1)


def record(spec: CellSpec, failure: Failure | None = None) -> CellRecord:
    turn = TurnRecord(
        conversation="talk",
        turn=0,
        entry="prompt",
        prompt=b"",
        text=b"",
        deliveries=(),
        sent_ns=0,
        done_ns=1,
        emitted_tokens=5,
        finish="stop",
    )
    return CellRecord(
        spec=spec, started_at="", argv=(), turns=(turn,), failure=failure, ended_ns=2_500_000_000
    )


def test_stream_that_is_no_terminal_gets_one_line_a_cell(plan: Plan) -> None:
    stream = io.StringIO()
    with open_progress(plan, stream) as progress:
        assert isinstance(progress, PlainProgress)
        for spec in (*plan.cells, plan.cells[0]):
            progress.cell_started(spec)
            progress.output_arrived(1)
            progress.cell_ended(record(spec))

    *lines, more = stream.getvalue().splitlines()
    assert more.startswith("[once more] chat/0")
    assert lines[0] == "[1/4] chat/0 two-turns 0: 1 turn, 5 tokens in 2.5 s"
    assert len(lines) == 4


def test_terminal_sees_the_cell_the_tokens_so_far_and_failures(plan: Plan) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, _environ={})
    failure = Failure(code="engine-died", message="gone", hint="", stderr_tail=("last words",))
    with LiveProgress(plan, console) as progress:
        progress.cell_started(plan.cells[0])
        progress.output_arrived(3)
        progress._progress.refresh()
        assert "3 tokens" in stream.getvalue()
        ended = record(plan.cells[0], failure)
        progress.turn_ended(ended.turns[0], 8)
        progress.cell_ended(ended)
        progress._progress.refresh()

    shown = stream.getvalue()
    assert "chat/0 two-turns 0" in shown
    assert "5 tokens" in shown
    assert "25%" in shown
    assert "engine-died: gone; last stderr line: last words" in shown


def test_failed_cell_is_described_by_its_reason(plan: Plan) -> None:
    failure = Failure(code="engine-start", message="exit status 1", hint="")

    assert describe_cell(record(plan.cells[0], failure)) == (
        "chat/0 two-turns 0: engine-start: exit status 1"
    )


def test_control_characters_of_an_engine_are_shown_as_escapes(plan: Plan) -> None:
    failure = Failure(code="engine-died", message="died", hint="", stderr_tail=("\x1b[2Jgone",))

    assert describe_cell(record(plan.cells[0], failure)).endswith(r"last stderr line: \x1b[2Jgone")
