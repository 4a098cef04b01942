"""One transformer layer over a few rows, in as few NumPy calls as it takes.

At this size a call costs more than its arithmetic, so rows live in scratch buffers made once per row count,
and every result goes into a view of them.

**Rows do not depend on each other.** Matrix products are made in tiles of a fixed number of rows, unused rows
included, so every product has the same shape however many rows are asked for; ``choose_tile_rows`` proves for
the loaded matrices that a row's place in its tile does not matter either, and falls back to one row a tile.
Attention is one product a row, over the keys up to the end of the row's own block of 64, with later keys
masked. All else is elementwise or a product of a row with itself.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine_bindings.reference.config import ModelConfig
from engine_bindings.reference.kv_cache import KEY_BLOCK, KvCache
from engine_bindings.reference.weights import AttentionWeights, MlpWeights, Weights, row_head_width

FloatArray = NDArray[np.float32]

TILE_ROWS = 4
SPAN_ROWS = 16  # rows that share one softmax: keeps their scores in the CPU's cache at a few thousand keys
INT8_LEVELS = 127
ONE = np.ones((), np.float32)
TINY = 1e-20  # keeps the weights of experts finite when all chosen scores are zero


def choose_tile_rows(weights: Weights) -> int:
    """Return TILE_ROWS when every place in a tile gives a row the same bits for all matrices, else 1."""
    rng = np.random.default_rng(0)
    for matrix in _distinct_shapes(weights):
        row = rng.standard_normal(len(matrix), np.float32)
        results = []
        for place in range(TILE_ROWS):
            tile = rng.standard_normal((TILE_ROWS, len(matrix)), np.float32)
            tile[place] = row
            results.append(np.matmul(tile, matrix)[place])
        if any((result != results[0]).any() for result in results):
            return 1
    return TILE_ROWS


def _distinct_shapes(weights: Weights) -> Iterable[FloatArray]:
    matrices = [weights.head]
    for layer in (*weights.layers, *([weights.mtp.layer] if weights.mtp else ())):
        attention, mlp = layer.attention, layer.mlp
        matrices += [attention.inner, attention.norms, attention.query, attention.output, mlp.inner, mlp.down]
    return {matrix.shape: matrix for matrix in matrices}.values()


class RopeTable:
    """Sines and cosines [positions, heads + 1, 2 * rope] for the turned and the plain rotary columns."""

    def __init__(self, config: ModelConfig) -> None:
        rope = config.qk_rope_head_dim
        exponent = np.arange(0, rope, 2, dtype=np.float64) / rope
        self._speed = np.repeat(config.rope_theta**-exponent, 2)
        self._heads = config.num_attention_heads + 1
        self._table = self._compute(0, 0)

    def _compute(self, start: int, end: int) -> FloatArray:
        angle = np.arange(start, end, dtype=np.float64)[:, None] * self._speed
        both = np.hstack((np.sin(angle), np.cos(angle))).astype(np.float32)
        return np.ascontiguousarray(np.repeat(both[:, None], self._heads, axis=1))

    def rows(self, start: int, end: int) -> FloatArray:
        """Rows of positions start to end - 1; the table grows as positions are first asked for."""
        known = len(self._table)
        if end > known:
            self._table = np.concatenate((self._table, self._compute(known, end + 512)))
        return self._table[start:end]


def causal_masks(heads: int) -> FloatArray:
    """Masks [64, heads, 64] to add to the scores of the last key block, by the row's place in that block."""
    mask = np.where(np.tri(KEY_BLOCK, dtype=bool), 0.0, -np.inf).astype(np.float32)
    return np.ascontiguousarray(np.repeat(mask[:, None], heads, axis=1))


class Buffers:
    """Scratch for a fixed number of rows, and the views into it that the layers use.

    A row holds: residual (D), constant, padding, low-rank query (Q), then for the key and every head the
    turned rope, the plain rope and the latent part (2R + C each). The constant is sqrt(D * eps), so that the
    sum of squares of residual and constant is D * (mean square + eps).
    """

    def __init__(self, config: ModelConfig, rows: int, tile_rows: int) -> None:
        c, self.rows = config, rows
        width, query, rope, latent = c.hidden_size, c.q_lora_rank, c.qk_rope_head_dim, c.kv_lora_rank
        heads, head_width = c.num_attention_heads, 2 * rope + latent
        inner_at = row_head_width(c)
        key_at, query_at = inner_at + query, inner_at + query + head_width
        self._tile_rows = tile_rows
        self._tiles = -(-rows // tile_rows)

        wide = self._tiled(query_at + heads * head_width)
        self.residual = wide[:rows, :width]
        wide[:, width] = math.sqrt(width * c.rms_norm_eps)
        self.residual_in = self._in_tiles(wide[:, :width])
        self.inner, self.inner_out = (
            wide[:rows, inner_at:query_at],
            self._in_tiles(wide[:, inner_at:query_at]),
        )
        self.squared = wide[:rows, :query_at]
        self.query_in = self._in_tiles(wide[:, inner_at:key_at])
        self.query_out = self._in_tiles(wide[:, query_at:])
        by_head = wide[:rows, key_at:].reshape(rows, heads + 1, head_width)
        self.rotated, self.turned, self.plain = (
            by_head[..., : 2 * rope],
            by_head[..., :rope],
            by_head[..., rope : 2 * rope],
        )
        self.key, self.queries = by_head[:, 0, rope:], by_head[:, 1:, rope:]

        squares, divisor = self._tiled(query_at), self._tiled(query_at - inner_at)
        self.squares, self.squares_in = squares[:rows], self._in_tiles(squares)
        self.divisor, self.divisor_out = divisor[:rows], self._in_tiles(divisor)

        mixed = self._tiled(latent * heads)
        self.mixed, self.mixed_in = mixed[:rows].reshape(rows, latent, heads), self._in_tiles(mixed)
        self.mixed_rows = mixed[:rows]
        added = self._tiled(width)
        self.added, self.added_out = added[:rows], self._in_tiles(added)

        normed = self._tiled(width)
        self.normed, self.normed_in = normed[:rows], self._in_tiles(normed)
        self.norm_row, self.norm_column = wide[:rows, None, : width + 1], wide[:rows, : width + 1, None]
        self.norm_square = np.ones((rows, 1, 1), np.float32)
        self.norm = self.norm_square[:, 0]

        self.dense = MlpBuffers(self, c, routed=False)
        self.sparse = MlpBuffers(self, c, routed=True)

    def _tiled(self, width: int) -> FloatArray:
        return np.zeros((self._tiles * self._tile_rows, width), np.float32)

    def _in_tiles(self, array: FloatArray) -> FloatArray:
        """View rows as [tiles, tile rows, width]; a single tile needs no first axis."""
        if self._tiles == 1:
            return array
        return np.lib.stride_tricks.as_strided(
            array,
            (self._tiles, self._tile_rows, array.shape[1]),
            (self._tile_rows * array.strides[0], *array.strides),
        )


class MlpBuffers:
    """Scratch of the feed-forward half, for a dense or a sparse layer."""

    def __init__(self, parent: Buffers, config: ModelConfig, *, routed: bool) -> None:
        rows = parent.rows
        experts = config.n_routed_experts if routed else 0
        units = config.moe_intermediate_size if routed else config.intermediate_size
        groups = experts + config.n_shared_experts if routed else 1
        gates = experts + groups * units
        product, active = parent._tiled(gates + groups * units), parent._tiled(groups * units)
        self.product_out = parent._in_tiles(product)
        self.negated, self.gate, self.up = (
            product[:rows, :gates],
            product[:rows, experts:gates],
            product[:rows, gates:],
        )
        self.grown = np.ones((rows, gates), np.float32)
        self.grown_router, self.grown_gate = self.grown[:, :experts], self.grown[:, experts:]
        self.active, self.active_in = active[:rows], parent._in_tiles(active)
        self.routed_units = active[:rows, : experts * units].reshape(rows, experts, units)
        self.score = np.ones((rows, experts), np.float32)
        self.choice, self.ranked, self.kept = (np.zeros((rows, experts), np.float32) for _ in range(3))
        self.chosen = np.zeros((rows, experts), bool)
        self.least = self.ranked[:, experts - config.num_experts_per_tok :][:, :1] if routed else self.ranked
        self.total = np.ones((rows, 1), np.float32)
        self.weight = self.kept[:, :, None]
        self.chosen_count = rows * config.num_experts_per_tok


class Span:
    """Up to SPAN_ROWS rows of one slot at neighbouring positions that share a key block, with their views."""

    def __init__(
        self,
        cache: KvCache,
        buffers: Buffers,
        first_row: int,
        start: int,
        end: int,
        scores: FloatArray,
        masks: FloatArray,
    ) -> None:
        rows = slice(first_row, first_row + end - start)
        columns = start // KEY_BLOCK * KEY_BLOCK + KEY_BLOCK
        heads, latent = buffers.queries.shape[1], buffers.mixed.shape[1]
        self.keys, self.values = cache.blocks(columns)
        self.writes = list(cache.keys[:, :-1, start:end])
        self.key = buffers.key[rows].T
        self.queries = buffers.queries[rows]
        self.scores = scores[: (end - start) * heads * columns].reshape(end - start, heads, columns)
        self.last_block = self.scores[:, :, columns - KEY_BLOCK :]
        self.scores_turned = self.scores.transpose(0, 2, 1)
        sums = np.empty((end - start, latent + 1, heads), np.float32)
        self.sums, self.weighted, self.total = sums, sums[:, :latent], sums[:, latent:]
        self.mixed = buffers.mixed[rows]
        self.largest = np.empty((end - start, heads, 1), np.float32)
        self.mask = masks[start % KEY_BLOCK : start % KEY_BLOCK + end - start]


def attend(span: Span, layer: int, *, shifted: bool) -> None:
    """Write the span's key rows and mix the latent rows of all heads: softmax(q k) c, one product a row."""
    np.copyto(span.writes[layer], span.key)
    scores = span.scores
    np.matmul(span.queries, span.keys[layer], scores)
    np.add(span.last_block, span.mask, span.last_block)
    if shifted:
        np.maximum.reduce(scores, 2, out=span.largest, keepdims=True)
        np.subtract(scores, span.largest, scores)
    np.exp(scores, scores)
    np.matmul(span.values[layer], span.scores_turned, span.sums)
    np.divide(span.weighted, span.total, span.mixed)


def project_keys(b: Buffers, weights: AttentionWeights, *, coarse: bool) -> None:
    """Compute the low-rank query, the rope key and the latent row of every row, with all three norms."""
    np.matmul(round_rows(b.residual_in) if coarse else b.residual_in, weights.inner, b.inner_out)
    np.multiply(b.squared, b.squared, b.squares)
    np.matmul(b.squares_in, weights.norms, b.divisor_out)
    np.sqrt(b.divisor, b.divisor)
    np.divide(b.inner, b.divisor, b.inner)


def attention_layer(
    b: Buffers, spans: list[Span], turns: FloatArray, weights: AttentionWeights, layer: int, *, coarse: bool
) -> None:
    """Add a layer's attention to the residual rows and write their KV."""
    project_keys(b, weights, coarse=coarse)
    np.matmul(b.query_in, weights.query, b.query_out)
    np.multiply(b.rotated, turns, b.rotated)
    np.add(b.plain, b.turned, b.plain)
    for span in spans:
        attend(span, layer, shifted=weights.shifted)
    np.matmul(round_rows(b.mixed_in) if coarse else b.mixed_in, weights.output, b.added_out)
    np.add(b.residual, b.added, b.residual)


def mlp_layer(b: Buffers, weights: MlpWeights, *, normalised: bool, coarse: bool) -> None:
    """Add a layer's feed-forward half to the residual rows."""
    norm_rows(b)
    sparse = weights.bias.size > 0
    m = b.sparse if sparse else b.dense
    np.matmul(round_rows(b.normed_in) if coarse else b.normed_in, weights.inner, m.product_out)
    np.exp(m.negated, m.grown)
    np.add(m.grown, ONE, m.grown)
    np.multiply(m.gate, m.up, m.active)
    np.divide(m.active, m.grown_gate, m.active)
    if sparse:
        route(m, weights, normalised=normalised)
    np.matmul(round_rows(m.active_in) if coarse else m.active_in, weights.down, b.added_out)
    np.add(b.residual, b.added, b.residual)


def norm_rows(b: Buffers) -> None:
    """Divide every residual row by its length (with D * eps inside); the gain is in the matrix behind."""
    np.matmul(b.norm_row, b.norm_column, b.norm_square)
    np.sqrt(b.norm_square, b.norm_square)
    np.divide(b.residual, b.norm, b.normed)


def route(m: MlpBuffers, weights: MlpWeights, *, normalised: bool) -> None:
    """Scale the units of the chosen experts by their scores and those of the others by zero.

    Chosen are the largest of sigmoid + correction bias; the weight is the sigmoid alone, divided by the sum
    of the chosen ones when the config says so. Of equal candidates the lowest index wins.
    """
    np.reciprocal(m.grown_router, m.score)
    np.add(m.score, weights.bias, m.choice)
    np.copyto(m.ranked, m.choice)
    m.ranked.sort()
    np.greater_equal(m.choice, m.least, m.chosen)
    if np.count_nonzero(m.chosen) != m.chosen_count:
        _break_ties(m)
    np.multiply(m.score, m.chosen, m.kept)
    if normalised:
        np.add.reduce(m.kept, 1, out=m.total, keepdims=True, initial=TINY)
        np.divide(m.kept, m.total, m.kept)
    np.multiply(m.routed_units, m.weight, m.routed_units)


def _break_ties(m: MlpBuffers) -> None:
    wanted = m.chosen_count // len(m.choice)
    best = np.argsort(-m.choice, axis=1, kind="stable")[:, :wanted]
    m.chosen[:] = False
    np.put_along_axis(m.chosen, best, True, axis=1)


def round_rows(rows: FloatArray) -> FloatArray:
    """Round every row to 255 levels, as engines with int8 activations do."""
    scale = np.abs(rows).max(-1, keepdims=True) / INT8_LEVELS
    scale[scale == 0] = 1
    rounded: FloatArray = np.rint(rows / scale) * scale
    return rounded
