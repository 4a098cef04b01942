"""What a number of pairs can show: the least that say anything, and the smallest effect that is found."""

import math

from scipy.special import ndtri, stdtrit

# Labellings of a block of two pairs that are balanced.
_LABELLINGS_OF_BLOCK = 6
# With fewer, resampled pairs say little about the interval.
_LEAST = 8
# One cell in twenty is left out as an outlier, and the biweight wastes as much again on what is none.
_EFFICIENCY = 0.95 * 0.95
POWER = 0.9


def least_pairs(rate: float) -> int:
    """Return the least number of pairs at which even the clearest difference is rarer than ``rate``."""
    blocks = 1
    while 2 / _LABELLINGS_OF_BLOCK**blocks > rate:
        blocks += 1
    return max(_LEAST, 2 * blocks)


def smallest_effect(pairs: int, rate: float, spread_percent: float, power: float = POWER) -> float | None:
    """Return the smallest slowdown in per cent that ``pairs`` pairs show with probability ``power``.

    The usual formula for two means with t quantiles at three degrees of freedom a block (Student 1908): the
    cells of one arm vary by ``spread_percent`` as a standard deviation. None with too few pairs.
    """
    if pairs < least_pairs(rate):
        return None
    freedom = 1.5 * pairs
    error = spread_percent / 100 * math.sqrt(2 / (pairs * _EFFICIENCY))
    effect = (float(stdtrit(freedom, 1 - rate / 2)) + float(ndtri(power))) * error
    return 100 * (1 - math.exp(-effect))
