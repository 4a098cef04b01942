"""The ratio of two arms, cleared of drift and outliers."""

from math import exp, log

import pytest

from harness.paired_cells import Ratio, estimate, measure_imbalance
from tests.harness.speed_builders import make_pairs


def test_the_ratio_is_found_beside_a_drift_ten_times_as_large():
    ratio = estimate(make_pairs(24, effect=log(1.01), drift=log(1.1), spread=0.002))
    assert ratio.value == pytest.approx(1.01, abs=0.002)
    assert ratio.low < 1.01 < ratio.high
    assert ratio.high - ratio.low < 0.005


def test_one_cell_in_twenty_that_took_twice_as_long_changes_little():
    calm = estimate(make_pairs(20, effect=log(0.95)))
    wild = estimate(make_pairs(20, effect=log(0.95), outliers=(5, 24)))
    assert wild.value == pytest.approx(calm.value, abs=0.01)
    assert wild.high < 1


def test_without_noise_the_ratio_is_exact():
    ratio = estimate(make_pairs(8, effect=log(2.0), spread=0.0))
    assert ratio.value == pytest.approx(2.0)
    assert (ratio.low, ratio.high) == (ratio.value, ratio.value)


def test_swapping_the_arms_turns_the_ratio_around():
    pairs = make_pairs(16, effect=0.1)
    swapped = [
        type(p)(block=p.block, position_a=p.position_b, position_b=p.position_a, log_a=p.log_b, log_b=p.log_a)
        for p in pairs
    ]
    assert estimate(swapped).value == pytest.approx(1 / estimate(pairs).value)


def test_an_interval_spans_one_or_shows_a_direction():
    assert Ratio(value=1.0, low=0.99, high=1.01).spans_one
    assert not Ratio(value=exp(0.1), low=1.01, high=1.2).spans_one


def test_the_imbalance_of_an_order_is_a_correlation():
    assert measure_imbalance(make_pairs(8)) == 0.0
    assert measure_imbalance(make_pairs(8, order="blocked")) > 0.8


def test_nineteen_intervals_of_twenty_hold_the_ratio():
    ratios = [
        estimate(make_pairs(20, effect=0.05, drift=0.1, outliers=(seed % 40,), seed=seed))
        for seed in range(200)
    ]
    held = sum(ratio.low <= exp(0.05) <= ratio.high for ratio in ratios)
    assert 180 <= held <= 197
