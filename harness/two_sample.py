"""A two-sample test for sampled answers: do two arms draw from the same distribution?

Both arms answer the same prompts, one draw each, so a pair is one prompt. If a prompt's two answers come
from one distribution, which of them came from which arm is a coin toss: swapping the answers of any
pairs changes nothing about how likely the data are. The test holds the observed statistic against that
of many random swaps.

The statistic is the chi-square distance of the two tables of counts, the sum over answers of
``(a - b)**2 / (a + b)`` for the counts ``a`` and ``b``. With ``r`` of ``SWAPS`` random swaps at least as far
apart as the data, ``p = (1 + r) / (1 + SWAPS)``. When the arms draw alike, the probability of
``p <= ALPHA`` is at most ``ALPHA``, whatever the distributions and however few the draws. So the error rate
of a test, that is of calling two equal arms different, is at most 1 in 1,000. The usual chi-square
approximation would not keep to that with as many rare answers as a language model gives.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.001
SWAPS = 9999
# With fewer pairs even arms that hardly ever agree may not be told apart at this error rate.
MIN_PAIRS = 30
# The swaps come from a fixed seed, so that the same data always give the same verdict.
_SEED = 20261130
_CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSample:
    """What the test says of two arms.

    Attributes:
        pairs: prompts that both arms answered.
        outcomes: different answers over both arms.
        statistic: chi-square distance of the two tables of counts.
        p_value: None with too few pairs.
        differs: the arms draw from different distributions, with an error rate of at most ``ALPHA``.
    """

    pairs: int
    outcomes: int
    statistic: float
    p_value: float | None
    differs: bool


def compare_draws(pairs: Sequence[tuple[Hashable, Hashable]]) -> TwoSample:
    """Test the answers of two arms to the same prompts, each pair (a, b) the answers to one prompt."""
    answers = [answer for pair in pairs for answer in pair]
    outcomes = {answer: index for index, answer in enumerate(dict.fromkeys(answers))}
    # What pair i adds to the difference of the tables; a swap turns the sign of its row around.
    rows = np.zeros((len(pairs), len(outcomes)), np.float32)
    for row, (a, b) in zip(rows, pairs, strict=True):
        row[outcomes[a]] += 1
        row[outcomes[b]] -= 1
    totals = np.zeros(len(outcomes), np.float32)
    for answer in answers:
        totals[outcomes[answer]] += 1
    statistic = float((rows.sum(axis=0) ** 2 / totals).sum())
    p_value = _swap(rows, totals, statistic) if len(pairs) >= MIN_PAIRS else None
    return TwoSample(
        pairs=len(pairs),
        outcomes=len(outcomes),
        statistic=statistic,
        p_value=p_value,
        differs=p_value is not None and p_value <= ALPHA,
    )


def _swap(rows: NDArray[np.float32], totals: NDArray[np.float32], statistic: float) -> float:
    """Return the p-value from random swaps; ``rows`` [pairs, outcomes], ``totals`` [outcomes]."""
    generator = np.random.default_rng(_SEED)
    at_least = 0
    for start in range(0, SWAPS, _CHUNK):
        count = min(_CHUNK, SWAPS - start)
        signs = generator.integers(0, 2, (count, len(rows))).astype(np.float32) * 2 - 1
        swapped = ((signs @ rows) ** 2 / totals).sum(axis=1)
        # A swap that gives the same tables must count as at least as far, whatever the rounding.
        at_least += int((swapped >= statistic * (1 - 1e-5)).sum())
    return (1 + at_least) / (1 + SWAPS)
