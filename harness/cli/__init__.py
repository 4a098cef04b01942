"""The command line ``coli-ab``: puts the parts together and turns every outcome into an exit status."""

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

from engine_bindings.errors import ColiAbError, UsageError
from engine_bindings.fingerprint import read_version
from harness.cli import (
    analyze,
    certificate,
    compare,
    doctor,
    export_gguf,
    gate,
    history,
    minimize,
    report,
    scenario,
    scenarios,
    selfcheck,
    serve,
)
from harness.cli.output import prepare_streams, write_note
from harness.cli.parser import CommandParser
from harness.cli.system_errors import check_names, name_system_error

EXIT_USAGE = 2
EXIT_INVALID = 4
EXIT_OUR_BUG = 70
EXIT_INTERRUPTED = 130

# What ``git bisect run`` takes: good, bad, and above 127 the end of the search. Anything else cannot tell.
BISECT_STATUSES = {0: 0, 1: 1, EXIT_INTERRUPTED: EXIT_INTERRUPTED}
BISECT_SKIP = 125

DESCRIPTION = """\
Decides, on a real engine and a real model, whether serve mode gives the same tokens as chat mode,
with speculation off and on, and shows what speculation is worth.
"""

EPILOG = """\
exit statuses:
  0    pass: every contrast was compared and is identical, or differs by proven near-ties only
  1    fail: two valid arms differ, or an arm's counts cannot be right
  2    the command, a scenario or a model directory is wrong
  3    inconclusive: an arm was void or unsteady, or something was not compared
  4    invalid: a cell could not be measured, or what was measured could not be kept
  70   a bug in coli-ab itself
  130  interrupted
With compare --bisect all that are neither pass nor fail are 125: git bisect run skips such a commit.

examples:
  coli-ab compare                          the embedded engine on the quick scenario
  coli-ab compare --scenario agent-loop    another shipped scenario; coli-ab scenarios lists them
  coli-ab report runs/RUN                  show a run again
  coli-ab minimize runs/RUN                shrink what failed in it to a small scenario
  coli-ab gate && coli-ab serve --certificate runs/RUN     serve with MTP what has just been proved
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser: argparse.ArgumentParser = CommandParser(
        prog="coli-ab",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"coli-ab {read_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (
        compare,
        gate,
        doctor,
        report,
        analyze,
        minimize,
        history,
        scenarios,
        scenario,
        selfcheck,
        certificate,
        export_gguf,
        serve,
    ):
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    prepare_streams()
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == [serve.NAME]:
        serve.start_server(given[1:])
    parser = build_parser()
    if not given:
        write_note(parser.format_help())
        return EXIT_USAGE
    arguments = _parse(parser, given)
    status = _run_command(arguments, given)
    return BISECT_STATUSES.get(status, BISECT_SKIP) if getattr(arguments, "bisect", False) else status


def _parse(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    try:
        return parser.parse_args(given)
    except SystemExit as error:
        # A misspelt option says nothing about a commit, and argparse's 2 would be a bad one to git bisect.
        if error.code and "--bisect" in given:
            sys.exit(BISECT_SKIP)
        raise


def _run_command(arguments: argparse.Namespace, given: Sequence[str]) -> int:
    try:
        check_names(given)
        status: int = arguments.run(arguments)
    except ColiAbError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        _complain("interrupted", "")
        return EXIT_INTERRUPTED
    except Exception as error:  # anything unforeseen is our bug and has a status of its own
        if (named := name_system_error(error)) is not None:
            return _refuse(named)
        _complain(
            f"a bug in coli-ab: {type(error).__name__}: {error}", f"the traceback is in {_write_traceback()}"
        )
        return EXIT_OUR_BUG
    return status


def _refuse(error: ColiAbError) -> int:
    _complain(error.message, error.hint)
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_INVALID


def _complain(message: str, hint: str) -> None:
    write_note(f"coli-ab: {message}\n" + (f"  {hint}\n" if hint else ""))


def _write_traceback() -> str:
    """Write the traceback to a file and return its name, or the traceback where none can be made."""
    text = traceback.format_exc()
    try:
        descriptor, name = tempfile.mkstemp(prefix="coli-ab-traceback-", suffix=".txt")
        with os.fdopen(descriptor, "w", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return f"no file, as none can be made:\n{text}"
    return name
