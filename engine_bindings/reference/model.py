"""The forward pass of the reference model and its multi-token-prediction (MTP) head.

With 'invariant' kernels the logits of a position are the same bits however the prompt is cut, whatever rows
are computed beside it and whatever the cache holds behind it. 'int8-batch' kernels round activations when
more than one row is computed, as engines do whose kernels depend on the shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine_bindings.errors import UsageError
from engine_bindings.reference.config import ModelConfig, read_model_config
from engine_bindings.reference.kv_cache import KEY_BLOCK, KvCache
from engine_bindings.reference.layers import (
    SPAN_ROWS,
    Buffers,
    RopeTable,
    Span,
    attention_layer,
    causal_masks,
    choose_tile_rows,
    mlp_layer,
    norm_rows,
    round_rows,
)
from engine_bindings.reference.mtp import MtpHead
from engine_bindings.reference.weights import Weights, read_weights

Kernels = Literal["invariant", "int8-batch"]
LogitsFor = Literal["all", "last"]
FloatArray = NDArray[np.float32]

BLOCK_ROWS = 256  # rows computed at once: bounds the scratch memory, and the result does not depend on it
DECODE_ROWS = 32  # up to here, a row count keeps its scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens of one slot: ``tokens[i]`` goes to position ``start + i`` of ``cache``."""

    cache: KvCache
    tokens: Sequence[int]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a forward computed, segment after segment.

    Attributes:
        hidden: [rows, hidden_size], after the final norm; always every row.
        logits: [rows, vocab_size], or [segments, vocab_size] when only the last row of each segment was asked
            for.
    """

    hidden: FloatArray
    logits: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Proposed tokens, and the head's logits [depth, vocab_size] for each."""

    tokens: tuple[int, ...]
    logits: FloatArray


class Model:
    """Main model and MTP head; holds weights and scratch buffers, no conversation state. Not thread-safe."""

    def __init__(self, config: ModelConfig, weights: Weights, *, kernels: Kernels = "invariant") -> None:
        self.config = config
        self.weights = weights
        self.kernels = kernels
        self.tile_rows = choose_tile_rows(weights)
        self._rope = RopeTable(config)
        self._masks = causal_masks(config.num_attention_heads)
        self._buffers = lru_cache(maxsize=DECODE_ROWS)(self._make_buffers)
        self._scores = np.empty(0, np.float32)
        self._mtp = MtpHead(config, weights.mtp, self._rope) if weights.mtp else None

    @property
    def has_mtp(self) -> bool:
        """Whether the checkpoint has an MTP layer."""
        return self._mtp is not None

    def _make_buffers(self, rows: int) -> Buffers:
        return Buffers(self.config, rows, self.tile_rows)

    def forward(self, segments: Sequence[Segment], *, logits_for: LogitsFor = "all") -> Rows:
        """Run the tokens of all segments and write their KV rows.

        A segment replaces what its cache held from ``start`` on; afterwards the cache's length is
        ``start + len(tokens)``. ``start`` must not be beyond the cache's length.
        """
        for segment in segments:
            _open_rows(segment)
        coarse = self.kernels == "int8-batch" and sum(len(segment.tokens) for segment in segments) > 1
        with np.errstate(over="ignore"):  # a gate far below zero: its exponential is infinite, the unit zero
            parts = [self._run_block(block, coarse=coarse) for block in _cut_blocks(segments)]
        hidden = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if logits_for == "all":
            return Rows(hidden=hidden, logits=self._logits(hidden, coarse=coarse))
        last = np.cumsum([len(segment.tokens) for segment in segments]) - 1
        return Rows(hidden=hidden, logits=self._logits(hidden[last], coarse=coarse))

    def _run_block(self, segments: Sequence[Segment], *, coarse: bool) -> FloatArray:
        """Run at most BLOCK_ROWS rows through all layers and return their hidden rows [rows, hidden_size]."""
        ids = [token for segment in segments for token in segment.tokens]
        buffers = self._buffers(len(ids)) if len(ids) <= DECODE_ROWS else self._make_buffers(len(ids))
        np.copyto(buffers.residual, self.weights.embedding[ids])
        turns = self._turns(segments)
        spans = self._spans(segments, buffers)
        normalised = self.config.norm_topk_prob
        for index, layer in enumerate(self.weights.layers):
            attention_layer(buffers, spans, turns, layer.attention, index, coarse=coarse)
            mlp_layer(buffers, layer.mlp, normalised=normalised, coarse=coarse)
        norm_rows(buffers)
        hidden: FloatArray = buffers.normed * self.weights.norm
        return hidden

    def _turns(self, segments: Sequence[Segment]) -> FloatArray:
        parts = [self._rope.rows(s.start, s.start + len(s.tokens)) for s in segments]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _spans(self, segments: Sequence[Segment], buffers: Buffers) -> list[Span]:
        """Cut the rows where their key block or their slot changes."""
        end = max(segment.start + len(segment.tokens) for segment in segments)
        needed = SPAN_ROWS * self.config.num_attention_heads * (end + KEY_BLOCK)
        if len(self._scores) < needed:
            self._scores = np.empty(2 * needed, np.float32)
        spans, row = [], 0
        for segment in segments:
            start, last = segment.start, segment.start + len(segment.tokens)
            while start < last:
                stop = min(last, start // KEY_BLOCK * KEY_BLOCK + KEY_BLOCK, start + SPAN_ROWS)
                spans.append(Span(segment.cache, buffers, row, start, stop, self._scores, self._masks))
                row, start = row + stop - start, stop
        return spans

    def _logits(self, hidden: FloatArray, *, coarse: bool) -> FloatArray:
        """Logits [rows, vocab_size] of rows after the final norm, made in tiles like everything else."""
        rows, tile = len(hidden), self.tile_rows
        tiles = np.zeros((-(-rows // tile), tile, hidden.shape[1]), np.float32)
        flat = tiles.reshape(-1, hidden.shape[1])
        flat[:rows] = round_rows(hidden) if coarse else hidden
        logits = np.matmul(tiles[0] if len(tiles) == 1 else tiles, self.weights.head)
        asked: FloatArray = logits.reshape(len(flat), -1)[:rows]
        return asked

    def absorb(self, cache: KvCache, tokens_after: Sequence[int], hidden: FloatArray, start: int) -> None:
        """Fill MTP rows ``start ...`` from pairs: hidden[i] of position start + i, and the token after it."""
        self._head.absorb(cache, tokens_after, hidden, start)

    def draft(
        self, cache: KvCache, tokens_after: Sequence[int], hidden: FloatArray, start: int, depth: int
    ) -> list[int]:
        """Absorb the verified pairs (at least one) as ``absorb`` does and propose ``depth`` tokens behind the
        last.

        Proposals are the head's best tokens, for sampled text too. They are the same for the same history of
        calls, but are not batch-invariant, which no output depends on. Fewer come back where the context
        ends.
        """
        with np.errstate(over="ignore"):
            return self._head.draft(cache, tokens_after, hidden, start, depth)

    def draft_with_logits(
        self, cache: KvCache, tokens_after: Sequence[int], hidden: FloatArray, start: int, depth: int
    ) -> Draft:
        """Do what ``draft`` does and return the logits of every step as well."""
        logits: list[FloatArray] = []
        with np.errstate(over="ignore"):
            tokens = self._head.draft(cache, tokens_after, hidden, start, depth, logits)
        return Draft(tokens=tuple(tokens), logits=np.array(logits, np.float32))

    @property
    def _head(self) -> MtpHead:
        if self._mtp is None:
            raise UsageError("this checkpoint has no MTP layer", hint="draft with n-grams, or not at all")
        return self._mtp


def _open_rows(segment: Segment) -> None:
    cache, end = segment.cache, segment.start + len(segment.tokens)
    if not 0 <= segment.start <= cache.length or not segment.tokens or end > cache.capacity_tokens:
        message = f"rows {segment.start} to {end} do not follow {cache.length} of {cache.capacity_tokens}"
        raise ValueError(message)
    cache.truncate_draft(segment.start)
    cache.length = end


def _cut_blocks(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """Cut the rows into blocks of at most BLOCK_ROWS, in order."""
    if sum(len(segment.tokens) for segment in segments) <= BLOCK_ROWS:
        yield segments
        return
    block: list[Segment] = []
    room = BLOCK_ROWS
    for segment in segments:
        done = 0
        while done < len(segment.tokens):
            tokens = segment.tokens[done : done + room]
            block.append(Segment(cache=segment.cache, tokens=tokens, start=segment.start + done))
            done, room = done + len(tokens), room - len(tokens)
            if not room:
                yield block
                block, room = [], BLOCK_ROWS
    if block:
        yield block


def read_model(model_dir: Path, *, kernels: Kernels = "invariant") -> Model:
    """Read config and weights of a model directory. Raises CheckpointError."""
    config = read_model_config(model_dir)
    return Model(config, read_weights(model_dir, config), kernels=kernels)
