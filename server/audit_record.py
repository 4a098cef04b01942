"""Keeping the two transcripts of an audit that found a difference, as a scenario that shows it again."""

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.errors import UsageError
from engine_bindings.wire.mux_extension import LARK_PREFIX
from server.job import Job
from server.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both answers to one prompt.

    ``gap`` is the margin of the first difference in logprobs, None when not known. ``cached_tokens`` is how
    much of the prompt the answer found in its slot, None when not reported.
    """

    job: Job
    max_tokens: int
    on: tuple[int, ...]
    off: tuple[int, ...]
    gap: float | None
    cached_tokens: int | None

    @property
    def name(self) -> str:
        """The name of the scenario."""
        return "audit-" + self.job.id.rpartition("-")[2].lower()

    @property
    def obstacles(self) -> tuple[str, ...]:
        """What the scenario cannot hold, so that a run of it may not show the difference again."""
        job = self.job
        found = {
            "its grammar is one that scenarios have no form for": bool(job.grammar) and not self.grammar_key,
            "its grammar began inside a reasoning": bool(job.grammar) and _reasons(job.prompt.text),
            "it ran on behind stop tokens (ignore_eos)": job.ignore_eos,
            f"it used {self.cached_tokens} prompt tokens of earlier requests": bool(self.cached_tokens),
            "its prompt held the text of special tokens": not job.prompt.is_text,
        }
        return tuple(text for text, holds in found.items() if holds)

    @property
    def grammar_key(self) -> str | None:
        """The scenario's key for a file with the grammar; None when there is no grammar or no key for it."""
        grammar = self.job.grammar
        if not grammar or grammar.startswith(LARK_PREFIX):
            return None
        return "schema_file" if grammar.startswith(b"{") else "grammar_file"

    @property
    def grammar_file(self) -> str:
        """The name of that file."""
        return f"{self.name}.{'schema.json' if self.grammar_key == 'schema_file' else 'gbnf'}"


class DifferenceStore:
    """A directory with one scenario file for each difference."""

    def __init__(self, directory: Path, tokens: Tokens) -> None:
        self.directory = directory
        self._tokens = tokens

    def write(self, sides: Sides) -> str:
        """Write a scenario file, and its grammar beside it, and return its path. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if sides.grammar_key is not None:
            _write_whole(self.directory / sides.grammar_file, sides.job.grammar)
        path = self.directory / f"{sides.name}.toml"
        _write_whole(path, self.render(sides).encode())
        return str(path)

    def render(self, sides: Sides) -> str:
        """Return the scenario: the exact prompt, and both answers as comments."""
        return "\n".join(_lines(sides, self._tokens)) + "\n"


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


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _reasons(prompt: str) -> bool:
    return prompt.rstrip().endswith("<think>")


def _lines(sides: Sides, tokens: Tokens) -> Iterator[str]:
    yield from ("schema = 1", f"name = {_quote(sides.name)}")
    yield 'title = "An answer that changed when speculation was switched off"'
    yield f"description = {_quote(_description(sides))}"
    if sides.grammar_key is not None:
        yield from (f"{sides.grammar_key} = {_quote(sides.grammar_file)}", "grammar_binds = true")
    yield ""
    yield from _comments("with speculation", sides.on, tokens)
    yield from _comments("without speculation", sides.off, tokens)
    yield f"# margin of the first difference in logprobs: {sides.gap}"
    if sides.job.grammar and sides.grammar_key is None:
        yield f"# grammar: {_quote(sides.job.grammar.decode())}"
    if not sides.job.prompt.is_text:
        yield "# the prompt held the text of special tokens, which only its ids tell from the tokens:"
        yield f"# {list(sides.job.prompt.ids)}"
    yield from ("", "[defaults]", "temperature = 0.0", f"max_tokens = {sides.max_tokens}", "")
    yield from ("[[conversation]]", f"id = {_quote(sides.name)}", 'class = "audit"', "")
    yield from ("[[conversation.turn]]", f"prompt = {_quote(sides.job.prompt.text)}")


def _description(sides: Sides) -> str:
    place = _first_difference(sides.on, sides.off)
    text = f"First difference at token {place}; see the comments for both answers."
    if sides.obstacles:
        text += f" A run of this file may not show it again: {'; '.join(sides.obstacles)}."
    return text


def _comments(side: str, ids: tuple[int, ...], tokens: Tokens) -> Iterator[str]:
    yield f"# {side}: {_quote(tokens.decode(ids).decode('utf-8', 'replace'))}"
    yield f"# {side}, token ids: {list(ids)}"


def _first_difference(on: tuple[int, ...], off: tuple[int, ...]) -> int:
    pairs = zip(on, off, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(on), len(off)))


def _quote(text: str) -> str:
    # JSON's escapes are TOML's, except that JSON leaves U+007F as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
