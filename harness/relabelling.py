"""A test by relabelling: had the arms the same speed, which cells of a block belong to which arm would mean
nothing, so any balanced labelling of them is as likely as the one that was run.

The statistic is the sum over cells of their score, with the sign of their arm. It is held against that of
many random labellings of the same cells (Fisher, The Design of Experiments, 1935; Pitman, Significance Tests
Which May be Applied to Samples from any Populations, Supplement to the Journal of the Royal Statistical
Society 4, 1937). Scores are made without regard to the arms, so the error rate holds whatever the law of the
times. What drifts over more than a block is the same for all labellings. A drift within a block only widens
the labellings, as the order that was run is balanced.

A run that may end early looks after every pair. Of the error rate the share of the pairs so far is spent
(Lan and DeMets, Discrete Sequential Boundaries for Clinical Trials, Biometrika 70, 1983), on the labellings
themselves: of those that have not crossed at an earlier look, as many as the share allows cross at this one.
So at most that rate of equal arms is ever called different at any look up to the last planned pair, wherever
the run is stopped and for whatever reason.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from harness.paired_cells import CellPair, align
from harness.robust import score

Array = NDArray[np.float64]

# Enough for an error rate of 1 in 1,000; ``count_labellings`` asks for more where a rate is smaller.
LABELLINGS = 9999
# An interval never reaches further than a tenfold ratio from the estimate.
WIDEST = math.log(10)
_FIRST_STEP = 0.01
_PRECISION = 1e-4
_SEED = 19350701
# A B B A, or B A A B.
BLOCK_PAIRS = 2
# At one look at the end. More cells that change places tell their spread better; over a whole run a drift
# that is no straight line would be part of it.
BLOCKS_TOGETHER = 4
# Sums of the same terms in another order differ by rounding; they are the same labelling.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the data shows: the statistic, and that of each labelling, [labellings]."""

    pairs: int
    share: float
    statistic: float
    labelled: Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a series of looks came to: the first that called the arms different, or the last.

    ``nominal_rate`` is how often that look by itself would call equal arms different.
    """

    pairs: int
    differs: bool
    nominal_rate: float


def count_labellings(rate: float) -> int:
    """Return how many labellings can tell an error rate."""
    return max(LABELLINGS, int(10 ** math.ceil(math.log10(2 / rate))) - 1)


def look(
    pairs: Sequence[CellPair],
    *,
    block_pairs: int = BLOCK_PAIRS,
    together: int = 1,
    share: float = 1.0,
    labellings: int = LABELLINGS,
) -> Look:
    """Look at all pairs, which are in the order of their blocks of ``block_pairs`` pairs.

    So many blocks ``together`` are labelled as one. A block that is not complete has the labellings that the
    whole one would have, as far as it goes.
    """
    scores = score(align(pairs).ravel())
    unit = float(np.abs(scores).sum()) or 1.0
    own = float(scores @ np.tile([-1.0, 1.0], len(pairs)))
    sums = np.zeros(labellings)
    start = 0
    for number, size in enumerate(_block_sizes(pairs, together)):
        labels = _label_block(number, block_pairs * together, labellings)[:, : 2 * size]
        sums += labels @ scores[start : start + 2 * size]
        start += 2 * size
    return Look(
        pairs=len(pairs),
        share=share,
        statistic=round(abs(own) / unit, _DIGITS),
        labelled=np.round(np.abs(sums) / unit, _DIGITS),
    )


def look_pair_by_pair(
    pairs: Sequence[CellPair], planned_pairs: int, *, first: int = 2, labellings: int = LABELLINGS
) -> tuple[Look, ...]:
    """Look after every pair of a run of ``planned_pairs`` pairs, from pair number ``first``."""
    return tuple(
        look(pairs[:count], share=min(count / planned_pairs, 1.0), labellings=labellings)
        for count in range(first, len(pairs) + 1)
    )


def find_p_value(looked: Look) -> float:
    """Return the p-value of one look at the end: how rarely a labelling is as far from 0 as the arms are."""
    return float((1 + (looked.labelled >= looked.statistic).sum()) / (1 + len(looked.labelled)))


def decide(looks: Sequence[Look], rate: float) -> Outcome:
    """Return what the looks, at least one, come to at an error rate over all of them."""
    labellings = 1 + len(looks[0].labelled)
    crossed = np.zeros(len(looks[0].labelled), bool)
    nominal_rate = 0.0
    for seen in looks:
        quota = math.floor(rate * seen.share * labellings) - int(crossed.sum())
        boundary = _find_boundary(np.append(seen.labelled[~crossed], seen.statistic), quota)
        nominal_rate = float((1 + (seen.labelled >= boundary).sum()) / labellings)
        if seen.statistic >= boundary:
            return Outcome(pairs=seen.pairs, differs=True, nominal_rate=nominal_rate)
        crossed |= seen.labelled >= boundary
    return Outcome(pairs=looks[-1].pairs, differs=False, nominal_rate=nominal_rate)


def invert(pairs: Sequence[CellPair], middle: float, rate: float, labellings: int) -> tuple[float, float]:
    """Return the ends of the effects on the logarithm that one look at ``rate`` does not reject.

    ``middle`` is the estimate, which is inside. Where the data bound nothing, an end is ``WIDEST`` away.
    """

    def is_rejected(effect: float) -> bool:
        moved = [replace(pair, log_b=pair.log_b - effect) for pair in pairs]
        return find_p_value(look(moved, labellings=labellings)) <= rate

    return _search(is_rejected, middle, -1), _search(is_rejected, middle, 1)


def _search(is_rejected: Callable[[float], bool], inside: float, side: int) -> float:
    step = _FIRST_STEP
    while not is_rejected(inside + side * step):
        if step >= WIDEST:
            return inside + side * WIDEST
        step *= 2
    low, high = 0.0, step
    while high - low > _PRECISION:
        half = (low + high) / 2
        low, high = (low, half) if is_rejected(inside + side * half) else (half, high)
    return inside + side * low


def _find_boundary(statistics: Array, quota: int) -> float:
    """Return the least value that at most ``quota`` of the statistics reach."""
    if quota <= 0:
        return math.inf
    falling = np.sort(statistics)[::-1]
    at_quota = falling[min(quota, len(falling)) - 1]
    if (falling >= at_quota).sum() <= quota:
        return float(at_quota)
    above = falling[falling > at_quota]
    return float(above[-1]) if len(above) else math.inf


def _block_sizes(pairs: Sequence[CellPair], together: int) -> tuple[int, ...]:
    return tuple(len(list(group)) for _, group in groupby(pairs, key=lambda pair: pair.block // together))


@lru_cache(maxsize=256)
def _label_block(number: int, pairs: int, labellings: int) -> Array:
    """Return labellings of one block [labellings, cells]; the same for a block at every look."""
    generator = np.random.default_rng([_SEED, number])
    return generator.permuted(np.tile([-1.0, 1.0], (labellings, pairs)), axis=1)
