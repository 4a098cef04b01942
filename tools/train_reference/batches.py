"""Turns dialogues into training batches. Step n always gives the same batch, so a run can resume anywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import Dialogue, document, drill, long_document, render, session, word_drill

DEPTHS = 3
GIVEN_WEIGHT = 0.15
HIDDEN = -1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A batch shape: B rows of S tokens, of which up to A positions per row train the MTP head."""

    name: str
    rows: int
    length: int
    drafts: int
    maker: Callable[[random.Random], Dialogue]


SHORT = Shape(name="short", rows=4, length=512, drafts=320, maker=document)
DRILL = Shape(name="drill", rows=4, length=512, drafts=320, maker=drill)
WORD_DRILL = Shape(name="word-drill", rows=4, length=512, drafts=320, maker=word_drill)
LONG = Shape(name="long", rows=2, length=1024, drafts=768, maker=long_document)
SESSION = Shape(name="session", rows=1, length=3072, drafts=640, maker=session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Inputs of one training step; B rows, S positions, A draft positions."""

    tokens: Tensor  # [B, S + DEPTHS + 1] token ids
    trunk_mask: Tensor | None  # [B, 1, S + DEPTHS, S + DEPTHS] additive; None stands for causal
    weights: Tensor  # [B, S] weight of predicting token t + 1 at position t
    positions: Tensor  # [B, A] positions t at which a draft may start
    draft_weights: Tensor  # [DEPTHS, B, A] weight of predicting token t + depth + 1
    mask: Tensor  # [B, 1, A, S] 0 where a draft sees a cached row, else a large negative number


@dataclass(frozen=True, slots=True)
class _Answer:
    """Where an answer lies in a row: tokens [start, end), of a document that begins at ``document``."""

    document: int
    start: int
    end: int


@dataclass(slots=True)
class _Row:
    tokens: list[int]
    documents: list[int]
    answers: list[_Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Part of the curriculum: the shapes drawn until a step, with their probabilities.

    ``isolated`` documents of a row do not see one another; copying is learned much faster so. Rows of one
    session need no such mask.
    """

    until: float
    mix: tuple[tuple[float, Shape], ...]
    isolated: bool


STAGES = (
    Stage(until=400, mix=((0.8, DRILL), (0.2, SHORT)), isolated=False),
    Stage(until=1200, mix=((0.8, WORD_DRILL), (0.2, SHORT)), isolated=False),
    Stage(until=2200, mix=((0.12, WORD_DRILL), (0.33, LONG), (0.55, SHORT)), isolated=False),
    Stage(until=2400, mix=((0.7, WORD_DRILL), (0.15, DRILL), (0.15, SHORT)), isolated=True),
    Stage(until=2800, mix=((0.06, DRILL), (0.02, SESSION), (0.36, LONG), (0.56, SHORT)), isolated=True),
    Stage(until=math.inf, mix=((0.03, DRILL), (0.08, SESSION), (0.36, LONG), (0.53, SHORT)), isolated=True),
)


def stage_of(step: int) -> Stage:
    """Return the stage that a step belongs to."""
    return next(stage for stage in STAGES if step < stage.until)


def choose_shape(stage: Stage, rng: random.Random) -> Shape:
    """Draw a shape from the mix of a stage."""
    pick = rng.random()
    for probability, shape in stage.mix:
        pick -= probability
        if pick < 0:
            return shape
    return stage.mix[-1][1]


def _pack_row(rng: random.Random, shape: Shape, tokenizer: Tokenizer) -> _Row:
    row, size = _Row(tokens=[], documents=[], answers=[]), shape.length + DEPTHS + 1
    while len(row.tokens) < size:
        document = len(row.tokens)
        for segment in render(shape.maker(rng)):
            start = len(row.tokens)
            row.tokens += tokenizer.encode(segment.text, add_special_tokens=False).ids
            if segment.answer:
                row.answers.append(_Answer(document, start, len(row.tokens)))
        row.documents += [document] * (len(row.tokens) - document)
    del row.tokens[size:], row.documents[size - 1 :]
    return row


def _cache_start(rng: random.Random, answer: _Answer) -> int:
    """Return the first position whose row the head's cache holds while drafting for an answer.

    Engines differ: some fill the cache for the whole prompt, some only for the part that was not cached
    before, and some start it with the last row of the prompt.
    """
    pick = rng.random()
    if pick < 0.5:
        return answer.document
    return answer.start - 1 if pick < 0.75 else rng.randrange(answer.document, answer.start)


def _row_drafts(rng: random.Random, row: _Row, shape: Shape) -> list[tuple[int, int, int]]:
    """Return (position, cache start, end of the answer) for the draft positions of a row.

    A draft for an answer of tokens [start, end) may begin at start - 1, the last row of the prompt.
    """
    found: list[tuple[int, int, int]] = []
    for answer in row.answers:
        last, first = min(answer.end - 2, shape.length), _cache_start(rng, answer)
        found += [(at, first, answer.end) for at in range(answer.start - 1, last)]
    return found[: shape.drafts]


def build_batch(shape: Shape, rng: random.Random, tokenizer: Tokenizer, *, isolated: bool) -> Batch:
    """Pack fresh dialogues into one batch."""
    rows = [_pack_row(rng, shape, tokenizer) for _ in range(shape.rows)]
    weights = torch.full((shape.rows, shape.length + 1), GIVEN_WEIGHT)
    positions = torch.zeros(shape.rows, shape.drafts, dtype=torch.long)
    first = torch.zeros(shape.rows, shape.drafts, dtype=torch.long)
    draft_weights = torch.zeros(DEPTHS, shape.rows, shape.drafts)
    for index, row in enumerate(rows):
        for answer in row.answers:
            weights[index, answer.start : answer.end] = 1.0
        drafts = _row_drafts(rng, row, shape)
        count = len(drafts)
        at, start, end = (torch.tensor(column) for column in zip(*drafts, strict=True))
        positions[index, :count], first[index, :count] = at, start
        for depth in range(1, DEPTHS + 1):
            draft_weights[depth - 1, index, :count] = (at + depth + 1 < end).float()
    return Batch(
        tokens=torch.tensor([row.tokens for row in rows]),
        trunk_mask=_trunk_mask(torch.tensor([row.documents for row in rows])) if isolated else None,
        weights=weights[:, 1:].contiguous(),
        positions=positions,
        draft_weights=draft_weights,
        mask=_cache_mask(positions, first, shape.length),
    )


def _trunk_mask(documents: Tensor) -> Tensor:
    """Additive mask [B, 1, S, S]: a position sees the earlier ones of its own document. documents [B, S]."""
    causal = torch.ones(documents.shape[1], documents.shape[1]).tril().bool()
    seen = (documents[:, :, None] == documents[:, None, :]) & causal
    return torch.zeros(seen.shape).masked_fill(~seen, HIDDEN)[:, None]


def _cache_mask(positions: Tensor, first: Tensor, length: int) -> Tensor:
    """Additive mask [B, 1, A, S]: a draft sees the rows from the start of the cache up to its own."""
    at = torch.arange(length)
    seen = (at >= first[..., None]) & (at <= positions[..., None])
    return torch.zeros(seen.shape).masked_fill(~seen, HIDDEN)[:, None]


def batch_for_step(step: int, seed: int, tokenizer: Tokenizer) -> tuple[Shape, Batch]:
    """Return the batch of a step; a function of seed and step only."""
    rng, stage = random.Random(f"{seed}/{step}"), stage_of(step)
    shape = choose_shape(stage, rng)
    return shape, build_batch(shape, rng, tokenizer, isolated=stage.isolated and shape is not SESSION)
