"""Where ``coli-ab`` begins: it loads the command line, and Ctrl-C while it does ends it quietly."""

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run one command and return its exit status."""
    try:
        from harness.cli import main as run_command  # noqa: PLC0415 - an interruption of it is to be caught

        return run_command()
    except KeyboardInterrupt:
        sys.stderr.write("coli-ab: interrupted\n")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
