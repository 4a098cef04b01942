"""Whether a text is in the language of a schema or of a GBNF grammar, and what is no grammar at all."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.grammar import Grammar, build_checker

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"$ref": "#/$defs/word"}, "count": {"type": "integer", "minimum": 1}},
        "required": ["name", "count"],
        "additionalProperties": False,
        "$defs": {"word": {"type": "string", "minLength": 1}},
    }
)
GBNF = 'root ::= "a" ("é" | "b")+ end?\nend ::= "!"\n'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'{"name": "Ida", "count": 3}', ""),
        (b' \n{"count":3,"name":"\\u00e9"}\n', ""),
        (b'{"name": "Ida", "count": 0}', "0 is less than the minimum of 1 at $.count"),
        (b'{"name": "", "count": 1}', "at $.name"),
        (b'{"name": "Ida"}', "'count' is a required property at $"),
        (b'{"name": "Ida", "count": 1, "age": 2}', "Additional properties"),
        (b'{"name": "Ida", "count": 1', "not JSON"),
        (b'{"name": "Ida", "count": 1} and more', "not JSON: Extra data at character 28"),
        (b'{"name": "Ida', "not JSON: Unterminated string starting at character 9"),
        (b"", "not JSON"),
        (b'{"name": "Ida", "count": NaN}', "NaN is no JSON number"),
        (b'{"name": "\xe9", "count": 1}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_answer_is_held_against_a_schema(answer: bytes, words: str) -> None:
    reason = build_checker("schema", SCHEMA)(answer)

    assert words in reason
    assert bool(reason) == bool(words)


@given(st.text(min_size=1).filter(lambda text: text.isprintable()), st.integers(min_value=1))
def test_every_value_of_the_language_is_valid_however_it_is_written(name: str, count: int) -> None:
    check = build_checker("schema", SCHEMA)

    for indent in (None, 2):
        assert check(json.dumps({"name": name, "count": count}, indent=indent).encode()) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("true", "must be a JSON object"),
        ('{"type": "text"}', "not a JSON Schema: 'text' is not valid"),
        ('{"$ref": "https://example.org/schema.json"}', "leads out of the schema"),
        (
            '{"items": [{"$ref": "#/$defs/absent"}], "$schema": "http://json-schema.org/draft-07/schema#"}',
            "nowhere",
        ),
        (json.dumps({"description": "x" * (1 << 20)}), "the protocol allows"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        build_checker("schema", text)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("aé", ""),
        ("abé!", ""),
        ("a", "ends before the grammar does"),
        ("", "ends before the grammar does"),
        ("abc", "leaves the grammar at byte 2"),
        ("aé!b", "leaves the grammar at byte 4"),
    ],
)
def test_answer_is_held_against_gbnf(answer: str, reason: str) -> None:
    check = build_checker("gbnf", GBNF)

    assert check(answer.encode()) == reason
    # An answer leaves nothing behind for the next one.
    assert check(b"ab") == ""


@pytest.mark.parametrize("text", ["", "root ::= absent\n", 'root ::= "a', "words"])
def test_what_is_no_gbnf_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not GBNF: ."):
        build_checker("gbnf", text)


def test_grammar_that_only_drafts_is_off_at_depth_0() -> None:
    drafts = Grammar(kind="gbnf", text=GBNF, binds=False)

    assert [drafts.is_for(0), drafts.is_for(3)] == [False, True]
    assert Grammar(kind="gbnf", text=GBNF).is_for(0)
