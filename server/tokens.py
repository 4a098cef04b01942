"""The checkpoint's tokenizer as a server needs it: special tokens only where the caller allows them."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine_bindings.errors import CheckpointError

# Unicode keeps these for a program's own use; no text has to contain them.
GUARDS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


class Tokens:
    """Text to token ids and back.

    A *guarded* text carries an invisible guard character behind every character that could open a special
    token, so what is guarded can never become one; everything else of it may.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        added: dict[str, int] = {token["content"]: token["id"] for token in description["added_tokens"]}
        self.added_ids: dict[str, int] = added
        self._added_texts: dict[int, bytes] = {token_id: text.encode() for text, token_id in added.items()}
        longest_first = sorted(added, key=len, reverse=True)
        self._added = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if added else None
        self._openings = "".join(sorted({text[0] for text in added}))
        self._text = Tokenizer.from_str(
            json.dumps({**description, "added_tokens": [], "post_processor": None})
        )
        self._bytes_of = _byte_table()
        # A normalizer may shorten the text, so that its length says nothing.
        shortens = description.get("normalizer") is not None
        longest = max((len(self.token_bytes(one)) for one in range(self.vocab_size)), default=0)
        self.longest_token_bytes: int | None = None if shortens else longest

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id."""
        return max(self._text.get_vocab_size(with_added_tokens=False), *self.added_ids.values(), 0) + 1

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of text in which the texts of special tokens are special."""
        return tuple(self._encode_parts(text, guard=""))

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the ids of text in which nothing is special."""
        return tuple(self._text.encode(text, add_special_tokens=False).ids)

    def encode_guarded(self, text: str, guard: str) -> tuple[int, ...]:
        """Return the ids of text with guards; the guards leave no trace."""
        return tuple(self._encode_parts(text, guard))

    def guard(self, text: str, guard: str) -> str:
        """Return text that cannot become a special token, whatever stands before or after it."""
        if not any(opening in text for opening in self._openings):
            return text
        return re.sub(f"([{re.escape(self._openings)}])", lambda match: match[1] + guard, text)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token, which may be part of a character; nothing for an unknown id."""
        if token_id in self._added_texts:
            return bytes(self._added_texts[token_id])
        piece = self._text.id_to_token(token_id)
        return b"" if piece is None else b"".join(self._bytes_of.get(one, one.encode()) for one in piece)

    def decode(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of tokens in a row."""
        return b"".join(map(self.token_bytes, ids))

    def _encode_parts(self, text: str, guard: str) -> Iterator[int]:
        parts = self._added.split(text) if self._added else [text]
        for part in parts:
            if part in self.added_ids:
                yield self.added_ids[part]
            elif part:
                plain = part.replace(guard, "") if guard else part
                yield from self._text.encode(plain, add_special_tokens=False).ids


def read_tokens(model_dir: Path) -> Tokens:
    """Return the tokenizer of a model directory. Raises CheckpointError when it is missing or broken."""
    path = model_dir / "tokenizer.json"
    try:
        return Tokens(json.loads(path.read_bytes()))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # the tokenizers library raises plain Exception
        raise CheckpointError(f"{path}: not a tokenizer: {error}") from error


def _byte_table() -> dict[str, bytes]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves; the other bytes follow from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): bytes([byte]) for byte in printable}
    table.update({chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)})
    return table
