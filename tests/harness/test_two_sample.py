"""The two-sample test keeps to its error rate and sees a shift."""

import numpy as np

from harness.two_sample import ALPHA, MIN_PAIRS, compare_draws

Pairs = list[tuple[int, int]]


def draw(seed: int, pairs: int, a: list[float], b: list[float]) -> Pairs:
    generator = np.random.default_rng(seed)
    return [(int(generator.choice(len(a), p=a)), int(generator.choice(len(b), p=b))) for _ in range(pairs)]


def test_equal_arms_are_called_different_no_more_often_than_stated():
    skewed = [0.5, 0.3, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01]
    p_values = [compare_draws(draw(seed, 60, skewed, skewed)).p_value for seed in range(300)]
    # At a level of 5 % 15 of 300 are expected; 30 or more have a chance under 1 in 1,000.
    assert sum(p is not None and p <= 0.05 for p in p_values) < 30
    # At a level of 1 in 1,000 a third of one is expected.
    assert sum(p is not None and p <= ALPHA for p in p_values) <= 2


def test_a_shifted_distribution_is_seen():
    result = compare_draws(draw(1, 120, [0.7, 0.2, 0.1], [0.4, 0.4, 0.2]))
    assert result.differs
    assert result.p_value is not None
    assert result.p_value <= ALPHA


def test_a_few_answers_that_all_move_one_way_are_enough_where_the_others_agree():
    alike: Pairs = [(0, 0)] * 100
    assert compare_draws([*alike, *[(0, 1)] * 14]).differs
    assert not compare_draws([*alike, *[(0, 1)] * 7, *[(1, 0)] * 7]).differs


def test_the_same_answers_cannot_differ():
    result = compare_draws([(n % 7, n % 7) for n in range(50)])
    assert (result.statistic, result.p_value, result.differs, result.outcomes) == (0.0, 1.0, False, 7)


def test_few_pairs_are_no_test():
    assert compare_draws([]).p_value is None
    assert compare_draws([(0, 1)] * (MIN_PAIRS - 1)).p_value is None
    assert compare_draws([(0, 1)] * MIN_PAIRS).differs


def test_equal_data_give_an_equal_p_value():
    data = draw(7, 90, [0.6, 0.4], [0.5, 0.5])
    assert compare_draws(data) == compare_draws(data)
