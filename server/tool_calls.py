"""Reading tool calls in GLM's form out of an answer, as deltas with a stable index.

`<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`, any number of pairs. Values are
raw text; which of them become JSON strings follows from the tool's schema.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from server.json_text import JsonTextError, parse_json
from server.markers import find_first, held_length

CALL, END_CALL = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"
Properties = Mapping[str, Mapping[str, Any]]


class ContentText(NamedTuple):
    """Text of the answer that belongs to no call."""

    text: str


class CallStart(NamedTuple):
    """A call begins; its name is known."""

    call: int
    call_id: str
    name: str


class CallArguments(NamedTuple):
    """More of the JSON text of a call's arguments."""

    call: int
    text: str


ToolEvent = ContentText | CallStart | CallArguments
State = Literal["text", "name", "key", "value"]

# state -> the markers that end it
_ENDS: dict[State, tuple[str, ...]] = {
    "text": (CALL,),
    "name": (KEY, END_CALL),
    "key": (END_KEY, END_CALL),
    "value": (END_VALUE, END_CALL),
}


class ToolCallReader:
    """Takes the content of an answer in pieces and yields text and calls.

    ``parameters`` gives the properties of a tool's schema by its name, None for an unknown tool. White
    space between calls is dropped.
    """

    def __init__(
        self, *, parameters: Callable[[str], Properties | None], new_id: Callable[[int], str]
    ) -> None:
        self._parameters = parameters
        self._new_id = new_id
        self._state: State = "text"
        self._held = ""
        self._key: str | None = None
        self._name = ""
        self._pairs = 0
        self.calls = 0

    def feed(self, text: str) -> Iterator[ToolEvent]:
        """Take more text and yield what is certain."""
        text = self._held + text
        while (hit := find_first(text, _ENDS[self._state])) is not None:
            before, marker = text[: hit[0]], hit[1]
            text = text[hit[0] + len(marker) :]
            yield from self._leave(before, marker)
        keep = 0 if self._state != "text" else len(text) - held_length(text, (CALL,))
        self._held = text[keep:]
        yield from self._content(text[:keep])

    def finish(self) -> Iterator[ToolEvent]:
        """Yield what was held back. A call that broke off before its name was complete is text."""
        held, self._held = self._held, ""
        if self._state == "name":
            held = CALL + held
        if self._state in {"text", "name"}:
            yield from self._content(held)

    def _leave(self, before: str, marker: str) -> Iterator[ToolEvent]:
        if self._state == "text":
            self._state = "name"
            yield from self._content(before)
            return
        if self._state == "name":
            yield self._start(before.strip())
            self._state = "key"
        elif self._state == "key" and marker == END_KEY:
            self._key = before.rpartition(KEY)[2]
            self._state = "value"
        elif self._state == "value" and self._key is not None:
            yield self._argument(self._key, before.partition(VALUE)[2])
            self._state, self._key = "key", None
        if marker == END_CALL:
            yield self._end()

    def _content(self, text: str) -> Iterator[ToolEvent]:
        if text and not (self.calls and text.isspace()):
            yield ContentText(text)

    def _start(self, name: str) -> CallStart:
        self._name, self._pairs = name, 0
        self.calls += 1
        index = self.calls - 1
        return CallStart(index, self._new_id(index), name)

    def _argument(self, key: str, text: str) -> CallArguments:
        schema = (self._parameters(self._name) or {}).get(key, {})
        lead = ", " if self._pairs else "{"
        self._pairs += 1
        pair = f"{lead}{json.dumps(key, ensure_ascii=False)}: {argument_json(text, schema)}"
        return CallArguments(self.calls - 1, pair)

    def _end(self) -> CallArguments:
        self._state, self._key = "text", None
        return CallArguments(self.calls - 1, "}" if self._pairs else "{}")


def argument_json(text: str, schema: Mapping[str, Any]) -> str:
    """Return a value as JSON: a string when its schema says so or it is no JSON, else what the text says."""
    if is_text_schema(schema):
        return json.dumps(text, ensure_ascii=False)
    try:
        return json.dumps(parse_json(text), ensure_ascii=False)
    except JsonTextError:
        return json.dumps(text, ensure_ascii=False)


def is_text_schema(schema: Mapping[str, Any]) -> bool:
    """Say whether values of a schema are strings and nothing else, which GLM writes raw."""
    if "type" in schema:
        return bool(schema["type"] == "string")
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    return isinstance(choices, list) and bool(choices) and all(isinstance(one, str) for one in choices)
