import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.errors import CheckpointError
from engine_bindings.reference.tokenizer import Tokenizer, byte_characters

SHIPPED = Path(__file__).parents[3] / "engine_bindings" / "reference" / "checkpoint"
TOKENIZER = Tokenizer(SHIPPED)
LIBRARY = tokenizers.Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "def f(x):\n    return x + 1\n",
    '{"name": "Ada", "age": 36, "tags": ["a", "b"]}',
    "1 2 3 4 5 6 7 8 9 10 1234567890",
    "a  b   c\t\td\r\n\r\n  e",
    "it's we're I'll DON'T",
    "ünïcödé ñ 漢字 かな 한국어 русский عربى",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 e\u0301 \u200b\ufeff",
    "\x00\x01\x7f",
    "<|user|>hi<|assistant|><think></think>ok<|endoftext|>",
    "[gMASK]<sop><|system|>rules<|user|>text [gMASK",
    "<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>",
    "<|user|><|user|> <|user|>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_library(text: str) -> None:
    assert TOKENIZER.encode(text.encode()) == LIBRARY.encode(text, add_special_tokens=False).ids


@given(st.text())
def test_ids_of_any_text_are_those_of_the_library(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    assert decoded(TOKENIZER.encode(raw)) == raw
    if raw == text.encode("utf-8", "replace"):
        assert TOKENIZER.encode(raw) == LIBRARY.encode(text, add_special_tokens=False).ids


def decoded(ids: list[int]) -> bytes:
    return b"".join(TOKENIZER.token_bytes(token) for token in ids)


@given(st.lists(st.sampled_from([b"<|user|>", b"</think>", b"text", b"\xff", b"\xe6\xbc", b"\xa2", b" "])))
def test_bytes_survive_the_way_there_and_back(parts: list[bytes]) -> None:
    assert decoded(TOKENIZER.encode(b"".join(parts))) == b"".join(parts)


@given(st.binary())
def test_any_bytes_survive_the_way_there_and_back(raw: bytes) -> None:
    ids = TOKENIZER.encode(raw)
    assert decoded(ids) == raw
    assert all(0 <= token < TOKENIZER.vocab_size for token in ids)


def test_bytes_that_are_no_utf8_become_single_tokens() -> None:
    left, right = TOKENIZER.encode(b"left"), TOKENIZER.encode(b" right")
    ids = TOKENIZER.encode(b"left\xff\xc3 right")
    assert ids[: len(left)] == left
    assert ids[len(left) + 2 :] == right
    assert [TOKENIZER.token_bytes(token) for token in ids[len(left) : len(left) + 2]] == [b"\xff", b"\xc3"]


def test_a_token_may_split_a_character() -> None:
    pieces = [TOKENIZER.token_bytes(token) for token in TOKENIZER.encode("漢".encode())]
    assert b"".join(pieces) == "漢".encode()
    assert len(pieces) > 1


def test_every_id_has_its_bytes() -> None:
    assert TOKENIZER.vocab_size == LIBRARY.get_vocab_size()
    for token in range(TOKENIZER.vocab_size):
        raw = TOKENIZER.token_bytes(token)
        assert raw
        assert LIBRARY.decode([token], skip_special_tokens=False) == raw.decode("utf-8", "replace")


def test_ids_outside_the_vocabulary_have_no_bytes() -> None:
    assert TOKENIZER.token_bytes(-1) == b""
    assert TOKENIZER.token_bytes(TOKENIZER.vocab_size) == b""


def test_added_tokens_are_known_by_text() -> None:
    user, think = TOKENIZER.id_of("<|user|>"), TOKENIZER.id_of("<think>")
    assert user in TOKENIZER.special_ids
    assert think in TOKENIZER.added_ids
    assert think not in TOKENIZER.special_ids
    assert TOKENIZER.id_of("the") is None
    assert user is not None
    assert TOKENIZER.token_bytes(user) == b"<|user|>"


def test_every_byte_has_its_own_character() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert (characters[ord("a")], characters[0x20], characters[0]) == ("a", "\u0120", "\u0100")


def changed_copy(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    value = json.loads((SHIPPED / "tokenizer.json").read_text("utf-8"))
    change(value)
    (folder / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no model": lambda v: v.pop("model"),
    "another model": lambda v: v["model"].update(type="WordPiece"),
    "vocab is a list": lambda v: v["model"].update(vocab=[]),
    "an id is text": lambda v: v["model"]["vocab"].update(a="1"),
    "an id is negative": lambda v: v["model"]["vocab"].update(a=-1),
    "an id is enormous": lambda v: v["model"]["vocab"].update(a=1 << 40),
    "a byte is missing": lambda v: v["model"].update(vocab={"a": 0}, merges=[]),
    "added tokens are text": lambda v: v.update(added_tokens="x"),
    "an added token has no id": lambda v: v["added_tokens"][0].pop("id"),
    "an added token has no text": lambda v: v["added_tokens"][0].pop("content"),
    "merges are numbers": lambda v: v["model"].update(merges=[1, 2]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_is_off_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer(changed_copy(tmp_path, CHANGES[name]))


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        Tokenizer(tmp_path)
    raw = (SHIPPED / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CheckpointError, match="not valid JSON"):
        Tokenizer(tmp_path)


def test_more_ids_than_the_model_has_are_refused(tmp_path: Path) -> None:
    shutil.copy(SHIPPED / "tokenizer.json", tmp_path)
    size = TOKENIZER.vocab_size
    assert Tokenizer(tmp_path, model_vocab_size=size).vocab_size == size
    with pytest.raises(CheckpointError, match=f"the model has {size - 1}"):
        Tokenizer(tmp_path, model_vocab_size=size - 1)
