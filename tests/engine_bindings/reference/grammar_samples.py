"""Grammars and prompts for the shipped checkpoint; every answer they allow is short."""

import json
from typing import Any

from engine_bindings.reference.rules import Rules

RIGHT = Rules()  # the real stop set: a constrained answer ends where its grammar does
KINDS = ("fox", "river", "stone")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": list(KINDS)},
        "note": {"type": "string", "maxLength": 3},
        "marks": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1},
    },
    "required": ["kind", "note", "marks"],
    "additionalProperties": False,
}
SCHEMA_TEXT = json.dumps(SCHEMA).encode()
GBNF = b'root ::= "{\\"name\\":\\"" ("fox" | "river") "\\",\\"size\\":" [0-9] [0-9]? "}"'
LARK = (
    b'%lark\nstart: <tool_call> "look" <arg_key> "at" </arg_key> <arg_value> SIZE </arg_value> </tool_call>\n'
)
LARK += b"SIZE: /[0-9]{1,3}/\n"
CAP = 120


def make_prompt(number: int, *, think: bool = False) -> bytes:
    """A prompt that the model may answer in any way."""
    asks = ("Write JSON for number", "Count to", "Tell me about day", "List the names of", "Copy this:")
    opening = b"<think>" if think else b"<think></think>"
    return b"[gMASK]<sop><|user|>%b %d<|assistant|>%b" % (asks[number % 5].encode(), number, opening)


def assert_valid(answer: bytes) -> None:
    """The answer is a document of SCHEMA."""
    value = json.loads(answer)
    assert list(value) == list(SCHEMA["properties"])
    assert value["kind"] in KINDS
    assert len(value["note"]) <= 3
    assert all(isinstance(mark, bool) for mark in value["marks"])
    assert len(value["marks"]) <= 1
