"""The grammars are checked with the library that enforces them."""

import json
import re
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine_bindings.wire.mux_extension import LARK_PREFIX
from server.api_errors import ApiError
from server.constraints import build_constraint
from server.request_bodies import ChatBody, parse_body
from tests.server.server_builders import MODEL_DIR

llguidance = pytest.importorskip("llguidance")
DESCRIPTION = (MODEL_DIR / "tokenizer.json").read_text("utf-8")
TOKENIZER = Tokenizer.from_str(DESCRIPTION)

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["metric", "imperial"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]


def pair(key: str, value: str) -> str:
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


def accepts(grammar: bytes, text: str) -> bool:
    source = (
        grammar.removeprefix(LARK_PREFIX).decode()
        if grammar.startswith(LARK_PREFIX)
        else llguidance.LLMatcher.grammar_from_json_schema(grammar.decode())
    )
    tokenizer = llguidance.LLTokenizer(DESCRIPTION)
    assert not llguidance.LLMatcher.validate_grammar(source, tokenizer)
    matcher = llguidance.LLMatcher(tokenizer, source)
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def build(*, reasons: bool = False, **parameters: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **parameters}
    return build_constraint(parse_body(ChatBody, json.dumps(body).encode()), reasons=reasons)


CALL = "<tool_call>get_weather" + pair("city", "New York, 12°") + "</tool_call>"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (CALL, True),
        (
            f"<tool_call>get_weather{pair('city', 'x')}{pair('days', '3')}{pair('tags', '[1]')}</tool_call>",
            False,
        ),
        ("<tool_call>get_weather" + pair("city", "x") + pair("tags", '["a"]') + "</tool_call>", True),
        ("<tool_call>get_weather" + pair("city", "x") + pair("unit", "metric") + "</tool_call>", True),
        ("<tool_call>now</tool_call>", True),
        ("<tool_call>get_weather</tool_call>", False),
        ("<tool_call>get_weather" + pair("city", "x") + pair("days", "9") + "</tool_call>", False),
        ("<tool_call>get_weather" + pair("city", "x") + pair("unit", "none") + "</tool_call>", False),
        ("<tool_call>other</tool_call>", False),
        ("Hello", False),
        (CALL + "x", False),
    ],
)  # fmt: skip
def test_a_required_call(text: str, allowed: bool) -> None:
    assert accepts(build(tools=TOOLS, tool_choice="required"), text) is allowed


def test_a_call_by_name() -> None:
    grammar = build(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "now"}})
    assert accepts(grammar, "<tool_call>now</tool_call>")
    assert not accepts(grammar, CALL)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def test_a_schema() -> None:
    grammar = build(response_format=FORMAT)
    assert accepts(grammar, '{"a": 1}')
    assert not accepts(grammar, '{"b": 1}')


def test_reasoning_before_the_constrained_part_is_free() -> None:
    grammar = build(response_format=FORMAT, reasons=True)
    assert accepts(grammar, 'so {"b": < 1}, 世 then\nthat</think>{"a": 1}')
    assert not accepts(grammar, 'so</think>{"b": 1}')
    assert not accepts(grammar, 'so</think>{"a":  1}')
    assert not accepts(grammar, '{"a": 1}')
    assert accepts(build(tools=TOOLS, tool_choice="required", reasons=True), "hm</think>" + CALL)


def test_no_constraint() -> None:
    assert build() == build(tools=TOOLS) == build(response_format={"type": "text"}) == b""
    assert build(grammar='root ::= "a"') == b'root ::= "a"'


@pytest.mark.parametrize(
    ("parameters", "keyword"),
    [({"properties": {"a": {"type": "string", "pattern": "x"}}}, "pattern"),
     ({"properties": {"a": {"type": "string", "maxLength": 3}}}, "maxLength"),
     ({"properties": {"a": {"type": "string", "format": "date"}}}, "format"),
     ({"properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/A"}}}}, "$ref"),
     ({"$defs": {"A": {}}}, "$defs"), ({"anyOf": [{}]}, "anyOf"), ({"minProperties": 1}, "minProperties"),
     ({"required": ["b"]}, "required"), ({"type": "array"}, "type"),
     ({"properties": {"a": False}}, "properties")],
)  # fmt: skip
def test_what_a_forced_call_would_not_obey_is_refused(parameters: dict[str, Any], keyword: str) -> None:
    fine = {"type": "function", "function": {"name": "fine"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parameters}}}
    values = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [fine, tool]}
    with pytest.raises(ApiError, match=re.escape(keyword)) as caught:
        build_constraint(ChatBody.model_validate(values | {"tool_choice": "required"}), reasons=False)
    assert (caught.value.code, caught.value.param) == ("unsupported", "tools.1.function.parameters")
    assert build_constraint(ChatBody.model_validate(values), reasons=False) == b""
    named = {"type": "function", "function": {"name": "fine"}}
    assert build_constraint(ChatBody.model_validate(values | {"tool_choice": named}), reasons=False)
