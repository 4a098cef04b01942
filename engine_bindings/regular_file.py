"""Opens regular files only: a pipe would wait for a writer for ever, and a device may never end."""

import errno
import io
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading. A link to a regular file is one.

    Raises:
        OSError: it cannot be opened, or is no regular file; ``strerror`` says what it is.
    """
    # Without O_NONBLOCK the open itself would wait where a pipe lies.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def read_regular(path: Path, *, limit_bytes: int | None = None) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: as :func:`open_regular`, or it has more than ``limit_bytes``.
    """
    with open_regular(path) as file:
        if limit_bytes is None:
            return file.read()
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"more than {limit_bytes:,} bytes", str(path))
    return data


def check_regular(path: Path) -> None:
    """Raise OSError where a path is no regular file."""
    _check_regular(path, path.stat())


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"{kind}, and not a regular file", str(path))
