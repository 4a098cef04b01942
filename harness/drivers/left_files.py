"""What an engine left in its private model directory: files that are new there, or not what they were."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.transcript import LeftFile

Files = Mapping[str, tuple[int, int, int]]
"""Inode, size in bytes and time of change in ns of each file below a directory, by its name in it."""
LeftCallback = Callable[[tuple[LeftFile, ...]], None]


def ignore_left(files: tuple[LeftFile, ...]) -> None:
    """Do nothing about the files that an engine left."""


def read_files(directory: Path) -> Files:
    """Return the files below a directory; a link stands for the file that it leads to."""
    files = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                status = path.stat()
                place = path.relative_to(directory).as_posix()
                files[place] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return files


def list_left_files(before: Files, after: Files) -> tuple[LeftFile, ...]:
    """Return the files that were written between two readings, by name."""
    return tuple(
        LeftFile(name=name, size_bytes=after[name][1])
        for name in sorted(after)
        if after[name] != before.get(name)
    )
