"""Pairs of timed cells as numbers: what the drift along a run and the prompts take part in, and what is left
for the arms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from harness.bootstrap import Indices, interval
from harness.robust import fit_slope, locate

Array = NDArray[np.float64]

# An interval for readers. What is said of the arms hangs on the test as well, at its own error rate.
LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPair:
    """One cell of each arm on one prompt.

    Attributes:
        block: number of the block, within which the order of the arms was balanced.
        position_a, position_b: when they ran, as numbers in the order of the run.
        log_a, log_b: logarithm of the figure, less that of its prompt, so that prompts can be put together.
    """

    block: int
    position_a: int
    position_b: int
    log_a: float
    log_b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio b / a with its interval at ``level``; both ends are the ratio itself where it is exact."""

    value: float
    low: float
    high: float
    level: float = LEVEL

    @property
    def spans_one(self) -> bool:
        """The interval holds 1: no direction is shown."""
        return self.low <= 1 <= self.high


def estimate(pairs: Sequence[CellPair]) -> Ratio:
    """Return the ratio of arm b to arm a with an interval from resampled pairs, of which it needs 2."""
    difference, count = _difference(pairs), len(pairs)
    whole = float(difference(np.arange(count)[None])[0])
    return to_ratio(whole, interval(difference, count, LEVEL), LEVEL)


def locate_effect(pairs: Sequence[CellPair]) -> float:
    """Return the logarithm of that ratio."""
    return float(_difference(pairs)(np.arange(len(pairs))[None])[0])


def to_ratio(effect: float, ends: tuple[float, float], level: float) -> Ratio:
    """Return a ratio from logarithms."""
    return Ratio(value=exp(effect), low=exp(ends[0]), high=exp(ends[1]), level=level)


def _difference(pairs: Sequence[CellPair]) -> Callable[[Indices], Array]:
    """Return the difference of the biweight locations of the two arms' logarithms, cleared of drift."""
    logs, _ = to_arrays(pairs)
    aligned = align(pairs, float(np.median(logs[:, 1] - logs[:, 0])))
    return lambda indices: locate(aligned[indices, 1]) - locate(aligned[indices, 0])


def align(pairs: Sequence[CellPair], effect: float = 0.0) -> Array:
    """Return the logarithms [pairs, 2] without their median and without the drift along the run.

    The drift is fitted with ``effect`` taken from arm b. At 0 nothing of it depends on which arm a cell
    belongs to, as a test by relabelling needs it.
    """
    logs, positions = to_arrays(pairs)
    bare = logs - np.array([0.0, effect])
    slope = fit_slope(bare.ravel(), positions.ravel())
    aligned = logs - slope * positions
    return np.asarray(aligned - np.median(aligned - np.array([0.0, effect])))


def to_arrays(pairs: Sequence[CellPair]) -> tuple[Array, Array]:
    """Return logarithms and positions, each [pairs, 2]."""
    logs = np.array([(pair.log_a, pair.log_b) for pair in pairs])
    return logs, np.array([(pair.position_a, pair.position_b) for pair in pairs], np.float64)


def measure_imbalance(pairs: Sequence[CellPair]) -> float:
    """Return how far the arms are from being spread alike over the run: the correlation of arm and position,
    0 for a balanced order, 1 where one arm ran before the other.
    """
    positions = to_arrays(pairs)[1]
    spread = float(positions.std())
    apart = float(positions[:, 1].mean() - positions[:, 0].mean()) / 2
    return abs(apart) / spread if spread else 1.0
