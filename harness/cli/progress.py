"""Shows on stderr how a run goes on: a live line on a terminal, else one line for each finished cell."""

import contextlib
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from engine_bindings.printable import escape_control
from harness.plan import CellSpec, Plan
from harness.transcript import CellRecord, TurnRecord

# Drawing takes milliseconds in which no output is read; twice a second keeps that out of the timings.
REFRESHES_PER_S = 2


class PlainProgress:
    """Writes one line for each finished cell."""

    def __init__(self, plan: Plan, stream: TextIO) -> None:
        self._total = len(plan.cells)
        self._stream = stream
        self._ended = 0

    def __enter__(self) -> "PlainProgress":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cell_started(self, spec: CellSpec) -> None:
        """Say nothing: the cell's end is enough for a log."""

    def output_arrived(self, tokens: int) -> None:
        """Say nothing."""

    def turn_ended(self, record: TurnRecord, cap_tokens: int) -> None:
        """Say nothing."""

    def cell_ended(self, record: CellRecord) -> None:
        """Write the cell's line."""
        if record.spec.probe is None:
            self._ended += record.attempt == 0
            # What is asked once more on its account is not in the plan.
            place = f"[{self._ended}/{self._total}]" if self._ended <= self._total else "[once more]"
        else:
            place = "[probe]"
        # Nobody may be reading, or its disk be full: a measurement goes on all the same.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{place} {describe_cell(record)}\n")
            self._stream.flush()


class LiveProgress:
    """Keeps one line up to date: cell, tokens so far, share of the planned tokens, time left."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._tokens = 0
        self._live_tokens = 0
        self._cell_caps = 0
        self._started: set[CellSpec] = set()
        self._total = plan.worst_case_tokens
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[tokens]} tokens", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=plan.worst_case_tokens, tokens=0)

    def __enter__(self) -> "LiveProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def cell_started(self, spec: CellSpec) -> None:
        """Show the cell's name."""
        self._cell_caps = self._live_tokens = 0
        if spec in self._started and spec.probe is None:
            self._total += self._plan.scenario(spec.scenario).worst_case_tokens
        self._started.add(spec)
        self._progress.update(self._task, description=spec.key, total=self._total)

    def output_arrived(self, tokens: int) -> None:
        """Count up; chat mode shows no token boundaries, so this is corrected at the end of the turn."""
        self._live_tokens += tokens
        self._progress.update(self._task, tokens=self._tokens + self._live_tokens)

    def turn_ended(self, record: TurnRecord, cap_tokens: int) -> None:
        """Take the turn's true count, and its cap as work done."""
        self._tokens += record.emitted_tokens or 0
        self._live_tokens = 0
        self._cell_caps += cap_tokens
        self._progress.update(self._task, advance=cap_tokens, tokens=self._tokens)

    def cell_ended(self, record: CellRecord) -> None:
        """Take what the cell left out as done; print a failed cell's line above."""
        caps = self._plan.scenario(record.spec.scenario).worst_case_tokens
        # Probes are not in the plan's total, and may ask for more than it knows of.
        left_out = max(0, caps - self._cell_caps) if record.spec.probe is None else 0
        self._progress.update(self._task, advance=left_out)
        if record.failure is not None:
            self._progress.console.print(describe_cell(record), markup=False, highlight=False, soft_wrap=True)


def open_progress(plan: Plan, stream: TextIO) -> PlainProgress | LiveProgress:
    """Return the progress that suits ``stream``."""
    console = Console(file=stream)
    return LiveProgress(plan, console) if console.is_terminal else PlainProgress(plan, stream)


def describe_cell(record: CellRecord) -> str:
    """Return one line about a finished cell.

    A failed one gives its reason and the last line of its engine's stderr.
    """
    if record.failure is None:
        tokens = sum(turn.emitted_tokens or 0 for turn in record.turns)
        seconds = (record.ended_ns or 0) / 1e9
        early = "" if record.stop is None else f"; ended early: {record.stop.reason}"
        turns = "1 turn" if len(record.turns) == 1 else f"{len(record.turns)} turns"
        return f"{record.spec.key}: {turns}, {tokens} tokens in {seconds:.1f} s{early}"
    tail = record.failure.stderr_tail
    last = f"; last stderr line: {tail[-1]}" if tail else ""
    return escape_control(f"{record.spec.key}: {record.failure.code}: {record.failure.message}{last}")
