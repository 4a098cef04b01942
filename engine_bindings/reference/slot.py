"""One context of the engine: its KV rows, the tokens they hold, and what the MTP head needs to go on."""

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.model import Rows, Segment

FloatArray = NDArray[np.float32]


class MainModel(Protocol):
    """What the decode loop asks of a model."""

    def forward(self, segments: Sequence[Segment], *, logits_for: Literal["all", "last"] = "all") -> Rows:
        """Compute the rows of the segments' tokens and write their KV."""
        ...


class DraftModel(Protocol):
    """What the MTP drafter asks of a model."""

    def draft(
        self, cache: KvCache, tokens_after: Sequence[int], hidden: FloatArray, start: int, depth: int
    ) -> list[int]:
        """Fill head rows from verified pairs and guess ``depth`` tokens."""
        ...

    def absorb(self, cache: KvCache, tokens_after: Sequence[int], hidden: FloatArray, start: int) -> None:
        """Fill head rows from verified pairs."""
        ...


class Drafter(Protocol):
    """A source of guesses for the tokens that follow."""

    def propose(self, slot: "Slot", token: int, depth: int, /) -> list[int]:
        """Return at most ``depth`` guesses for what follows the slot's history and ``token``."""
        ...

    def follow(self, slot: "Slot", /) -> None:
        """Take in what prefill just committed, so that the first drafts do not have to wait for it."""
        ...


class Slot:
    """A context.

    ``history`` holds exactly the tokens whose KV rows are in the cache. ``hidden`` [capacity, H] is the main
    model's hidden row of every one of them from ``hidden_start`` on (a resumed context has none), and head
    rows below ``draft_rows`` are made from verified tokens. ``draft_hidden`` is what the head reads of the
    hidden rows, and ``rejections`` counts the forwards since the prompt that rejected a draft.
    """

    def __init__(self, *, index: int, cache: KvCache, context_tokens: int, hidden_size: int) -> None:
        self.index = index
        self.cache = cache
        self.context_tokens = context_tokens
        self.history: list[int] = []
        self.hidden: FloatArray = np.zeros((context_tokens, hidden_size), np.float32)
        self.draft_hidden = self.hidden
        self.hidden_start = 0
        self.draft_rows = 0
        self.rejections = 0

    @property
    def length(self) -> int:
        """Number of tokens in the context."""
        return len(self.history)

    def truncate(self, length: int, draft_rows: int) -> None:
        """Forget everything from position ``length`` on."""
        del self.history[length:]
        self.cache.truncate(length)
        self.hidden_start = min(self.hidden_start, length)
        self.draft_rows = draft_rows
        self.rejections = 0

    def adopt_saved(self, tokens: Sequence[int]) -> None:
        """Take up the history that belongs to a cache read from disk; the head starts afresh behind it."""
        self.history = list(tokens)
        self.hidden_start = self.draft_rows = len(tokens)

    def commit(self, tokens: Sequence[int], hidden: FloatArray) -> None:
        """Take in the tokens of a forward that stay, with their hidden rows."""
        start = self.length
        self.hidden[start : start + len(tokens)] = hidden[: len(tokens)]
        self.history.extend(tokens)
