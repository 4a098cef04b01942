"""A small process that outlives a killed harness just long enough to end the engines it left behind.

The harness holds the only write end of the guard's stdin. However the harness ends, that pipe closes; the
guard then kills every process group that is still on its list and removes their private directories. It needs
the standard library only and is run as a script, so that it starts in a few milliseconds.

A process that left the group of its engine is known by its environment, which names the private directory of
its cell. Only Linux shows that; elsewhere, and for a process that cleared its environment, it is left alone.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

PROCESSES = "/proc"
# A process may start another one while the list is read.
STRAY_ROUNDS = 3
NO_GROUP = 0
"""Stands for the group of a directory that is listed by itself."""


class ProcessGuard:
    """Starts the guard and tells it which process groups live. Use it as a context manager around a run."""

    def __enter__(self) -> Self:
        self._directories: dict[int, str] = {}
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
        self._directories[group] = directory
        self._tell(f"+ {group} {directory}\n")

    def release(self, group: int) -> None:
        """Take a process group that has ended off the list, and end what had left it."""
        if (directory := self._directories.pop(group, None)) is not None:
            end_strays(directory)
        self._tell(f"- {group}\n")

    def keep_directory(self, directory: str) -> None:
        """Put a private directory on the list that is about to be made."""
        self._tell(f"+ {NO_GROUP} {directory}\n")

    def drop_directory(self, directory: str) -> None:
        """Take a private directory that was removed off the list."""
        self._tell(f"- {NO_GROUP} {directory}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - opened as a pipe above
        # A guard that somebody killed must not fail the measurement.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def read_survivors(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Return the groups that were put on the list and not taken off, with their directories."""
    groups: dict[tuple[int, str], str] = {}
    for line in lines:
        sign, number, *rest = line.rstrip("\n").split(" ", 2)
        group, directory = int(number), rest[0] if rest else ""
        key = (group, directory if group == NO_GROUP else "")
        if sign == "+":
            groups[key] = directory
        else:
            groups.pop(key, None)
    return [(group, directory) for (group, _), directory in groups.items()]


def end_survivors(groups: Iterable[tuple[int, str]]) -> None:
    """Kill the groups and what had left them, and remove their directories."""
    for group, directory in groups:
        if group != NO_GROUP:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        end_strays(directory)
        shutil.rmtree(directory, ignore_errors=True)


def end_strays(directory: str) -> None:
    """Kill every process whose environment names a private directory."""
    for _ in range(STRAY_ROUNDS):
        found = [*_find_strays(os.fsencode(directory))]
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not found:
            return


def _find_strays(directory: bytes) -> Iterator[int]:
    mark = b"=" + directory + b"\0"
    with contextlib.suppress(OSError):
        for name in os.listdir(PROCESSES):
            if name.isdigit():
                # It may be gone by now, or be somebody else's.
                with contextlib.suppress(OSError), open(f"{PROCESSES}/{name}/environ", "rb") as file:
                    if mark in file.read():
                        yield int(name)


if __name__ == "__main__":
    end_survivors(read_survivors(sys.stdin))
