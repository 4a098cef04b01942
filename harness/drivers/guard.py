"""A small process that outlives a killed harness just long enough to end the engines it left behind.

The harness holds the only write end of the guard's stdin. However the harness ends, that pipe closes; the
guard then kills every process group that is still on its list and removes their private directories. It needs
the standard library only and is run as a script, so that it starts in a few milliseconds.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class ProcessGuard:
    """Starts the guard and tells it which process groups live. Use it as a context manager around a run."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def watch(self, group: int, directory: str) -> None:
        """Put a process group and its private directory on the list."""
        self._tell(f"+ {group} {directory}\n")

    def release(self, group: int) -> None:
        """Take a process group that has ended off the list."""
        self._tell(f"- {group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - opened as a pipe above
        # A guard that somebody killed must not fail the measurement.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def read_survivors(lines: Iterable[str]) -> dict[int, str]:
    """Return the groups that were put on the list and not taken off, with their directories."""
    groups: dict[int, str] = {}
    for line in lines:
        sign, group, *directory = line.rstrip("\n").split(" ", 2)
        if sign == "+":
            groups[int(group)] = directory[0]
        else:
            groups.pop(int(group), None)
    return groups


def end_survivors(groups: dict[int, str]) -> None:
    """Kill the groups and remove their directories."""
    for group, directory in groups.items():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    end_survivors(read_survivors(sys.stdin))
