"""Greedy decoding with self-speculation in torch, for evaluation: an engine's conventions without its speed.

The trunk keeps one cache, the MTP head another. Prefill fills both (or, on request, leaves the head's cache
empty). A draft for the token after position p writes its depth-1 row at p and deeper rows behind it, and
accepted tokens overwrite those with true rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .model import Block, ReferenceModel


@dataclass(slots=True)
class LayerCache:
    """Keys and values [1, H, T, width] of one layer; row 0 stands for position ``start``."""

    start: int = 0
    key: Tensor | None = None
    value: Tensor | None = None

    def put(self, at: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Drop the rows from position ``at`` on, add new ones, return all."""
        if self.key is None or self.value is None:
            self.start = at
            self.key, self.value = key, value
        else:
            keep = at - self.start
            self.key = torch.cat((self.key[:, :, :keep], key), dim=2)
            self.value = torch.cat((self.value[:, :, :keep], value), dim=2)
        return self.key, self.value


@dataclass(slots=True, kw_only=True)
class Counts:
    """What one answer cost."""

    forwards: int = 0
    proposed: list[int] = field(default_factory=lambda: [0] * 8)
    accepted: list[int] = field(default_factory=lambda: [0] * 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tokens of an answer without its stop token; ``stopped`` tells whether there was one."""

    tokens: tuple[int, ...]
    stopped: bool
    counts: Counts


class Decoder:
    """One context of a model."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model = model
        self.caches = [LayerCache() for _ in model.layers]
        self.head_cache = LayerCache()

    def _block(self, block: nn.Module, x: Tensor, at: int, cache: LayerCache) -> Tensor:
        """One layer for rows x [1, S, D] at positions from ``at`` on."""
        assert isinstance(block, Block)
        attention, count = block.self_attn, x.shape[1]
        cos, sin = self.model.cos[None, None, at : at + count], self.model.sin[None, None, at : at + count]
        query, key, value = attention.project(block.input_layernorm(x), cos, sin)
        key, value = cache.put(at, key, value)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        future = torch.ones(scores.shape[-2:]).triu(scores.shape[-1] - count + 1).bool()
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ value
        return block.feed_forward(x + attention.output(mixed))

    def forward(self, tokens: list[int], at: int) -> tuple[Tensor, Tensor]:
        """Hidden rows after the final norm [S, D] and logits [S, V]."""
        x = self.model.embed_tokens(torch.tensor([tokens]))
        for layer, cache in zip(self.model.layers, self.caches, strict=True):
            x = self._block(layer, x, at, cache)
        hidden = self.model.norm(x)[0]
        return hidden, self.model.lm_head(hidden)

    def head_rows(self, tokens: list[int], hidden: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """MTP rows for true or drafted pairs (next token, hidden row [S, D]): raw output and logits."""
        joined = self.model.mtp.join(self.model.embed_tokens(torch.tensor([tokens])), hidden[None])
        raw = self._block(self.model.mtp.block, joined, at, self.head_cache)[0]
        return raw, self.model.lm_head(self.model.mtp.norm(raw))

    def draft(self, token: int, hidden: Tensor, at: int, depth: int) -> list[int]:
        """``depth`` guesses for the tokens after ``token``; ``hidden`` [1, D] belongs to position ``at``."""
        drafts: list[int] = []
        for step in range(depth):
            hidden, logits = self.head_rows([token], hidden, at + step)
            token = int(logits[0].argmax())
            drafts.append(token)
        return drafts

    @torch.no_grad()
    def generate(
        self, prompt: list[int], limit: int, depth: int, stops: frozenset[int], *, fill_head: bool = True
    ) -> Answer:
        """Greedy answer of up to ``limit`` tokens."""
        counts, out = Counts(), list[int]()
        rows, logits = self.forward(prompt, 0)
        if depth and fill_head and len(prompt) > 1:
            self.head_rows(prompt[1:], rows[:-1], 0)
        hidden, token, at = rows[-1:], int(logits[-1].argmax()), len(prompt)
        while len(out) < limit and token not in stops:
            out.append(token)
            drafts = self.draft(token, hidden, at - 1, min(depth, limit - len(out))) if depth else []
            rows, logits = self.forward([token, *drafts], at)
            counts.forwards += 1
            choices = logits.argmax(-1).tolist()
            taken = _count_equal(drafts, choices, counts, stops)
            if taken and depth:
                self.head_rows(drafts[:taken], rows[:taken], at)
            out += drafts[:taken]
            hidden, token, at = rows[taken : taken + 1], choices[taken], at + 1 + taken
        return Answer(tokens=tuple(out[:limit]), stopped=token in stops, counts=counts)


def _count_equal(drafts: list[int], choices: list[int], counts: Counts, stops: frozenset[int]) -> int:
    """How many drafts the model confirms; a confirmed stop token ends the answer instead of being taken."""
    for depth, draft in enumerate(drafts):
        counts.proposed[depth] += 1
        if choices[depth] != draft:
            return depth
        counts.accepted[depth] += 1
        if draft in stops:
            return depth
    return len(drafts)
