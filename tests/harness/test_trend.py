"""Levels of a figure over time: changes are found with the run that begins them, noise is not one."""

import random

import pytest

from harness.trend import MIN_RUNS, Figure, Level, find_levels


def series(values: list[float], metric: str = "decode_tokens_per_s") -> list[Figure]:
    return [
        Figure(
            run_id=f"run-{i:02}",
            started_at=f"2026-01-{i + 1:02}",
            engine_commit=f"commit-{i}",
            arm="serve/3",
            metric=metric,
            value=value,
        )
        for i, value in enumerate(values)
    ]


def noisy(levels: list[tuple[float, int]], *, spread: float, seed: int) -> list[float]:
    chance = random.Random(seed)  # noqa: S311 - noise, no secrets
    return [value * (1 + chance.gauss(0, spread)) for value, runs in levels for _ in range(runs)]


def starts(levels: tuple[Level, ...]) -> list[str | None]:
    return [level.first.engine_commit for level in levels]


def test_no_figures_have_no_levels():
    assert find_levels([]) == ()


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_one_level(seed: int) -> None:
    assert len(find_levels(series(noisy([(2.3, 24)], spread=0.024, seed=seed)))) == 1


@pytest.mark.parametrize("seed", range(20))
def test_drop_of_a_tenth_is_found_with_the_commit_that_began_it(seed: int) -> None:
    levels = find_levels(series(noisy([(2.3, 12), (2.07, 12)], spread=0.024, seed=seed)))
    assert len(levels) == 2
    assert levels[1].first.run_id in ("run-11", "run-12", "run-13")
    assert levels[1].ratio == pytest.approx(0.9, abs=0.03)


def test_one_outlier_is_no_level():
    values = noisy([(2.3, 20)], spread=0.01, seed=1)
    values[9] *= 0.6
    assert len(find_levels(series(values))) == 1


def test_change_below_the_bound_is_none():
    values = [2.30, 2.31] * 6 + [2.32, 2.33] * 6
    assert len(find_levels(series(values), bound=0.02)) == 1
    assert len(find_levels(series(values), bound=0.005)) == 2


def test_counts_repeat_exactly_so_every_change_of_one_is_a_level():
    assert starts(find_levels(series([364.0, 364.0, 372.0, 372.0], "forwards"))) == ["commit-0", "commit-2"]


@pytest.mark.parametrize(
    ("metric", "values"), [("forwards", [1000.0, 1000.0, 1001.0]), ("acceptance_rate", [0.927, 0.927, 0.926])]
)
def test_a_small_change_of_a_count_is_a_level_too(metric: str, values: list[float]) -> None:
    figures = series(values, metric)
    assert starts(find_levels(figures)) == ["commit-0", "commit-2"]
    assert starts(find_levels(figures, bound=0.02)) == ["commit-0"]


def test_timings_that_happen_to_be_whole_numbers_are_no_counts():
    assert len(find_levels(series([20.0, 21.0, 20.0, 21.0, 20.0, 21.0]))) == 1


def test_rate_that_never_moved_but_once_is_found_however_small_its_noise():
    values = [0.927] * 8 + [0.349] * 8
    assert starts(find_levels(series(values))) == ["commit-0", "commit-8"]


def test_too_few_runs_of_a_timing_are_one_level():
    assert len(find_levels(series([2.3, 2.3, 2.2, 1.1, 1.1][: MIN_RUNS - 1]))) == 1
