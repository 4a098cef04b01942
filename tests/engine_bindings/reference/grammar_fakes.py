"""A grammar without a library: which tokens may come next is a hash of those before, so any slip shows."""

import zlib
from collections.abc import Sequence

import numpy as np

from engine_bindings.reference.constraint import Constraint, Opening
from tests.engine_bindings.reference.engine_fakes import VOCAB

END = VOCAB - 1
CLOSING = VOCAB - 2
TEXT = range(CLOSING)


class FakeMatcher:
    """Allows some tokens behind each text, often only one; ends after ``length`` tokens, sometimes before."""

    def __init__(self, *, length: int = 30, salt: int = 0) -> None:
        self.length = length
        self.salt = salt
        self.tokens: list[int] = []
        self.error = ""

    def allowed(self) -> list[int]:
        if len(self.tokens) >= self.length:
            return []
        value = zlib.crc32(bytes([self.salt, *self.tokens]))
        count = (1, 3, 9)[value % 3]
        return sorted({(value >> (3 * i)) % len(TEXT) for i in range(count)})

    def try_consume_tokens(self, tokens: list[int]) -> int:
        for count, token in enumerate(tokens):
            if token not in self.allowed():
                return count
            self.tokens.append(token)
        return len(tokens)

    def rollback(self, num_tokens: int) -> bool:
        assert 0 <= num_tokens <= len(self.tokens)
        del self.tokens[len(self.tokens) - num_tokens :]
        return True

    def reset(self) -> bool:
        self.tokens.clear()
        return True

    def compute_bitmask(self) -> bytes:
        mask = np.zeros(VOCAB, np.uint8)
        mask[self.allowed()] = 1
        return np.packbits(mask, bitorder="little").tobytes()

    def compute_ff_tokens(self) -> list[int]:
        forced: list[int] = []
        while len(allowed := self.allowed()) == 1:
            forced += allowed
            self.tokens += allowed
        self.rollback(len(forced))
        return forced

    def is_accepting(self) -> bool:
        return len(self.tokens) >= self.length or (
            len(self.tokens) > 8 and zlib.crc32(bytes(self.tokens)) % 16 == 0
        )

    def get_error(self) -> str:
        return self.error


def fake_constraint(
    *, salt: int = 0, length: int = 30, opening: bool = False, to_the_last: bool = False
) -> Constraint:
    """A constraint on texts of the fake vocabulary, from the start or behind the token CLOSING."""
    return Constraint(
        FakeMatcher(salt=salt, length=length),
        vocab_size=VOCAB,
        ends=frozenset({END}),
        opening=Opening(closing=CLOSING, barred=frozenset({END})) if opening else None,
        to_the_last=to_the_last,
    )


def may_follow(tokens: Sequence[int], *, salt: int, length: int = 30) -> bool:
    """Whether the grammar takes all of a text."""
    return FakeMatcher(salt=salt, length=length).try_consume_tokens(list(tokens)) == len(tokens)
