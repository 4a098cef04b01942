"""What of a tool's JSON Schema the grammar of a forced call enforces; what it does not is refused."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server.api_errors import unsupported
from server.request_bodies import FunctionDefinition
from server.tool_calls import is_text_schema

# They say something about values and forbid none.
ANNOTATIONS = frozenset(
    {"$comment", "$id", "$schema", "default", "deprecated", "description", "example", "examples", "readOnly",
     "strict", "title", "writeOnly"}
)  # fmt: skip
# A call has no arguments but the ones of `properties`, whatever `additionalProperties` says.
PARAMETERS = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
TEXT = ANNOTATIONS | {"type", "enum", "const"}
# They look at the whole schema, of which the engine sees one property at a time.
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "$defs", "definitions"})


def check_enforced(tools: Sequence[FunctionDefinition], forced: Sequence[FunctionDefinition]) -> None:
    """Raise ApiError for the first keyword of a forced tool that the answer might not obey."""
    for index, function in enumerate(tools):
        keyword = next(_unenforced(function.parameters or {}), None)
        if keyword is not None and function in forced:
            raise unsupported(
                f"the keyword {keyword} in a tool that must be called",
                "the grammar of the call would not enforce it; leave it out, or use tool_choice 'auto'",
                param=f"tools.{index}.function.parameters",
            )


def _unenforced(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from sorted(schema.keys() - PARAMETERS)
    if schema.get("type", "object") != "object":
        yield "type"
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        yield "properties"
        return
    required = schema.get("required", [])
    if not isinstance(required, list) or any(name not in properties for name in required):
        yield "required"
    for value in properties.values():
        yield from _unenforced_value(value)


def _unenforced_value(schema: Any) -> Iterator[str]:
    if schema is False:
        yield "properties"
    elif isinstance(schema, dict) and is_text_schema(schema):
        yield from sorted(schema.keys() - TEXT)
    else:
        yield from _references(schema)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from sorted(value.keys() & REFERENCES)
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
