"""Where a figure changed for good over the runs of a series: change points, and the run that begins a level.

Levels are found by optimal partitioning with the PELT search (Killick, Fearnhead and Eckley, 2012) for a
change in the mean, on the logarithm of the figure, so that a change of so many per cent weighs the same at
any speed. The noise is estimated from the differences of neighbours, which a change of level hardly touches.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# A level of one or two runs is an outlier and no change.
MIN_RUNS_PER_LEVEL = 3
MIN_RUNS = 2 * MIN_RUNS_PER_LEVEL
# Three times the logarithm of the number of runs: the penalty of the Schwarz criterion for a change in the
# mean is twice it; the third is against the heavy tails of timings.
PENALTY_FACTOR = 3.0
# The place of a change is chosen as the best of many, so it has to stand out further than a step at a place
# that was known before: 4 standard errors, where 2 would do there.
MIN_STANDARD_ERRORS = 4.0
# Timings of one commit on one machine repeat to about this; a level closer than that to the last is none.
DEFAULT_BOUND = 0.02
# What an engine counts for one prompt is the same in every run, so any change of it is one.
COUNTS = (
    "emitted_tokens",
    "forwards",
    "drafted_tokens",
    "accepted_tokens",
    "acceptance_rate",
    "tokens_per_forward",
)
# The median absolute deviation of a normal distribution is this share of its standard deviation.
MAD_RATIO = 0.6745


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one run; ``arm`` is a label such as ``serve/3``."""

    run_id: str
    started_at: str
    engine_commit: str | None
    arm: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Runs of a series between two changes. ``ratio`` is to the level before, None for the first."""

    first: Figure
    last: Figure
    runs: int
    median: float
    ratio: float | None


def find_levels(figures: Sequence[Figure], *, bound: float | None = None) -> tuple[Level, ...]:
    """Return the levels of one figure over time.

    Args:
        figures: of one metric and arm, the oldest first.
        bound: two neighbouring levels closer than this share are one; None for the default, which is 0 for
            counts.

    Counts repeat exactly, so for them each change of value is a level, however short.
    """
    if not figures:
        return ()
    exact = figures[0].metric in COUNTS
    bound = (0.0 if exact else DEFAULT_BOUND) if bound is None else bound
    values = [figure.value for figure in figures]
    edges = _find_changes(values) if exact else _find_edges(values)
    levels: list[Level] = []
    for start, end in zip((0, *edges), (*edges, len(figures)), strict=True):
        levels = _append(levels, figures[start:end], figures, bound)
    return tuple(levels)


def _find_changes(values: Sequence[float]) -> list[int]:
    return [i for i in range(1, len(values)) if values[i] != values[i - 1]]


def _find_edges(values: Sequence[float]) -> list[int]:
    if len(values) < MIN_RUNS or min(values) <= 0:
        return []
    import ruptures  # noqa: PLC0415 - slow to import

    logs = np.log(np.asarray(values))
    noise = _estimate_noise(logs.tolist())
    if noise == 0:
        return _find_changes(values)
    search = ruptures.Pelt(model="l2", min_size=MIN_RUNS_PER_LEVEL, jump=1).fit(logs / noise)
    found: list[int] = search.predict(pen=PENALTY_FACTOR * math.log(len(values)))
    return _drop_weak(logs.tolist(), found[:-1])


def _drop_weak(logs: Sequence[float], edges: Sequence[int]) -> list[int]:
    """Drop the weakest edge as long as one does not stand out of the spread within the levels.

    The noise that the search was given comes from few differences; once the levels are known it is known
    better.
    """
    kept = list(edges)
    while kept:
        bounds = [0, *kept, len(logs)]
        parts = [logs[start:end] for start, end in pairwise(bounds)]
        spread = _pool_deviation(parts)
        strengths = [_measure_step(a, b, spread) for a, b in pairwise(parts)]
        weakest = min(range(len(kept)), key=strengths.__getitem__)
        if strengths[weakest] >= MIN_STANDARD_ERRORS:
            return kept
        del kept[weakest]
    return kept


def _pool_deviation(parts: Sequence[Sequence[float]]) -> float:
    squares = sum(sum((x - statistics.fmean(part)) ** 2 for x in part) for part in parts)
    return math.sqrt(squares / (sum(map(len, parts)) - len(parts)))


def _measure_step(a: Sequence[float], b: Sequence[float], spread: float) -> float:
    """Return how many standard errors the means of two levels are apart."""
    error = spread * math.sqrt(1 / len(a) + 1 / len(b))
    apart = abs(statistics.fmean(b) - statistics.fmean(a))
    return apart / error if error else math.inf


def _estimate_noise(logs: Sequence[float]) -> float:
    """Return the standard deviation of one run, from the differences of neighbours."""
    steps = [abs(b - a) for a, b in pairwise(logs)]
    return statistics.median(steps) / MAD_RATIO / math.sqrt(2)


def _append(
    levels: list[Level], part: Sequence[Figure], figures: Sequence[Figure], bound: float
) -> list[Level]:
    """Add a level, or join it to the last one when they are closer than ``bound``."""
    median = statistics.median(figure.value for figure in part)
    before = levels[-1] if levels else None
    if before is not None and before.median > 0 and abs(median / before.median - 1) < bound:
        start = figures.index(before.first)
        joined = figures[start : figures.index(part[-1]) + 1]
        median = statistics.median(figure.value for figure in joined)
        ratio = None if len(levels) == 1 else median / levels[-2].median
        part = joined
        levels = levels[:-1]
    else:
        ratio = median / before.median if before is not None and before.median else None
    return [*levels, Level(first=part[0], last=part[-1], runs=len(part), median=median, ratio=ratio)]
