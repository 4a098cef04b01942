"""Every decision of the decode loop that an engine can get wrong, one small method each.

The loop in ``generate`` asks these rules and never decides by itself, so a variant engine is a subclass that
replaces one method. Positions count from 0; so do the rows of a verify forward, whose row 0 is the token that
was chosen before the drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine_bindings.reference.edge_rules import EdgeRules
from engine_bindings.reference.sampling import Draws, Sampling, choose_token
from engine_bindings.reference.slot import Slot

FloatArray = NDArray[np.float32]
Finish = Literal["stop", "length", "stopped", "cancelled", "failed"]  # failed: the grammar broke

PREFILL_CHUNK_TOKENS = 256  # bounds the memory of attention scores; the result does not depend on it
CONTEXT_MARGIN_TOKENS = 2  # a prompt leaves room for one token and its successor's row


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The tokens of a run that are emitted, and how the turn ends behind them (None: it goes on)."""

    tokens: tuple[int, ...]
    finish: Finish | None


class Shape(NamedTuple):
    """What a forward was made of: rows, turns that share it, and what one turn reused of its prompt."""

    rows: int
    turns: int
    cached_tokens: int


class Rules(EdgeRules):
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

    def adopt_prefix(self, slot: Slot, length: int) -> None:
        """Take over the first ``length`` tokens of a slot for a new prompt, and forget all others."""
        slot.truncate(length, self.draft_rows_kept(slot.draft_rows, length))

    def prompt_limit(self, context_tokens: int) -> int:
        """Return the longest prompt that is answered; a longer one is refused, never cut."""
        return context_tokens - CONTEXT_MARGIN_TOKENS

    def prefill_spans(self, matched: int, prompt_tokens: int) -> list[tuple[int, int]]:
        """Return the spans [start, end) to compute; a fully cached prompt computes its last row again."""
        start = min(matched, prompt_tokens - 1)
        edges = [*range(start, prompt_tokens, PREFILL_CHUNK_TOKENS), prompt_tokens]
        return list(pairwise(edges))

    def opening_row(self, logits: FloatArray) -> FloatArray:
        """Return the row [1, V] that an answer's first token is chosen from: the prompt's last."""
        return logits[-1:]

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

    def cut_accepted(self, accepted: Sequence[int], stops: frozenset[int], room: int) -> Block:
        """Cut a run of accepted drafts exactly as tokens are cut that were chosen one by one."""
        return self.cut_block(accepted, stops, room)

    def turn_stops(self, stops: frozenset[int], ends: frozenset[int], *, ignore: bool) -> frozenset[int]:
        """Return a turn's stop tokens: ``stops``, or none but a grammar's ``ends`` when they are ignored."""
        return ends if ignore else stops

    def takes_in(self, block: Block) -> bool:
        """Return whether a token that was just emitted is taken into the KV: the last one too."""
        return bool(block.tokens)

    def length_limited(self, finish: Finish | None) -> bool:
        """Return the finish flag: set only when the cap or the context ended the turn."""
        return finish == "length"

    # draft and verify

    def turn_depth(self, depth: int, asked: int | None) -> int:
        """Return the draft depth of a turn: the engine's, or less when the request asks for less."""
        return depth if asked is None else min(depth, asked)

    def draft_depth(self, depth: int, room_tokens: int, room_rows: int) -> int:
        """Return how many drafts to ask for: never more than the cap and the context can take."""
        return max(0, min(depth, room_tokens, room_rows))

    def draft_base(self, draft_rows: int, _length: int, /) -> int:
        """Return the first position whose head row is made now; all rows below hold verified tokens.

        The context has ``length`` tokens. Every position gets its row, those of accepted drafts too.
        """
        return draft_rows

    def head_position(self, start: int, _end: int, _rejections: int, /) -> int:
        """Return the head row that the first of the verified pairs ``start`` to end - 1 is put in: its own.

        However many forwards since the prompt rejected a draft: the rows of drafts are simply overwritten.
        """
        return start

    def paired_rows(self, start: int, end: int) -> slice:
        """Return the hidden rows that the head pairs with the tokens behind ``start`` to end - 1."""
        return slice(start, end)

    def draft_state_slot(self, slot: int) -> int:
        """Return the slot whose hidden rows a slot's drafts start from: the same one."""
        return slot

    def row_spans(self, widths: Sequence[int]) -> list[slice]:
        """Return each turn's rows in a forward's result: in the order in which they went in."""
        edges = [0, *accumulate(widths)]
        return [slice(start, end) for start, end in pairwise(edges)]

    def seen_logits(self, logits: FloatArray, _shape: Shape, /) -> FloatArray:
        """Return the logits [n, V] that tokens are chosen from: the model's own.

        They do not depend on what a forward was made of.
        """
        return logits

    def choose(
        self, logits: FloatArray, sampling: Sampling, draws: Draws, position: int, _drafts: Sequence[int], /
    ) -> list[int]:
        """Choose one token from each row of ``logits`` [n, V], for ``position`` and the ones behind it.

        Which drafts are verified has no say in what is chosen.
        """
        if sampling.greedy:
            chosen: list[int] = logits.argmax(axis=1).tolist()
            return chosen
        return [choose_token(row, sampling, draws.at(position + i)) for i, row in enumerate(logits)]

    def count_accepted(self, drafts: Sequence[int], chosen: Sequence[int]) -> int:
        """Return how many leading drafts equal the tokens chosen by the verify rows."""
        return next((i for i, (d, c) in enumerate(zip(drafts, chosen, strict=False)) if d != c), len(drafts))

    def forced_depth(self, depth: int, span_tokens: int | None) -> int:
        """Return how many tokens of a forced span are drafted at once.

        None means that the grammar is a constraint. Its spans keep to the draft depth, as a verify forward of
        more rows is not what was tested at that depth.
        """
        return depth if span_tokens is None else span_tokens

    def grammar_drafts(self, drafts: Sequence[int]) -> Sequence[int]:
        """Return the drafts that the grammar knows of when it masks rows: row i stands behind i of them."""
        return drafts

    def grammar_takes(self, emitted: Sequence[int], _rejected: Sequence[int], /) -> Sequence[int]:
        """Return what a grammar is advanced by: every emitted token, picked or drafted, none rejected."""
        return emitted

    def next_row(self, accepted: int) -> int:
        """Return the verify row whose choice comes next: the one behind the last accepted draft."""
        return accepted

    def kept_drafts(self, _accepted: Sequence[int], block: Block, /) -> Sequence[int]:
        """Return the accepted drafts that stay in the context: those that were emitted."""
        return block.tokens

    def committed_tokens(self, start: int, kept: int, _computed: int, /) -> int:
        """Return the KV's length after a forward of ``computed`` rows from ``start``.

        It holds the token and the drafts that were kept.
        """
        return start + 1 + kept

    def roll_back(self, slot: Slot, length: int) -> None:
        """Forget the KV rows from ``length`` on; the others stay as they are.

        The history is not told of the kept ones yet.
        """
        slot.cache.truncate(length)

    def once(self, emitted: Sequence[int], _before: int, /) -> Sequence[int]:
        """Return what a block adds behind ``before`` emitted tokens: each of its tokens once."""
        return emitted
