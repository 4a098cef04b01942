"""``coli-ab serve``: hands over to the reference server, which is a process of its own."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

NAME = "serve"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the help; its options are the server's own (``coli-ab serve --help``)."""
    commands.add_parser(NAME, help="start the OpenAI-compatible server; MTP only on a certificate")


def start_server(options: Sequence[str]) -> NoReturn:
    """Become the server: signals, output and exit status are then its own."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "server", *options])  # noqa: S606 - no shell is wanted
