"""Keeping the two transcripts of an audit that found a difference, as a scenario that shows it again."""

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.errors import UsageError
from server.job import Job
from server.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both answers to one prompt.

    ``gap`` is the margin of the first difference in logprobs, None when not known.
    """

    job: Job
    max_tokens: int
    on: tuple[int, ...]
    off: tuple[int, ...]
    gap: float | None


class DifferenceStore:
    """A directory with one scenario file for each difference."""

    def __init__(self, directory: Path, tokens: Tokens) -> None:
        self.directory = directory
        self._tokens = tokens

    def write(self, sides: Sides) -> str:
        """Write a scenario file whole or not at all, and return its path. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{_name_of(sides)}.toml"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(self.render(sides), encoding="utf-8")
        os.replace(temporary, path)
        return str(path)

    def render(self, sides: Sides) -> str:
        """Return the scenario: the exact prompt, and both answers as comments."""
        return "\n".join(_lines(_name_of(sides), sides, self._tokens)) + "\n"


def check_writable(directory: Path) -> None:
    """Raise UsageError unless differences can be kept in a directory, which is made if it is not there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UsageError(
            f"--audit-dir {directory}: cannot be written: {error.strerror or error}",
            hint="name a directory that can be written",
        ) from error


def _name_of(sides: Sides) -> str:
    return "audit-" + sides.job.id.rpartition("-")[2].lower()


def _lines(name: str, sides: Sides, tokens: Tokens) -> Iterator[str]:
    place = _first_difference(sides.on, sides.off)
    yield from ("schema = 1", f"name = {_quote(name)}")
    yield 'title = "An answer that changed when speculation was switched off"'
    yield f'description = "First difference at token {place}; see the comments for both answers."'
    yield ""
    yield from _comments("with speculation", sides.on, tokens)
    yield from _comments("without speculation", sides.off, tokens)
    yield f"# margin of the first difference in logprobs: {sides.gap}"
    if not sides.job.prompt.is_text:
        yield "# the prompt held the text of special tokens, which only its ids tell from the tokens:"
        yield f"# {list(sides.job.prompt.ids)}"
    yield from ("", "[defaults]", "temperature = 0.0", f"max_tokens = {sides.max_tokens}", "")
    yield from ("[[conversation]]", f"id = {_quote(name)}", 'class = "audit"', "")
    yield from ("[[conversation.turn]]", f"prompt = {_quote(sides.job.prompt.text)}")


def _comments(side: str, ids: tuple[int, ...], tokens: Tokens) -> Iterator[str]:
    yield f"# {side}: {_quote(tokens.decode(ids).decode('utf-8', 'replace'))}"
    yield f"# {side}, token ids: {list(ids)}"


def _first_difference(on: tuple[int, ...], off: tuple[int, ...]) -> int:
    pairs = zip(on, off, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(on), len(off)))


def _quote(text: str) -> str:
    # JSON's escapes are TOML's, except that JSON leaves U+007F as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
