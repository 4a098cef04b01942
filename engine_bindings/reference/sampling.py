"""Choosing a token from logits: greedy, or sampled with one random number for every position.

Drafts are the head's most probable tokens, so speculative sampling (Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding", ICML 2023) is at its simplest: the draft distribution is one point d,
so accept d with probability p(d), else draw from p without d, renormalised. Drawing x from p and accepting
exactly when x = d does both: P(x = d) = p(d), and x given x != d follows that residual. The emitted text
therefore has the target's distribution, and because the random number belongs to the position it is even the
same text at every draft depth.
"""

import hashlib
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_TEMPERATURE = 1e-4
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a turn chooses its tokens; temperature 0 is greedy."""

    temperature: float
    top_p: float

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """A request's random numbers, one for every position, in no order.

    They depend on the seed and the prompt's tokens only: not on the slot, the path, the draft depth, or the
    requests that ran before.
    """

    key: bytes

    @classmethod
    def for_request(cls, seed: int | None, prompt: Sequence[int]) -> "Draws":
        """Return the numbers of this prompt under ``seed``; None takes fresh entropy."""
        root = os.urandom(16) if seed is None else (seed % (1 << 64)).to_bytes(8, "little")
        return cls(key=hashlib.blake2b(array("q", prompt).tobytes(), key=root, digest_size=16).digest())

    def at(self, position: int) -> float:
        """Return the number for the token at ``position``, uniform in [0, 1)."""
        digest = hashlib.blake2b(position.to_bytes(8, "little"), key=self.key, digest_size=8).digest()
        return float(int.from_bytes(digest, "little") >> 11) / float(1 << 53)


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """The two best tokens of one row of logits."""

    top1_id: int
    top1_logit: float
    top2_id: int
    top2_logit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A token's log-probability (natural, at temperature 1), and the most probable tokens with theirs."""

    logprob: float
    alternatives: tuple[tuple[int, float], ...]


def target_distribution(logits: FloatArray, sampling: Sampling) -> NDArray[np.float64]:
    """Return the probabilities [V] that a token is sampled from: temperature, then top-p.

    Top-p keeps the most probable tokens until their sum reaches it (at least one; ties keep the lower id) and
    renormalises.
    """
    scaled = logits.astype(np.float64) / max(sampling.temperature, MIN_TEMPERATURE)
    weights = np.exp(scaled - scaled.max())
    probabilities: NDArray[np.float64] = weights / weights.sum()
    if sampling.top_p >= 1:
        return probabilities
    order = np.argsort(-probabilities, kind="stable")
    kept = int(np.searchsorted(np.cumsum(probabilities[order]), sampling.top_p)) + 1
    probabilities[order[kept:]] = 0.0
    probabilities /= probabilities.sum()
    return probabilities


def draw_token(probabilities: NDArray[np.float64], number: float) -> int:
    """Return the token that ``number`` in [0, 1) falls on when tokens are laid out by their ids."""
    edges = np.cumsum(probabilities)
    token = int(np.searchsorted(edges, number * edges[-1], side="right"))
    return min(token, int(np.flatnonzero(probabilities)[-1]))  # the product may round up to the last edge


def choose_token(logits: FloatArray, sampling: Sampling, number: float) -> int:
    """Return the token for one row of logits [V]; greedy ties go to the lowest id."""
    if sampling.greedy:
        return int(logits.argmax())
    return draw_token(target_distribution(logits, sampling), number)


def score_token(logits: FloatArray, token: int, alternatives: int) -> Score:
    """Score ``token`` by one row of raw logits [V]; equal logits go to the lower id first."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    best: list[int] = []
    if alternatives:
        least = np.partition(values, -alternatives)[-alternatives]
        near = np.flatnonzero(values >= least)
        best = near[np.argsort(-values[near], kind="stable")][:alternatives].tolist()
    return Score(logprob=float(values[token]), alternatives=tuple((i, float(values[i])) for i in best))


def measure_margin(logits: FloatArray) -> Margin:
    """Return the two best tokens of a row [V]; equal logits go to the lower id first."""
    best = int(logits.argmax())
    others = logits.copy()
    others[best] = -np.inf
    second = int(others.argmax())
    return Margin(
        top1_id=best, top1_logit=float(logits[best]), top2_id=second, top2_logit=float(logits[second])
    )
