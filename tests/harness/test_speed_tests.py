"""Several tests at one error rate."""

from math import log

import numpy as np
import pytest

from harness.relabelling import Look, find_p_value, look, look_pair_by_pair
from harness.speed_tests import SpeedTest, correct_p_values, decide_by_looks
from tests.harness.speed_builders import make_pairs


def make_test(p_value: float, share: float, labellings: int = 9999) -> SpeedTest:
    """Return a test whose p-value is the one given."""
    above = round(p_value * (labellings + 1)) - 1
    labelled = np.concatenate((np.ones(above), np.zeros(labellings - above)))
    seen = Look(pairs=8, share=1.0, statistic=1.0, labelled=labelled)
    assert find_p_value(seen) == pytest.approx(p_value)
    return SpeedTest(contrast="c", metric=f"m{share}", pairs=(), share=share, looks=(seen,))


def test_holm_with_equal_shares_gives_the_published_numbers():
    p_values = (0.01, 0.04, 0.03, 0.005)
    results = correct_p_values([make_test(p, 0.25) for p in p_values], 0.05)
    assert [r.p_value for r in results] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [r.differs for r in results] == [True, False, False, True]


def test_a_large_share_costs_little():
    results = correct_p_values([make_test(0.0085, 0.9), make_test(0.0085, 0.1)], 0.01)
    assert [r.p_value for r in results] == pytest.approx([0.0085 / 0.9, 0.0085 / 0.9])
    assert all(r.differs for r in results)


def test_what_is_not_shown_leaves_nothing_to_the_others():
    results = correct_p_values([make_test(0.5, 0.9), make_test(0.005, 0.1)], 0.01)
    assert [r.differs for r in results] == [False, False]


def test_planned_tests_that_were_not_run_keep_their_share():
    assert correct_p_values([make_test(0.004, 0.1)], 0.01)[0].p_value == pytest.approx(0.04)


def test_looks_hand_on_the_share_of_what_was_shown():
    clear = make_pairs(16, effect=log(1.2))
    weak = make_pairs(16, effect=0.015, seed=5)
    first = SpeedTest(contrast="c", metric="a", pairs=clear, share=0.9, looks=look_pair_by_pair(clear, 16))
    second = SpeedTest(contrast="c", metric="b", pairs=weak, share=0.1, looks=look_pair_by_pair(weak, 16))
    alone = decide_by_looks([second], 0.05)[0]
    shared = decide_by_looks([first, second], 0.05)
    assert not alone.differs
    assert [r.differs for r in shared] == [True, True]
    assert shared[0].pairs < 16
    assert shared[0].rate is not None
    assert find_p_value(look(clear[: shared[0].pairs])) <= shared[0].rate


def test_no_test_gives_no_result():
    assert correct_p_values([], 0.01) == []
    assert decide_by_looks([], 0.01) == []
