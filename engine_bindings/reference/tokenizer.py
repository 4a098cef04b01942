"""Text to token ids and back, byte exact, for byte-level BPE tokenizers."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from engine_bindings.errors import CheckpointError
from engine_bindings.reference.config import read_json_object

TOKENIZER_FILE = "tokenizer.json"
INVALID_BYTES = re.compile(
    "([\udc80-\udcff]+)"
)  # how Python's "surrogateescape" spells bytes that are no UTF-8


def byte_characters() -> tuple[str, ...]:
    """Return the character that stands for each byte in a byte-level vocabulary.

    Visible Latin-1 characters stand for themselves; the other bytes, in order, take the characters from
    U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    places = {byte: 0x100 + place for place, byte in enumerate(hidden)}
    return tuple(chr(places.get(byte, byte)) for byte in range(256))


class Tokenizer:
    """A byte-level BPE tokenizer read from ``tokenizer.json``.

    Attributes:
        vocab_size: number of ids (largest id + 1).
        special_ids: ids of added tokens that are marked special.
        added_ids: ids of all added tokens.
    """

    def __init__(self, model_dir: Path, *, model_vocab_size: int | None = None) -> None:
        """Read the file. Raises CheckpointError, also when there are more ids than ``model_vocab_size``."""
        path = model_dir / TOKENIZER_FILE
        vocab, added = _parse(path)
        self._library = _load_library(path)
        self._byte_ids = _byte_ids(path, vocab)
        self._added_by_text = {str(token["content"]): int(token["id"]) for token in added}
        self.added_ids = frozenset(self._added_by_text.values())
        self.special_ids = frozenset(int(token["id"]) for token in added if token.get("special"))
        self._bytes = _bytes_by_id(vocab, self._added_by_text)
        self.vocab_size = len(self._bytes)
        if model_vocab_size is not None and self.vocab_size > model_vocab_size:
            message = f"{path}: ids go up to {self.vocab_size - 1}, the model has {model_vocab_size}"
            raise CheckpointError(message, hint="use the tokenizer.json that belongs to these weights")

    def encode(self, text: bytes) -> list[int]:
        """Return the ids of any bytes.

        Added tokens in the text become their ids, whether special or not. Bytes that are no UTF-8 become one
        id each, and the text on both sides of them is encoded by itself.
        """
        ids: list[int] = []
        for number, part in enumerate(INVALID_BYTES.split(text.decode("utf-8", "surrogateescape"))):
            if number % 2:
                ids += (self._byte_ids[byte] for byte in part.encode("utf-8", "surrogateescape"))
            elif part:
                ids += self._library.encode(part, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token, which may split a character; an unknown id gives nothing."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def id_of(self, text: str) -> int | None:
        """Return the id of an added token by its text."""
        return self._added_by_text.get(text)


def _parse(path: Path) -> tuple[Mapping[str, int], list[dict[str, Any]]]:
    value = read_json_object(path)
    model, added = value.get("model"), value.get("added_tokens") or []
    if (
        not isinstance(model, dict)
        or model.get("type", "BPE") != "BPE"
        or '"ByteLevel"' not in path.read_text("utf-8")
    ):
        raise CheckpointError(
            f"{path}: not a byte-level BPE tokenizer", hint="choose a checkpoint of the GLM family"
        )
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(_is_id(value) for value in vocab.values()):
        raise CheckpointError(
            f"{path}: 'model.vocab' does not map strings to ids", hint="copy the file again"
        )
    if not isinstance(added, list) or not all(_is_added_token(token) for token in added):
        raise CheckpointError(
            f"{path}: 'added_tokens' is no list of tokens with ids", hint="copy the file again"
        )
    return vocab, added


def _is_added_token(value: object) -> bool:
    return isinstance(value, dict) and _is_id(value.get("id")) and isinstance(value.get("content"), str)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 24


def _load_library(path: Path) -> tokenizers.Tokenizer:
    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: not a valid tokenizer: {error}", hint="copy the file again") from None
    library.no_truncation()
    library.no_padding()
    return library


def _byte_ids(path: Path, vocab: Mapping[str, int]) -> list[int]:
    missing = [byte for byte, character in enumerate(byte_characters()) if character not in vocab]
    if missing:
        message = (
            f"{path}: 'model.vocab' has no token for {len(missing)} bytes, the first is {missing[0]:#04x}"
        )
        raise CheckpointError(message, hint="choose a checkpoint with a byte-level vocabulary")
    return [vocab[character] for character in byte_characters()]


def _bytes_by_id(vocab: Mapping[str, int], added: Mapping[str, int]) -> list[bytes]:
    byte_of = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}
    table = [b""] * (1 + max([*vocab.values(), *added.values()]))
    for text, token_id in vocab.items():
        table[token_id] = b"".join(byte_of.get(c) or c.encode("utf-8", "surrogatepass") for c in text)
    for text, token_id in added.items():
        table[token_id] = text.encode("utf-8", "surrogatepass")
    return table
