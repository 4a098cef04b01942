"""Location, trend and scores stay where most of the values are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.robust import fit_slope, locate, score, spread

VALUES = st.lists(st.floats(-10, 10), min_size=3, max_size=30)


def test_a_wild_value_does_not_move_the_location():
    calm = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98])
    assert locate(np.append(calm, 50.0)) == pytest.approx(locate(calm), abs=0.01)
    assert locate(calm) == pytest.approx(1.0, abs=0.01)


def test_a_location_of_normal_values_is_nearly_as_sharp_as_their_mean():
    drawn = np.random.default_rng(1).normal(size=(4000, 24))
    assert locate(drawn).std() < 1.04 * drawn.mean(axis=1).std()


def test_values_that_are_mostly_equal_are_their_median():
    assert locate(np.array([2.0, 2.0, 2.0, 9.0])) == 2.0
    assert score(np.array([0.0, 0.0, 0.0, 3.0])).tolist() == [0.0, 0.0, 0.0, 3.0]


@given(VALUES, st.floats(-5, 5), st.floats(0.5, 4))
def test_a_location_moves_and_grows_with_its_values(values: list[float], shift: float, factor: float):
    plain = np.round(np.array(values), 3)
    moved = locate(plain * factor + shift)
    assert moved == pytest.approx(locate(plain) * factor + shift, abs=1e-6)
    assert plain.min() - 1e-9 <= locate(plain) <= plain.max() + 1e-9


def test_the_spread_of_normal_values_is_their_standard_deviation():
    drawn = np.random.default_rng(2).normal(3.0, 0.5, 20_000)
    assert spread(drawn)[0] == pytest.approx(0.5, rel=0.03)


def test_a_score_is_nothing_far_out_and_the_value_close_by():
    residuals = np.array([-0.02, -0.01, 0.0, 0.01, 0.02, 5.0])
    scores = score(residuals)
    assert scores[-1] == 0.0
    assert scores[:5] == pytest.approx(residuals[:5], rel=0.1)


def test_a_slope_is_found_through_outliers():
    positions = np.arange(20.0)
    values = 0.3 * positions
    values[[3, 11]] += 40
    assert fit_slope(values, positions) == pytest.approx(0.3, abs=0.02)


def test_one_position_has_no_slope():
    assert fit_slope(np.array([1.0, 2.0]), np.array([4.0, 4.0])) == 0.0
