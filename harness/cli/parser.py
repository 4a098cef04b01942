"""The parser of ``coli-ab``: a wrong command line is answered in two lines by the command it was given to."""

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Never, cast


class CommandParser(argparse.ArgumentParser):
    """A parser that names what may have been meant, and leaves out the list of all options.

    The parsers of its subcommands are of the same kind, so a misspelt option is found by the command that it
    was given to and not by ``coli-ab``.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is not known here: nothing is left for the parser above."""
        known, unknown = cast(
            tuple[argparse.Namespace, list[str]],
            super().parse_known_args(args, namespace),
        )
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._guess(unknown[0])}")
        return known, unknown

    def _guess(self, given: str) -> str:
        options = sorted(name for action in self._actions for name in action.option_strings)
        return name_nearest(given.partition("=")[0], options)

    def error(self, message: str) -> Never:
        """Say what is wrong and where help is, and end with the status of a wrong command."""
        self.exit(2, f"{self.prog}: {message}\n  {self.prog} --help shows how it is called\n")


def name_nearest(given: str, known: Sequence[str]) -> str:
    """Return ``; did you mean ...?``, or nothing where no known word is near."""
    near = get_close_matches(given, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
