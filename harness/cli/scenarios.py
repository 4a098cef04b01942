"""``coli-ab scenarios``: list the shipped scenarios."""

import argparse

from tabulate import tabulate

from harness.cli.output import write_result
from harness.cli.scenario_files import ALL, load_scenarios
from harness.plan import DEFAULT_DEPTH
from harness.sweeps import expand_scenario


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "scenarios",
        help="list the shipped scenarios",
        description="Lists the shipped scenarios with their conversations, turns and the most tokens that one"
        " cell decodes at the default depth.",
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    rows = [
        (
            scenario.name,
            len(scenario.conversations),
            scenario.turn_count,
            scenario.worst_case_tokens,
            scenario.title,
        )
        for scenario in (expand_scenario(loaded.scenario, DEFAULT_DEPTH) for loaded in load_scenarios([ALL]))
    ]
    headers = ("name", "conversations", "turns", "tokens at most", "title")
    write_result(tabulate(rows, headers=headers, tablefmt="simple") + "\n")
    return 0
