"""Dialogues and their text in GLM's chat format.

A rendered dialogue is a list of segments. The split says which text the model would have to produce
itself, which decides the weight of a token in training and where the MTP layer's cache would start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BEGIN = "[gMASK]<sop>"
ASSISTANT = "<|assistant|>"
END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|user|>"
END_OF_CALL = "<|observation|>"

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call and what the tool gives back."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A user's text, the calls made for it in order, and the final answer."""

    user: str
    answer: str
    calls: tuple[Call, ...] = ()
    thought: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A whole document. ``last`` is the token that ends its last answer."""

    kind: str
    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[Tool, ...] = ()
    last: str = END_OF_TURN


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text; ``answer`` if the model produces it."""

    text: str
    answer: bool = False


@dataclass(slots=True)
class _Writer:
    segments: list[Segment] = field(default_factory=list)

    def given(self, text: str) -> None:
        self.segments.append(Segment(text))

    def produced(self, text: str) -> None:
        self.segments.append(Segment(text, answer=True))


def tools_text(tools: Sequence[Tool]) -> str:
    """Return the system text that declares tools."""
    declared = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"# Tools\n\nYou can call these functions:\n<tools>\n{declared}\n</tools>\n\nWrite a call as "
        "<tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>"
    )


def call_text(call: Call) -> str:
    """Make a tool call as the model writes it."""
    pairs = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in call.arguments
    )
    return f"<tool_call>{call.name}{pairs}</tool_call>"


def _write_turn(writer: _Writer, turn: Turn, end: str) -> None:
    writer.given(turn.user + ASSISTANT + ("<think>" if turn.thought else "<think></think>"))
    if turn.thought:
        writer.produced(f"{turn.thought}</think>")
    for call in turn.calls:
        writer.produced(call_text(call) + END_OF_CALL)
        writer.given(f"<tool_response>{call.response}</tool_response>{ASSISTANT}<think></think>")
    writer.produced(turn.answer + end)


def render(dialogue: Dialogue) -> list[Segment]:
    """Return the dialogue as segments; every answer ends with the token that stops a chat engine."""
    writer = _Writer()
    head = BEGIN
    if dialogue.tools:
        head += "<|system|>" + tools_text(dialogue.tools)
    if dialogue.system:
        head += "<|system|>" + dialogue.system
    writer.given(head + END_OF_TURN)
    for index, turn in enumerate(dialogue.turns):
        final = index == len(dialogue.turns) - 1
        _write_turn(writer, turn, dialogue.last if final else END_OF_TURN)
    return writer.segments
