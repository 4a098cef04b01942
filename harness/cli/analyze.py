"""``coli-ab analyze``: judge what a run measured anew, without an engine."""

import argparse
from pathlib import Path

from harness.cli.certify import withdraw_certificate
from harness.cli.results import analyze_run, print_report


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "analyze",
        help="judge a run's records anew",
        description="Computes comparison, verdict and report of a run anew from its cells.jsonl: after an"
        " interruption, a crash, or with a newer version. Exit status: the verdict's.",
    )
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="directory of the run")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    report = analyze_run(arguments.run_directory)
    withdraw_certificate(report, arguments.run_directory)
    print_report(report, "json" if arguments.json else "text")
    return report.verdict.exit_status
