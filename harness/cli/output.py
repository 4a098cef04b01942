"""Writes results on stdout and notes on stderr, also when nobody reads them any more."""

import contextlib
import os
import sys

from engine_bindings.errors import StorageError


def prepare_streams() -> None:
    """Let a terminal of any encoding show a report: what it cannot show is written as an escape."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as with ``>&-``
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the process
        reconfigure = getattr(getattr(sys, name), "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def write_result(text: str) -> None:
    """Write ``text`` on stdout. A reader that has left (``| head``) does not change the exit status.

    Raises:
        StorageError: stdout does not take it, for example as its disk is full.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_stdout()
    except OSError as error:
        _leave_stdout()
        raise StorageError(
            f"cannot write the result on stdout: {error.strerror}", hint="make room, or send it elsewhere"
        ) from error


def _leave_stdout() -> None:
    # The interpreter flushes once more at its end, which must not complain.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_note(text: str) -> None:
    """Write ``text`` on stderr; a reader that has left, or a full disk, does not end a measurement."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
