"""The grammar of a scenario, and whether a text is in its language.

The checkers do no IO: what a schema refers to is looked up in the schema alone. The libraries are imported
at the first grammar, so that a run without one starts quickly.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from engine_bindings.binding import GrammarKind
from engine_bindings.wire.limits import DEFAULT_LIMITS

Checker = Callable[[bytes], str]
"""Takes an answer and returns why it is not in the language, or an empty text when it is."""

MAX_REASON_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What the answers of a scenario are to be like.

    Attributes:
        kind: ``schema`` is a JSON Schema, ``gbnf`` a grammar in GBNF.
        text: the schema or the grammar.
        binds: the engine must enforce it. Otherwise it is a source of drafts, and an answer may leave it.
    """

    kind: GrammarKind
    text: str
    binds: bool = True

    def is_for(self, depth: int) -> bool:
        """Say whether arms of that depth get it: one that only drafts is speculation, and off at depth 0."""
        return self.binds or depth > 0


def build_checker(kind: GrammarKind, text: str) -> Checker:
    """Return the checker of a grammar. Raises ValueError when ``text`` is none, with the reason."""
    size = len(text.encode("utf-8"))
    if size > DEFAULT_LIMITS.max_grammar_bytes:
        raise ValueError(f"{size:,} bytes, the protocol allows {DEFAULT_LIMITS.max_grammar_bytes:,}")
    return _build_schema_checker(text) if kind == "schema" else _build_gbnf_checker(text)


def _build_schema_checker(text: str) -> Checker:
    from jsonschema.exceptions import SchemaError, best_match  # noqa: PLC0415 - slow to import
    from jsonschema.validators import Draft202012Validator, validator_for  # noqa: PLC0415 - the same
    from referencing import Registry  # noqa: PLC0415 - the same

    schema = _parse_json(text)
    if not isinstance(schema, dict):
        raise ValueError("the schema must be a JSON object")
    validator_class = validator_for(schema, default=Draft202012Validator)
    try:
        validator_class.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"not a JSON Schema: {_shorten(error.message)} at {error.json_path}") from error
    _resolve_references(schema)
    # A registry without a way to retrieve anything: no reference ever leads to a file or a network.
    validator = validator_class(schema, registry=Registry())

    def check(answer: bytes) -> str:
        try:
            value = _parse_json(answer)
        except ValueError as error:
            return str(error)
        fault = best_match(validator.iter_errors(value))
        return "" if fault is None else f"{_shorten(fault.message)} at {fault.json_path}"

    return check


def _parse_json(text: str | bytes) -> Any:
    """Parse strict JSON: no NaN, no infinity. Raises ValueError."""
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise ValueError("not JSON: nested too deeply") from error
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")
        raise ValueError(f"not JSON: {said} at character {error.pos}") from error


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"not JSON: {word} is no JSON number")


def _resolve_references(schema: dict[str, object]) -> None:
    """Check that every reference leads to a place of the schema itself. Raises ValueError."""
    from referencing import Registry, Resource  # noqa: PLC0415 - slow to import
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - the same
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - the same

    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().resolver_with_root(root)
    for reference in _find_references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            message = f"the reference {reference!r} leads out of the schema or nowhere"
            raise ValueError(message) from error


def _find_references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield reference
        for item in value.values():
            yield from _find_references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _find_references(item)


def _build_gbnf_checker(text: str) -> Checker:
    from llguidance import LLMatcher, LLTokenizer  # noqa: PLC0415 - slow to import
    from llguidance.gbnf_to_lark import gbnf_to_lark  # noqa: PLC0415 - the same

    try:
        # Tokens of one byte each, so that the check does not depend on any model's vocabulary.
        matcher = LLMatcher(LLTokenizer("byte"), gbnf_to_lark(text), log_level=0)
    except Exception as error:  # what the library's converter raises is a bare Exception
        raise ValueError(f"not GBNF: {_shorten(str(error)) or 'the text ends inside a rule'}") from error
    if matcher.get_error():
        raise ValueError(f"not GBNF: {_shorten(matcher.get_error())}")

    def check(answer: bytes) -> str:
        matcher.reset()
        taken = matcher.try_consume_tokens(list(answer))
        if taken < len(answer):
            return f"leaves the grammar at byte {taken}"
        return "" if matcher.is_accepting() else "ends before the grammar does"

    return check


def _shorten(text: str) -> str:
    line = " ".join(text.split("\n", 1)[0].split())
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 3]}..."
