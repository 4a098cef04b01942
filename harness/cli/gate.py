"""``coli-ab gate``: the shortest comparison that can certify an engine and a model for serving."""

import argparse

from harness.cli import compare

# Short answers of every class, prefix reuse, and every kind of end around the draft block.
GATE_SCENARIOS = ("quick", "caps-and-stops", "interactive")

EPILOG = f"""\
The same as: coli-ab compare --scenario {" ".join(GATE_SCENARIOS)}
A pass writes certificate.json into the run directory; coli-ab serve --certificate RUN takes it from there.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "gate",
        help="the shortest comparison that can certify what is about to be served",
        description="Compares all arms on the shipped scenarios that a certificate needs, and seals a pass.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    compare.add_options(parser)
    parser.set_defaults(run=compare.run, scenario=list(GATE_SCENARIOS))
