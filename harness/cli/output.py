"""Writes a command's result on stdout, also when its reader has gone."""

import os
import sys


def write_result(text: str) -> None:
    """Write ``text`` on stdout. A reader that has left (``| head``) does not change the exit status."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
