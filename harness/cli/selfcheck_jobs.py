"""Runs many independent jobs side by side, shows how they go on, and ends them together."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TextIO, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")
# The main thread looks up so often, so that Ctrl-C is heard on every system.
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[T]):
    """Something to run. ``run`` may raise KeyboardInterrupt when it was told to stop."""

    name: str
    run: Callable[[], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResults(Generic[T]):
    """What the jobs that ended gave, by their names."""

    done: Mapping[str, T]
    interrupted: bool


class PlainJobProgress:
    """Writes one line for each job that ended."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._ended = 0
        self._started = time.monotonic()

    def __enter__(self) -> "PlainJobProgress":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def job_ended(self, line: str) -> None:
        """Write its line, with the time that is left at this rate."""
        self._ended += 1
        elapsed_s = time.monotonic() - self._started
        left_s = elapsed_s / self._ended * (self._total - self._ended)
        with contextlib.suppress(OSError, ValueError):  # nobody may be reading
            self._stream.write(f"[{self._ended}/{self._total}] {line} (about {left_s:.0f} s left)\n")
            self._stream.flush()


class LiveJobProgress:
    """Keeps one line up to date."""

    def __init__(self, total: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> "LiveJobProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def job_ended(self, line: str) -> None:
        """Count it and show its line."""
        self._progress.update(self._task, advance=1, description=line)


def open_job_progress(total: int, stream: TextIO) -> PlainJobProgress | LiveJobProgress:
    """Return the progress that suits ``stream``."""
    console = Console(file=stream)
    return LiveJobProgress(total, console) if console.is_terminal else PlainJobProgress(total, stream)


def run_jobs(
    jobs: Sequence[Job[T]],
    *,
    workers: int,
    stop: threading.Event,
    stream: TextIO,
    describe: Callable[[str, T], str],
) -> JobResults[T]:
    """Run the jobs in their order, ``workers`` at a time.

    On Ctrl-C ``stop`` is set, so that running jobs end soon, and what ended before is returned.
    """
    done: dict[str, T] = {}
    with ThreadPoolExecutor(workers) as pool, open_job_progress(len(jobs), stream) as progress:
        names = {pool.submit(job.run): job.name for job in jobs}
        try:
            for future in _as_they_end(names):
                done[names[future]] = future.result()
                progress.job_ended(describe(names[future], done[names[future]]))
        except BaseException as error:  # whatever ends this, the other runs are told to stop first
            stop.set()
            pool.shutdown(cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):
                raise
            return JobResults(done=done, interrupted=True)
    return JobResults(done=done, interrupted=False)


def _as_they_end(futures: Mapping["Future[T]", str]) -> "Iterator[Future[T]]":
    """Yield futures as they end; the wait is cut into pieces, so that a signal is taken between them."""
    pending = set(futures)
    while pending:
        ended, pending = wait(pending, timeout=POLL_S, return_when=FIRST_COMPLETED)
        yield from ended
