"""Renders a scenario as the text of a scenario file; parsing that text gives the same scenario again.

A grammar is a file beside it: :func:`name_grammar_file`.
"""

import re
from collections.abc import Iterator, Sequence

from engine_bindings.binding import GrammarKind
from harness.scenario import Conversation, Scenario, Turn

# What a basic string of TOML cannot hold as it is: quote, backslash and the control characters.
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_GRAMMAR_KEYS: dict[GrammarKind, str] = {"schema": "schema_file", "gbnf": "grammar_file"}
_GRAMMAR_ENDINGS: dict[GrammarKind, str] = {"schema": ".schema.json", "gbnf": ".gbnf"}
_SWEPT_KEYS = {"stop": "stops", "repeat": "repeats"}


def render_scenario(scenario: Scenario) -> str:
    """Return the text of a scenario file."""
    parts = ["\n".join(_top_lines(scenario))]
    for conversation in scenario.conversations:
        parts.append("\n".join(_conversation_lines(conversation)))
        parts += ["\n".join(("[[conversation.turn]]", *_turn_lines(turn))) for turn in conversation.turns]
    return "\n\n".join(parts) + "\n"


def name_grammar_file(scenario: Scenario) -> str:
    """Return the name under which the text of the scenario's grammar must lie; empty without a grammar."""
    if scenario.grammar is None:
        return ""
    return f"{scenario.name}{_GRAMMAR_ENDINGS[scenario.grammar.kind]}"


def quote_text(text: str) -> str:
    r"""Return ``text`` as a basic string of TOML.

    >>> print(quote_text('a "b"\n'))
    "a \"b\"\n"
    """
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    return _SHORT.get(match[0], f"\\u{ord(match[0]):04x}")


def _quote_list(values: Sequence[str | int]) -> str:
    return f"[{', '.join(quote_text(v) if isinstance(v, str) else str(v) for v in values)}]"


def _top_lines(scenario: Scenario) -> Iterator[str]:
    yield "schema = 1"
    yield f"name = {quote_text(scenario.name)}"
    yield f"title = {quote_text(scenario.title)}"
    yield f"description = {quote_text(scenario.description)}"
    if scenario.entry != "prompt":
        yield f"entry = {quote_text(scenario.entry)}"
    if scenario.context_tokens is not None:
        yield f"context_tokens = {scenario.context_tokens}"
    if scenario.slots != 1:
        yield f"slots = {scenario.slots}"
    if scenario.grammar is not None:
        yield f"{_GRAMMAR_KEYS[scenario.grammar.kind]} = {quote_text(name_grammar_file(scenario))}"
        if not scenario.grammar.binds:
            yield "grammar_binds = false"
    if scenario.temperature or scenario.top_p != 1:
        yield f"\n[defaults]\ntemperature = {float(scenario.temperature)}\ntop_p = {float(scenario.top_p)}"


def _conversation_lines(conversation: Conversation) -> Iterator[str]:
    yield "[[conversation]]"
    yield f"id = {quote_text(conversation.id)}"
    yield f"class = {quote_text(conversation.category)}"
    if conversation.system is not None:
        yield f"system = {quote_text(conversation.system)}"
    if conversation.slot:
        yield f"slot = {conversation.slot}"


def _turn_lines(turn: Turn) -> Iterator[str]:
    yield f"{turn.kind} = {quote_text(turn.text)}"
    yield from _end_lines(turn)
    for key in ("after", "cancel_after_tokens", "expect_prompt_tokens", "expect_cached_tokens"):
        if getattr(turn, key) is not None:
            yield f"{key} = {getattr(turn, key)}"
    for key in ("stop", "same_as", "expect"):
        if getattr(turn, key):
            yield f"{key} = {_quote_list(getattr(turn, key))}"
    if turn.refusal != "never":
        yield f"{'expect_refusal' if turn.refusal == 'expected' else 'may_refuse'} = true"


def _end_lines(turn: Turn) -> Iterator[str]:
    sweep = turn.sweep
    if sweep is not None and sweep.kind == "cap":
        yield f"caps = {quote_text(str(sweep.values[0]))}"
        return
    yield f"max_tokens = {turn.max_tokens}"
    if sweep is not None and sweep.kind == "draw":
        yield f"draws = {sweep.values[0]}"
    elif sweep is not None:
        yield f"{_SWEPT_KEYS[sweep.kind]} = {_quote_list(sweep.values)}"
