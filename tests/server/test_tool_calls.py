import json
from typing import Any

import pytest

from server.tool_calls import argument_json


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("12", {"type": "string"}, "12"),
        ("12", {"type": "integer"}, 12),
        ("12", {}, 12),
        ("true", {"type": "boolean"}, True),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("twelve", {"type": "integer"}, "twelve"),
        ("NaN", {"type": "number"}, "NaN"),
        ('"\\ud800"', {"type": "object"}, '"\\ud800"'),
        ("[" * 5000, {"type": "array"}, "[" * 5000),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("1", {"enum": [1, 2]}, 1),
        ("1", {"const": "1"}, "1"),
        ('a "quoted"\nline é', {"type": "string"}, 'a "quoted"\nline é'),
    ],
)
def test_values_become_json(text: str, schema: dict[str, Any], value: object) -> None:
    assert json.loads(argument_json(text, schema)) == value
