"""Grammar texts to matchers: three languages, what is refused and why, and that nothing is imported early."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine_bindings.reference.grammar import GrammarCompiler, GrammarError, is_schema
from tests.engine_bindings.reference.engine_sessions import cached_checkpoint
from tests.engine_bindings.reference.grammar_samples import GBNF, LARK, SCHEMA_TEXT

CHECKPOINT = cached_checkpoint("invariant")


def make_compiler(*, ends: tuple[int, ...] = (623,)) -> GrammarCompiler:
    return GrammarCompiler(CHECKPOINT.model_dir, vocab_size=CHECKPOINT.config.vocab_size, ends=ends)


@pytest.mark.parametrize(
    ("grammar", "text", "rules"),
    [
        (GBNF, b'{"name":"fox","size":12}', 1),
        (b'root ::= "yes" | no\nno ::= "no"', b"no", 2),
        (SCHEMA_TEXT, b'{"kind": "fox", "note": "a", "marks": [true]}', 1),
        (b'  {"type": "integer"}', b"17", 1),
        (LARK, b"<tool_call>look<arg_key>at</arg_key><arg_value>12</arg_value></tool_call>", 2),
        (b'{"type":"object","x-guidance":{"item_separator":","},"properties":{"a":{"const":1},"b":{"const":2}},'
         b'"required":["a","b"],"additionalProperties":false}', b'{"a": 1,"b": 2}', 1),
    ],
    ids=["gbnf", "gbnf-rules", "schema", "schema-behind-blanks", "lark", "schema-with-layout"],
)  # fmt: skip
def test_a_grammar_takes_its_text_and_nothing_more(grammar: bytes, text: bytes, rules: int) -> None:
    compiled = make_compiler().compile(grammar)
    tokens = CHECKPOINT.tokenizer.encode(text)
    matcher = compiled.start()
    assert not matcher.is_accepting()
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()
    assert matcher.try_consume_tokens([5]) == 0
    assert compiled.rules == rules


def test_matchers_of_one_grammar_do_not_know_of_each_other() -> None:
    compiled = make_compiler().compile(GBNF)
    one, other = compiled.start(), compiled.start()
    before = other.compute_bitmask()
    assert one.try_consume_tokens(CHECKPOINT.tokenizer.encode(b'{"name":"')) > 0
    assert other.compute_bitmask() == before != one.compute_bitmask()


def test_a_grammar_is_compiled_once() -> None:
    compiler = make_compiler()
    assert compiler.compile(GBNF) is compiler.compile(GBNF) is not compiler.compile(SCHEMA_TEXT)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (b"root ::= (", "Expected ')'"),
        (b"", "root"),
        (b"hello", "Expected ::="),
        (b"root ::= missing", "missing"),
        (b'start ::= "a"', "root"),
        (b'root ::= "a\\', "ends inside a rule"),
        (b"\xff\xfe", "utf-8"),
        (b"{", "EOF"),
        (b'{"type": "nonsense"}', "nonsense"),
        (b'{"type": "integer", "minimum": 5, "maximum": 3}', "minimum"),
        (b"%lark\nstart: missing", "missing"),
        (b"%lark\n", "Empty"),
        (b"root ::= " + b"(" * 5000, "nested too deeply"),
    ],
)
def test_what_does_not_compile_says_why_in_one_line(grammar: bytes, reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)) as caught:
        make_compiler().compile(grammar)
    assert "\n" not in caught.value.reason
    assert 0 < len(caught.value.reason) <= 200
    assert caught.value.schema == is_schema(grammar)


def test_a_model_that_never_stops_takes_no_grammar() -> None:
    with pytest.raises(GrammarError, match="no stop token"):
        make_compiler(ends=()).compile(GBNF)


def test_an_engine_without_a_grammar_does_not_load_the_library() -> None:
    program = "import sys; from engine_bindings.reference import modes; sys.exit('llguidance' in sys.modules)"
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0
