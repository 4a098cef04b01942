"""Where ``coli-ab`` begins: it loads the command line, and Ctrl-C while it does ends it quietly."""

import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130


def heed_termination() -> None:
    """Let SIGTERM interrupt a run as Ctrl-C does, so that a job that is cancelled reports what it measured.

    A runner sends SIGINT first and SIGTERM a few seconds later: what is being written then is not
    interrupted once more.
    """
    interrupted = False

    def interrupt(number: int, _: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted and number == signal.SIGTERM:
            return
        interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    # A command in the background of a shell was told not to heed it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def main() -> int:
    """Run one command and return its exit status."""
    try:
        heed_termination()
        from harness.cli import main as run_command  # noqa: PLC0415 - an interruption of it is to be caught

        return run_command()
    except KeyboardInterrupt:
        sys.stderr.write("coli-ab: interrupted\n")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
