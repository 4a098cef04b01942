"""Intervals from resampling: like those of a library, and none where nothing varies."""

import numpy as np
import pytest
from scipy import stats

from harness import bootstrap
from harness.bootstrap import Array, Indices, interval


def test_the_interval_is_that_of_scipy_but_for_the_drawing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bootstrap, "RESAMPLES", 40_000)
    monkeypatch.setattr(bootstrap, "_draw", bootstrap._draw.__wrapped__)
    values = np.random.default_rng(3).lognormal(0.0, 0.7, 25)

    def mean(indices: Indices) -> Array:
        return np.asarray(values[indices].mean(axis=1))

    low, high = interval(mean, len(values), 0.95)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=40_000, method="BCa", rng=np.random.default_rng(1)
    ).confidence_interval
    assert low == pytest.approx(theirs.low, rel=0.012)
    assert high == pytest.approx(theirs.high, rel=0.012)
    # A skewed law: the interval must not be symmetric.
    assert high - values.mean() > 1.2 * (values.mean() - low)


def test_the_same_values_give_the_same_interval():
    values = np.array([1.0, 2.0, 4.0, 8.0])

    def total(indices: Indices) -> Array:
        return np.asarray(values[indices].sum(axis=1))

    assert interval(total, 4, 0.9) == interval(total, 4, 0.9)
    low, high = interval(total, 4, 0.9)
    wide_low, wide_high = interval(total, 4, 0.99)
    assert wide_low <= low < 15 < high <= wide_high


def test_what_does_not_vary_is_exact():
    assert interval(lambda indices: np.full(len(indices), 2.5), 6, 0.95) == (2.5, 2.5)
