"""The multi-token-prediction (MTP) layer as a drafter: one row at a time, as cheap as it gets.

Row p of the head pairs the main model's hidden row of position p, after the final norm, with the token at p +
1. Deeper drafts pair the head's own raw output with its own proposal, at the next position. Nothing that is
emitted depends on a draft, so its rows are not made in tiles and see exactly the keys there are.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine_bindings.reference.config import ModelConfig
from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.layers import ONE, TINY, RopeTable
from engine_bindings.reference.weights import MtpWeights, row_head_width

FloatArray = NDArray[np.float32]


class _Row:
    """Scratch of one row; the layout is that of ``layers.Buffers``."""

    def __init__(self, config: ModelConfig) -> None:
        c = config
        width, rope, latent, heads = c.hidden_size, c.qk_rope_head_dim, c.kv_lora_rank, c.num_attention_heads
        inner_at = row_head_width(c)
        key_at = inner_at + c.q_lora_rank
        query_at = key_at + 2 * rope + latent
        wide = np.zeros(query_at + heads * (2 * rope + latent), np.float32)
        wide[width] = math.sqrt(width * c.rms_norm_eps)
        self.residual, self.squared = wide[:width], wide[:query_at]
        self.inner, self.query_in, self.query_out = (
            wide[inner_at:query_at],
            wide[inner_at:key_at],
            wide[query_at:],
        )
        by_head = wide[key_at:].reshape(heads + 1, -1)
        self.rotated, self.turned, self.plain = (
            by_head[:, : 2 * rope],
            by_head[:, :rope],
            by_head[:, rope : 2 * rope],
        )
        self.key, self.queries = by_head[0, rope:], by_head[1:, rope:]
        self.squares, self.divisor = np.zeros(query_at, np.float32), np.zeros(query_at - inner_at, np.float32)
        self.mixed = np.zeros((latent, heads), np.float32)
        self.mixed_row = self.mixed.reshape(-1)
        self.added, self.normed, self.joined = (np.zeros(width, np.float32) for _ in range(3))
        experts, units = c.n_routed_experts, c.moe_intermediate_size
        all_units = (experts + c.n_shared_experts) * units
        gates = experts + all_units
        self.product, self.grown = np.zeros(gates + all_units, np.float32), np.zeros(gates, np.float32)
        self.negated, self.gate, self.up = (
            self.product[:gates],
            self.product[experts:gates],
            self.product[gates:],
        )
        self.grown_router, self.grown_gate = self.grown[:experts], self.grown[experts:]
        self.active = np.zeros(all_units, np.float32)
        self.routed_units = self.active[: experts * units].reshape(experts, units)
        self.kept = np.zeros((experts, 1), np.float32)
        self.logits = np.zeros(c.vocab_size, np.float32)


class MtpHead:
    """Fills the head's KV rows and proposes tokens."""

    def __init__(self, config: ModelConfig, weights: MtpWeights, rope: RopeTable) -> None:
        self.config = config
        self.weights = weights
        self._rope = rope
        self._row = _Row(config)
        self._bias = [float(value) for value in weights.layer.mlp.bias]
        self._floor = config.hidden_size * config.rms_norm_eps
        self._latent_at = config.qk_rope_head_dim
        self._wanted, self._normalised = config.num_experts_per_tok, config.norm_topk_prob

    def absorb(self, cache: KvCache, tokens_after: Sequence[int], hidden: FloatArray, start: int) -> None:
        """Fill KV rows from verified pairs; a row's key depends on its own pair, so none attends."""
        c, attention = self.config, self.weights.layer.attention
        end = start + len(tokens_after)
        cache.open_draft(start, end)
        lengths = np.sqrt(np.einsum("nd,nd->n", hidden, hidden) + self._floor)
        joined = np.dot(hidden, self.weights.hidden) / lengths[:, None]
        joined += self.weights.embedding[tokens_after]
        inner = np.dot(joined, attention.inner)
        squares = np.zeros((len(joined), len(attention.norms)), np.float32)
        np.multiply(joined, joined, squares[:, : c.hidden_size])
        squares[:, c.hidden_size] = self._floor
        np.multiply(inner, inner, squares[:, -inner.shape[1] :])
        inner /= np.sqrt(np.dot(squares, attention.norms))
        rope, key = c.qk_rope_head_dim, inner[:, c.q_lora_rank :]
        both = key[:, : 2 * rope] * self._rope.rows(start, end)[:, 0]
        keys = cache.keys[c.mtp_layer]
        np.add(both[:, :rope].T, both[:, rope:].T, keys[:rope, start:end])
        keys[rope:-1, start:end] = key[:, 2 * rope :].T

    def draft(
        self,
        cache: KvCache,
        tokens_after: Sequence[int],
        hidden: FloatArray,
        start: int,
        depth: int,
        logits: list[FloatArray] | None = None,
    ) -> list[int]:
        """Return ``depth`` proposals behind the last pair, fewer where the context ends.

        The logits of each step are appended to ``logits``. The best token needs no norm in front of the
        output matrix, as a norm only scales the row.
        """
        newest = start + len(tokens_after) - 1
        depth = min(depth, cache.capacity_tokens - newest)
        if depth < 1:
            self.absorb(cache, tokens_after, hidden, start)
            return []
        if len(tokens_after) > 1:
            self.absorb(cache, tokens_after[:-1], hidden[:-1], start)
        window = cache.open_draft(newest, newest + 1)
        keys, row = cache.keys[self.config.mtp_layer], self._row
        token, given, tokens = tokens_after[-1], hidden[-1], []
        for position, turns in enumerate(self._rope.rows(newest, newest + depth), newest):
            self._join(token, given)
            self._attend(keys, window, position, turns)
            self._feed_forward()
            np.dot(row.residual, self.weights.head, row.logits)
            token, given = int(row.logits.argmax()), row.residual
            tokens.append(token)
            if logits is not None:
                logits.append(row.logits / self._length(given))
        return tokens

    def _length(self, row: FloatArray) -> float:
        """Length of a row, with D * eps inside, as everywhere in front of a norm's gain."""
        return math.sqrt(np.dot(row, row) + self._floor)

    def _join(self, token: int, hidden: FloatArray) -> None:
        """Make the residual row of the head's layer from a token and a hidden row."""
        r = self._row
        length = self._length(hidden)
        np.dot(hidden, self.weights.hidden, r.joined)
        np.multiply(r.joined, 1 / length, r.joined)
        np.add(r.joined, self.weights.embedding[token], r.residual)

    def _attend(self, keys: FloatArray, window: int, position: int, turns: FloatArray) -> None:
        r, weights = self._row, self.weights.layer.attention
        np.dot(r.residual, weights.inner, r.inner)
        np.multiply(r.squared, r.squared, r.squares)
        np.dot(r.squares, weights.norms, r.divisor)
        np.sqrt(r.divisor, r.divisor)
        np.divide(r.inner, r.divisor, r.inner)
        np.dot(r.query_in, weights.query, r.query_out)
        np.multiply(r.rotated, turns, r.rotated)
        np.add(r.plain, r.turned, r.plain)
        keys[:-1, position] = r.key
        seen = keys[:, window : position + 1]
        scores = np.dot(r.queries, seen[:-1])
        if weights.shifted:
            scores -= np.maximum.reduce(scores, 1, keepdims=True)
        np.exp(scores, scores)
        sums = np.dot(seen[self._latent_at :], scores.T)
        np.divide(sums[:-1], sums[-1], r.mixed)
        np.dot(r.mixed_row, weights.output, r.added)
        np.add(r.residual, r.added, r.residual)

    def _feed_forward(self) -> None:
        r, weights = self._row, self.weights.layer.mlp
        np.multiply(r.residual, 1 / self._length(r.residual), r.normed)
        np.dot(r.normed, weights.inner, r.product)
        np.exp(r.negated, r.grown)
        np.add(r.grown, ONE, r.grown)
        np.multiply(r.gate, r.up, r.active)
        np.divide(r.active, r.grown_gate, r.active)
        self._route()
        np.dot(r.active, weights.down, r.added)
        np.add(r.residual, r.added, r.residual)

    def _route(self) -> None:
        """Scale the experts' units as ``layers.route`` does; for one row plain Python is quicker."""
        r = self._row
        scores = [1.0 / grown for grown in r.grown_router.tolist()]
        choice = [score + bias for score, bias in zip(scores, self._bias, strict=True)]
        best = []
        for _ in range(self._wanted):
            best.append(choice.index(max(choice)))
            choice[best[-1]] = -math.inf
        total = sum([scores[expert] for expert in best], TINY) if self._normalised else 1.0
        r.kept.fill(0)
        for expert in best:
            r.kept[expert, 0] = scores[expert] / total
        np.multiply(r.routed_units, r.kept, r.routed_units)
