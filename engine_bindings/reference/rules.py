"""Every decision of the decode loop that an engine can get wrong, one small method each.

The loop in ``generate`` asks these rules and never decides by itself, so a variant engine is a subclass that
replaces one method. Positions count from 0; so do the rows of a verify forward, whose row 0 is the token that
was chosen before the drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Finish = Literal["stop", "length", "stopped", "cancelled"]

PREFILL_CHUNK_TOKENS = 256  # bounds the memory of attention scores; the result does not depend on it
CONTEXT_MARGIN_TOKENS = 2  # a prompt leaves room for one token and its successor's row


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The tokens of a run that are emitted, and how the turn ends behind them (None: it goes on)."""

    tokens: tuple[int, ...]
    finish: Finish | None


class Rules:
    """The right decisions."""

    # prompt and prefix

    def match_prefix(self, history: Sequence[int], prompt: Sequence[int]) -> int:
        """Return how many leading tokens of ``prompt`` are in the KV already: the longest common prefix."""
        pairs = enumerate(zip(history, prompt, strict=False))
        return next((i for i, (old, new) in pairs if old != new), min(len(history), len(prompt)))

    def draft_rows_kept(self, draft_rows: int, length: int) -> int:
        """Return how many of the head's KV rows survive when the context is cut to ``length``.

        Row p was made from the token at p + 1 too, so the last kept token's row is not valid any more.
        """
        return max(0, min(draft_rows, length - 1))

    def prompt_limit(self, context_tokens: int) -> int:
        """Return the longest prompt that is answered; a longer one is refused, never cut."""
        return context_tokens - CONTEXT_MARGIN_TOKENS

    def prefill_spans(self, matched: int, prompt_tokens: int) -> list[tuple[int, int]]:
        """Return the spans [start, end) to compute; a fully cached prompt computes its last row again."""
        start = min(matched, prompt_tokens - 1)
        edges = [*range(start, prompt_tokens, PREFILL_CHUNK_TOKENS), prompt_tokens]
        return list(pairwise(edges))

    # ends

    def turn_limit(self, max_tokens: int, prompt_tokens: int, context_tokens: int) -> int:
        """Return how many tokens the turn may emit: the request's cap, or what the context holds."""
        return min(max_tokens, context_tokens - prompt_tokens - 1)

    def cut_block(self, candidates: Sequence[int], stops: frozenset[int], room: int) -> Block:
        """Cut a run of chosen tokens at the first stop token, else at the cap of ``room`` more tokens.

        A stop token is neither emitted nor kept. A stop behind the last token that fits is not looked at.
        """
        tokens: list[int] = []
        for token in candidates:
            if token in stops:
                return Block(tokens=tuple(tokens), finish="stop")
            tokens.append(token)
            if len(tokens) >= room:
                return Block(tokens=tuple(tokens), finish="length")
        return Block(tokens=tuple(tokens), finish=None)

    def takes_in(self, block: Block) -> bool:
        """Return whether a token that was just emitted is taken into the KV: the last one too."""
        return bool(block.tokens)

    def length_limited(self, finish: Finish | None) -> bool:
        """Return the finish flag: set only when the cap or the context ended the turn."""
        return finish == "length"

    # draft and verify

    def draft_depth(self, depth: int, room_tokens: int, room_rows: int) -> int:
        """Return how many drafts to ask for: never more than the cap and the context can take."""
        return max(0, min(depth, room_tokens, room_rows))

    def draft_base(self, draft_rows: int) -> int:
        """Return the first position whose head row is made now; all rows below hold verified tokens."""
        return draft_rows

    def count_accepted(self, drafts: Sequence[int], chosen: Sequence[int]) -> int:
        """Return how many leading drafts equal the tokens chosen by the verify rows."""
        return next((i for i, (d, c) in enumerate(zip(drafts, chosen, strict=False)) if d != c), len(drafts))

    def next_row(self, accepted: int) -> int:
        """Return the verify row whose choice comes next: the one behind the last accepted draft."""
        return accepted

    def committed_tokens(self, start: int, kept: int) -> int:
        """Return the KV's length after a forward from ``start``: the token, and the drafts that were kept."""
        return start + 1 + kept
