"""What a plan can show."""

import pytest

from harness.power import least_pairs, smallest_effect


@pytest.mark.parametrize(("rate", "pairs"), [(0.05, 8), (0.0068, 8), (0.0015, 10), (0.0001, 12)])
def test_the_least_pairs_can_be_rarer_than_the_rate(rate: float, pairs: int):
    assert least_pairs(rate) == pairs
    assert 2 / 6 ** (pairs // 2) <= rate


def test_more_pairs_and_less_noise_show_smaller_effects():
    many, few = smallest_effect(48, 0.007, 2.4), smallest_effect(12, 0.007, 2.4)
    assert many is not None
    assert few is not None
    assert many < few / 1.9
    assert smallest_effect(24, 0.007, 1.2) == pytest.approx(1.5, abs=0.1)
    assert smallest_effect(6, 0.007, 2.4) is None


def test_the_default_plan_shows_about_three_per_cent():
    assert smallest_effect(24, 0.007 * 0.95, 2.4) == pytest.approx(3.0, abs=0.1)
