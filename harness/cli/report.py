"""``coli-ab report``: show a run again from its report.json."""

import argparse
from pathlib import Path

from harness.cli.results import FORMATS, print_report, read_report


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "report",
        help="show the report of a run again",
        description="Shows the report of a run again, exactly as it was. Exit status: the run's.",
    )
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="directory of the run")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="text; json; markdown for a pull request, at most 64 KiB; junit for a CI system (default:"
        " %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="the same as --format json"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    report = read_report(arguments.run_directory)
    print_report(report, arguments.format)
    return report.verdict.exit_status
