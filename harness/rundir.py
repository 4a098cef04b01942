"""The run directory: what is written where, and reading it back, also after the harness was killed."""

import contextlib
import errno
import fcntl
import io
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.errors import RunDirectoryError, StorageError, UsageError
from engine_bindings.regular_file import read_regular
from harness.environment import BuildAfter, Environment, EnvironmentAfter
from harness.plan import CellSpec, Plan
from harness.record_json import from_json, to_json
from harness.run_checks import find_plan_problem, find_record_problem
from harness.transcript import CellRecord

PLAN = "plan.json"
ENVIRONMENT = "environment.json"
ENVIRONMENT_AFTER = "environment_after.json"
CELLS = "cells.jsonl"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def create_run_directory(out: Path | None, *, run_id: str, runs: Path = Path("runs")) -> "RunDirectory":
    """Create the directory of a new run: ``out``, or ``runs/<run_id>``. No other run writes there meanwhile.

    Raises:
        UsageError: ``out`` exists and is not an empty directory, cannot be made or written to, or another run
            is writing there.
    """
    path = runs / run_id if out is None else out
    try:
        path.mkdir(parents=True, exist_ok=True)
        directory = RunDirectory(path)
        directory.lock()
        occupied = any(path.iterdir())
    except OSError as error:
        raise UsageError(
            f"cannot make the run directory {str(path)!r}: {error.strerror}", hint="name another with --out"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(
            f"the run directory {str(path)!r} cannot be written to", hint="name another with --out"
        )
    if occupied:
        raise UsageError(
            f"the run directory {str(path)!r} is not empty",
            hint="a run is never written over; name a new one",
        )
    return directory


def reopen_run_directory(path: Path) -> "RunDirectory":
    """Open the directory of a run to go on with it, and keep other processes from doing so too.

    Raises:
        UsageError: a process is writing there.
        RunDirectoryError: it cannot be opened.
    """
    directory = RunDirectory(path)
    try:
        directory.lock()
    except OSError as error:
        raise RunDirectoryError(f"{path}: {error.strerror}", hint="check its permissions") from error
    return directory


class _WholeWrites(io.FileIO):
    """A file without a buffer, so that a full disk shows at the write and not again when it is closed."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write all of ``data``, also where the system takes a part of it only."""
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, complete or not at all. Raises OSError."""
    part = path.with_name(path.name + ".part")
    try:
        with _WholeWrites(part, "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


class RunDirectory:
    """Writes the files of one run. A write replaces a whole file, but for the cells, which are appended.

    Every method that writes raises StorageError where the disk does not take it; what was there stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def lock(self) -> None:
        """Keep other processes from writing here as long as this object is there.

        Two runs in one directory would give every cell twice, and none of it could be judged.

        Raises:
            UsageError: another process holds it.
            OSError: the directory cannot be opened.
        """
        # The system takes the lock back with the descriptor, also after kill -9; engines do not inherit it.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another coli-ab is writing to the run directory {str(self.path)!r}",
                hint="wait until it has ended, or end it; then coli-ab compare --resume goes on",
            ) from error
        except OSError:
            return  # a file system without locks

    def drop_cut_line(self) -> None:
        """Remove a last record that was cut short. Raises RunDirectoryError."""
        file = self.path / CELLS
        try:
            if file.exists():
                data = read_regular(file)
                whole = data.rfind(b"\n") + 1
                if whole < len(data):
                    os.truncate(file, whole)
        except OSError as error:
            raise RunDirectoryError(f"{file}: {error.strerror}", hint="check its permissions") from error

    def write_plan(self, plan: Plan) -> None:
        """Write what will be run."""
        self.write_text(PLAN, to_json(plan, indent=2))

    def write_environment(self, environment: Environment) -> None:
        """Write on what it is run."""
        self.write_text(ENVIRONMENT, to_json(environment, indent=2))

    def add_builds_after(self, builds: Iterable[BuildAfter]) -> None:
        """Write down what the builds are now that the run has ended; what earlier ends showed stays."""
        earlier = _read_after(self.path)
        known = earlier.builds if earlier else ()
        after = EnvironmentAfter(builds=(*known, *(build for build in builds if build not in known)))
        self.write_text(ENVIRONMENT_AFTER, to_json(after, indent=2))

    def write_scenario(self, name: str, files: Mapping[str, str]) -> None:
        """Write a copy of a scenario: its file and those it reads, by their relative names."""
        for file, text in files.items():
            self.write_text(f"scenarios/{name}/{file}", text)

    def write_value(self, name: str, value: object) -> None:
        """Write the value of one stage as JSON."""
        self.write_text(name, to_json(value, indent=2))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, complete or not at all."""
        path = self.path / name
        with self._saying(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, (text if text.endswith("\n") else text + "\n").encode())

    def append_cell(self, record: CellRecord) -> None:
        """Append one record and wait until it is on the disk; a part of one is taken back."""
        path = self.path / CELLS
        line = record.to_json().encode() + b"\n"
        with self._saying(path), _WholeWrites(path, "ab") as file:
            before = file.tell()
            try:
                file.write(line)
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(before)
                raise

    def open_stderr(self, spec: CellSpec, attempt: int = 0) -> io.FileIO:
        """Open the file for the stderr of a cell's engine."""
        path = self.path / self.stderr_name(spec, attempt)
        with self._saying(path):
            path.parent.mkdir(exist_ok=True)
            return _WholeWrites(path, "wb")

    @contextlib.contextmanager
    def _saying(self, path: Path) -> Iterator[None]:
        """Say of an error of the system which file it hit, and how to go on."""
        try:
            yield
        except OSError as error:
            remedy = "make room" if error.errno in _FULL else "have it take what is written"
            resume = f"coli-ab compare --resume {self.path}"
            measured = (self.path / CELLS).is_file()
            raise StorageError(
                f"cannot write {path}: {error.strerror or error}",
                hint=f"what was measured before is on disk; {remedy}, then {resume}"
                if measured
                else f"{remedy}, or name another place with --out",
            ) from error

    def stderr_name(self, spec: CellSpec, attempt: int = 0) -> str:
        """Return that file's path inside the run directory."""
        # Characters that Windows refuses in a name are refused in the artifacts of a CI system too.
        arm = spec.arm.label.replace("/", "-").replace(":", ".").replace("?", "any")
        name = f"{arm}.{spec.scenario}.{spec.repetition}"
        if spec.probe is not None:
            mark = spec.probe
            name += f".{mark.kind}.{mark.conversation}.{mark.turn}.{mark.offset_bytes}"
        return f"stderr/{name}.attempt-{attempt}.txt" if attempt else f"stderr/{name}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContents:
    """A run read back. ``notes`` say what is missing from it; ``after`` is None where it did not end."""

    path: Path
    plan: Plan
    environment: Environment
    records: tuple[CellRecord, ...]
    notes: tuple[str, ...]
    after: EnvironmentAfter | None = None


def read_run(path: Path) -> RunContents:
    """Read what a run measured.

    Raises:
        RunDirectoryError: there is no run at ``path``, or a file of it is broken.
    """
    plan = from_json(Plan, _read_file(path, PLAN), place=str(path / PLAN))
    environment = from_json(Environment, _read_file(path, ENVIRONMENT), place=str(path / ENVIRONMENT))
    records, notes = _read_cells(path)
    _check(path / PLAN, find_plan_problem(plan))
    _check(path / CELLS, find_record_problem(plan, records))
    missing = len(set(plan.cells) - {record.spec for record in records})
    if missing > 0:
        notes += (f"{missing} of {len(plan.cells)} cells were not run",)
    return RunContents(
        path=path, plan=plan, environment=environment, records=records, notes=notes, after=_read_after(path)
    )


def _read_after(path: Path) -> EnvironmentAfter | None:
    if not (path / ENVIRONMENT_AFTER).exists():
        return None
    return from_json(
        EnvironmentAfter, _read_file(path, ENVIRONMENT_AFTER), place=str(path / ENVIRONMENT_AFTER)
    )


def _check(file: Path, problem: str | None) -> None:
    if problem is not None:
        raise RunDirectoryError(
            f"{file}: {problem}", hint="it was edited, or files of several runs were mixed; run it again"
        )


def _read_cells(path: Path) -> tuple[tuple[CellRecord, ...], tuple[str, ...]]:
    if not (path / CELLS).exists():
        return (), ()
    *lines, rest = _read_file(path, CELLS).split(b"\n")
    records = tuple(
        CellRecord.from_json(line, place=f"{path / CELLS} line {number}")
        for number, line in enumerate(lines, start=1)
    )
    notes = (f"{CELLS}: the last line was cut short and is left out",) if rest else ()
    return records, notes


def _read_file(path: Path, name: str) -> bytes:
    try:
        return read_regular(path / name)
    except OSError as error:
        raise RunDirectoryError(
            f"{path / name}: {error.strerror}",
            hint="name the directory of a run, for example one below runs/",
        ) from error
