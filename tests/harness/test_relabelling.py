"""The test by relabelling: its error rate, what it finds, and looks that spend one error rate together."""

import itertools
from math import log

import numpy as np
import pytest

from harness.paired_cells import align, estimate
from harness.relabelling import (
    LABELLINGS,
    Look,
    count_labellings,
    decide,
    find_p_value,
    invert,
    look,
    look_pair_by_pair,
)
from harness.robust import score
from tests.harness.speed_builders import make_pairs


def test_the_p_value_is_that_of_all_labellings():
    pairs = make_pairs(6, effect=0.03, seed=4)
    scores = score(align(pairs).ravel()).reshape(3, 4)
    balanced = [signs for signs in itertools.product((-1, 1), repeat=4) if sum(signs) == 0]
    sums = [
        abs(sum(float(np.dot(row, signs)) for row, signs in zip(scores, labels, strict=True)))
        for labels in itertools.product(balanced, repeat=3)
    ]
    own = abs(float(scores.reshape(-1) @ np.tile([-1, 1], 6)))
    exact = sum(value >= own - 1e-12 for value in sums) / len(sums)
    assert find_p_value(look(pairs)) == pytest.approx(exact, abs=0.01)


def test_equal_arms_are_called_different_at_the_rate_that_was_asked_for():
    found = [find_p_value(look(make_pairs(12, seed=seed, drift=0.1), labellings=999)) for seed in range(400)]
    for rate in (0.05, 0.2):
        assert np.mean([p <= rate for p in found]) == pytest.approx(rate, abs=2.5 * (rate / 400) ** 0.5)


def test_a_difference_of_two_spreads_is_found_with_twelve_pairs():
    found = [find_p_value(look(make_pairs(12, effect=0.04, seed=seed), labellings=999)) for seed in range(50)]
    assert np.mean([p <= 0.01 for p in found]) > 0.9


def test_two_pairs_can_show_nothing():
    assert find_p_value(look(make_pairs(2, effect=5.0))) > 0.3


def test_a_block_that_is_not_complete_counts_as_far_as_it_goes():
    assert find_p_value(look(make_pairs(13, effect=0.1))) < 0.001


def test_equal_values_show_no_difference():
    assert find_p_value(look(make_pairs(8, spread=0.0))) == 1.0


def test_smaller_rates_need_more_labellings():
    assert count_labellings(0.01) == LABELLINGS
    assert 2 / (1 + count_labellings(0.0001)) <= 0.0001


def test_looking_often_does_not_call_equal_arms_different_more_often():
    rate = 0.1
    runs = [look_pair_by_pair(make_pairs(12, seed=seed), 12, labellings=499) for seed in range(300)]
    assert np.mean([decide(looks, rate).differs for looks in runs]) <= rate + 2 * (rate / 300) ** 0.5
    # What spending is for: the same looks, each at the full rate.
    naive = np.mean([any(find_p_value(seen) <= rate for seen in looks[3:]) for looks in runs])
    assert naive > 1.5 * rate


def test_a_clear_difference_ends_early_and_a_look_is_not_moved_by_what_comes_behind():
    pairs = make_pairs(24, effect=log(1.1))
    looks = look_pair_by_pair(pairs, 24)
    ended = decide(looks, 0.01)
    assert ended.differs
    assert ended.pairs < 14
    prefix = look_pair_by_pair(pairs[: ended.pairs], 24)
    assert decide(prefix, 0.01) == ended
    assert not decide(prefix[:-1], 0.01).differs


def test_without_a_difference_the_last_look_is_reached():
    looks = look_pair_by_pair(make_pairs(10, seed=3), 10)
    ended = decide(looks, 0.01)
    assert (ended.differs, ended.pairs) == (False, 10)
    assert 0 < ended.nominal_rate <= 0.011


def test_ties_never_spend_more_than_there_is():
    tied = Look(pairs=2, share=1.0, statistic=1.0, labelled=np.ones(99))
    assert not decide([tied], 0.5).differs


def test_an_interval_holds_what_the_test_does_not_reject():
    pairs = make_pairs(16, effect=0.05, seed=6)
    middle = log(estimate(pairs).value)
    low, high = invert(pairs, middle, 0.05, LABELLINGS)
    assert low < 0.05 < high
    assert (low > 0) == (find_p_value(look(pairs)) <= 0.05)
    wide_low, wide_high = invert(pairs, middle, 0.005, LABELLINGS)
    assert wide_low < low
    assert high < wide_high


def test_an_interval_that_nothing_bounds_is_wide_and_ends():
    low, high = invert(make_pairs(2), 0.0, 0.01, 99)
    assert high - low == pytest.approx(2 * log(10))


def test_looks_begin_where_something_can_be_shown():
    looks = look_pair_by_pair(make_pairs(10), 20, first=8, labellings=99)
    assert [seen.pairs for seen in looks] == [8, 9, 10]
    assert [seen.share for seen in looks] == [0.4, 0.45, 0.5]
