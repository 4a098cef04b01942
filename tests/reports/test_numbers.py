"""Rounding never makes a figure say more than it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.numbers import format_count, format_decimal, format_figure, format_percent, format_speedup


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "-"),
        (0.0, "0.0 %"),
        (1.0, "100.0 %"),
        (0.99999, "99.9 %"),
        (0.00001, "0.1 %"),
        (0.8333, "83.3 %"),
    ],
)
def test_per_cent(rate: float | None, text: str):
    assert format_percent(rate) == text


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_only_all_is_100_per_cent_and_only_none_is_0(part: int, rest: int):
    assert format_percent(part / (part + rest)) not in ("100.0 %", "0.0 %")


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "-"), (1.0, "1.00x"), (1.8349, "1.83x"), (1.0004, "1.0004x"), (0.997, "0.9970x")],
)
def test_a_ratio_that_is_not_1_is_not_shown_as_1(ratio: float | None, text: str):
    assert format_speedup(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.5, "0.50"), (9.994, "9.99"), (10.0, "10.0"), (99.94, "99.9"), (1234.5, "1,234")],
)
def test_figures_have_about_three_digits(value: float | None, text: str):
    assert format_figure(value) == text


def test_what_was_not_reported_is_not_zero():
    assert format_count(None) == "-"
    assert format_count(0) == "0"
    assert format_count(12345) == "12,345"
    assert format_decimal(None) == "-"
    assert format_decimal(2.0) == "2.00"
