"""Bootstrap intervals, bias-corrected and accelerated (BCa): Efron, Better Bootstrap Confidence Intervals,
Journal of the American Statistical Association 82, 1987.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Indices = NDArray[np.int64]
Array = NDArray[np.float64]
RESAMPLES = 1999
# Fixed, so that the same records always give the same interval.
_SEED = 19870301


def interval(statistic: Callable[[Indices], Array], count: int, level: float) -> tuple[float, float]:
    """Return the ends of the interval of a statistic of ``count`` things.

    Args:
        statistic: takes indices [m, k] of things and returns the statistic of each row, [m].
        count: how many things there are; at least 2.
        level: 0.95 for an interval that misses in one case of twenty.
    """
    whole = float(statistic(np.arange(count)[None])[0])
    drawn = np.sort(statistic(_draw(count)))
    if drawn[0] == drawn[-1]:
        return whole, whole
    bias = ndtri(_share_below(drawn, whole))
    acceleration = _accelerate(statistic(_leave_one_out(count)))
    tails = ndtri(np.array([(1 - level) / 2, (1 + level) / 2]))
    shifted = bias + tails
    shares = ndtr(bias + shifted / (1 - acceleration * shifted))
    low, high = np.quantile(drawn, shares)
    return float(low), float(high)


@lru_cache(maxsize=8)
def _draw(count: int) -> Indices:
    return np.random.default_rng(_SEED).integers(0, count, (RESAMPLES, count))


def _leave_one_out(count: int) -> Indices:
    return np.array([[j for j in range(count) if j != i] for i in range(count)])


def _share_below(drawn: Array, whole: float) -> float:
    """Return the share of resamples below the statistic, ties counted half, kept inside 0 and 1."""
    share = float(((drawn < whole).sum() + (drawn == whole).sum() / 2) / len(drawn))
    return min(max(share, 1 / (len(drawn) + 1)), 1 - 1 / (len(drawn) + 1))


def _accelerate(left_out: Array) -> float:
    """Return the acceleration from the jackknife values."""
    distances = left_out.mean() - left_out
    squares = float((distances**2).sum())
    return float((distances**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
