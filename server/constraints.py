"""What limits an answer: the grammar for a response format, for a user's grammar, or for a tool that must
be called.

The engine takes GBNF, JSON Schema (starts with `{`) and Lark (starts with `%lark`). Lark is used where
markup has to be a special token, or where a reasoning comes before the constrained part.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine_bindings.wire.mux_extension import LARK_PREFIX
from server.api_errors import invalid, unsupported
from server.request_bodies import ChatBody, FunctionDefinition, NamedTool, ObjectFormat, SchemaFormat
from server.tool_calls import is_text_schema
from server.tool_schema import check_enforced

Schema = Mapping[str, Any]
# Raw text inside the markup, which only the closing marker ends.
_FREE_TEXT = r"FREE_TEXT: /[^<]*/"
# As Python's json.dumps writes, which leaves more of the text forced and no room for endless white space.
JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_REASONING = r"REASONING: /(.|\n)*/"


def build_constraint(body: ChatBody, *, reasons: bool) -> bytes:
    """Return the grammar that the answer must obey, empty for none.

    ``reasons`` says that the answer starts inside its reasoning, which stays free. Raises ApiError for
    combinations that contradict each other.
    """
    schema = _format_schema(body)
    forced = _forced_functions(body)
    if sum((schema is not None, bool(forced), body.grammar is not None)) > 1:
        raise invalid(
            "only one of response_format, grammar and a tool_choice that forces a call can limit an answer",
            param="response_format",
        )
    if body.grammar is not None:
        return _user_grammar(body.grammar, reasons=reasons)
    if forced:
        check_enforced([tool.function for tool in body.tools or ()], forced)
        return _lark(tool_call_rules(forced), reasons=reasons)
    if schema is None:
        return b""
    if reasons:
        return _lark([f"answer: {_embed(schema)}"], reasons=True)
    return _compact(schema).encode()


def constraining_parameter(body: ChatBody) -> str:
    """Return the parameter that build_constraint reads the grammar from."""
    if body.grammar is not None:
        return "grammar"
    return "response_format" if _format_schema(body) is not None else "tool_choice"


def tool_call_rules(functions: Sequence[FunctionDefinition]) -> list[str]:
    """Return Lark rules for exactly one call of one of the functions, in GLM's form."""
    rules = ["answer: " + " | ".join(f"call_{index}" for index in range(len(functions))), _FREE_TEXT]
    for index, function in enumerate(functions):
        rules += _call_rules(index, function)
    return rules


def properties_of(function: FunctionDefinition) -> Mapping[str, Schema]:
    """Return the properties of a function's parameters; an empty mapping when it takes none."""
    properties = (function.parameters or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in properties.items()}


def _call_rules(index: int, function: FunctionDefinition) -> Iterator[str]:
    required = (function.parameters or {}).get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    parts = []
    for place, (name, schema) in enumerate(properties_of(function).items()):
        value = f"value_{index}_{place}"
        pair = f"<arg_key> {_literal(name)} </arg_key> <arg_value> {value} </arg_value>"
        parts.append(pair if name in needed else f"({pair})?")
        yield f"{value}: {_value_rule(schema)}"
    yield f"call_{index}: <tool_call> {_literal(function.name)} {' '.join(parts)} </tool_call>"


def _value_rule(schema: Schema) -> str:
    if not is_text_schema(schema):
        return _embed(schema)
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list) and choices:
        return " | ".join(_literal(str(choice)) for choice in choices)
    return "FREE_TEXT"


def _lark(rules: Sequence[str], *, reasons: bool) -> bytes:
    start = ["start: REASONING </think> answer", _REASONING] if reasons else ["start: answer"]
    return LARK_PREFIX + "\n".join([*start, *rules, ""]).encode()


def _user_grammar(grammar: str, *, reasons: bool) -> bytes:
    if reasons:
        raise unsupported("grammar with reasoning", "switch enable_thinking off", param="grammar")
    if grammar.lstrip().startswith(("{", "%")):
        raise invalid("grammar takes GBNF text; use response_format for a JSON schema", param="grammar")
    return grammar.encode()


def _format_schema(body: ChatBody) -> Schema | None:
    if isinstance(body.response_format, ObjectFormat):
        return {"type": "object"}
    if isinstance(body.response_format, SchemaFormat):
        schema = body.response_format.json_schema.schema_
        if schema is None:
            raise invalid("json_schema without a schema", param="response_format.json_schema.schema")
        return schema
    return None


def _forced_functions(body: ChatBody) -> tuple[FunctionDefinition, ...]:
    functions = tuple(tool.function for tool in body.tools or ())
    choice = body.tool_choice
    if choice == "required":
        if not functions:
            raise invalid("tool_choice 'required' without tools", param="tool_choice")
        return functions
    if isinstance(choice, NamedTool):
        named = tuple(one for one in functions if one.name == choice.function.name)
        if not named:
            raise invalid(
                f"tool_choice names {choice.function.name!r}, which is not in tools", param="tool_choice"
            )
        return named[:1]
    return ()


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else '""'


def _embed(schema: Schema) -> str:
    """Return a schema inside Lark, with the layout that the engine gives to a schema of its own."""
    return f"%json {_compact({'x-guidance': JSON_LAYOUT, **schema})}"


def _compact(schema: Schema) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
