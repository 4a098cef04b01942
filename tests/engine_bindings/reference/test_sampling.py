"""Choosing tokens: the distribution, its cut, the draws, and that speculation keeps the distribution."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.reference.rules import Rules
from engine_bindings.reference.sampling import (
    Draws,
    Sampling,
    choose_token,
    draw_token,
    measure_margin,
    target_distribution,
)
from tests.engine_bindings.reference.engine_fakes import Bench, FakeModel

SMALL_VOCAB = 5
SEEDS = 3000
PROMPT = [1, 2, 3]
LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=20)


def row(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_temperature_zero_takes_the_best_and_the_lowest_id_of_equals() -> None:
    greedy = Sampling(temperature=0.0, top_p=0.1)
    assert choose_token(row(1, 5, 3), greedy, 0.99) == 1
    assert choose_token(row(5, 1, 5), greedy, 0.99) == 0


def test_temperature_scales_the_logits() -> None:
    logits = row(np.log(1), np.log(4))
    assert target_distribution(logits, Sampling(temperature=1.0, top_p=1.0)) == pytest.approx([0.2, 0.8])
    assert target_distribution(logits, Sampling(temperature=0.5, top_p=1.0)) == pytest.approx(
        [1 / 17, 16 / 17]
    )


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.3, [0, 0, 1, 0]),
        (0.5, [0, 0, 1, 0]),
        (0.51, [0, 3 / 8, 5 / 8, 0]),
        (0.85, [0, 3 / 9.5, 5 / 9.5, 1.5 / 9.5]),
        (1.0, [0.05, 0.3, 0.5, 0.15]),
    ],
)
def test_top_p_keeps_the_best_until_their_sum_reaches_it(top_p: float, expected: list[float]) -> None:
    logits = np.log(np.array([0.05, 0.3, 0.5, 0.15])).astype(np.float32)
    found = target_distribution(logits, Sampling(temperature=1.0, top_p=top_p))
    assert found == pytest.approx(expected, abs=1e-6)


def test_top_p_keeps_the_lower_id_of_equals() -> None:
    assert target_distribution(row(1, 1, 1, 1), Sampling(temperature=1.0, top_p=0.4)).tolist() == [
        0.5,
        0.5,
        0,
        0,
    ]


@given(LOGITS, st.floats(0.05, 2), st.floats(0.05, 1), st.floats(0, 1, exclude_max=True))
def test_a_drawn_token_is_always_possible(
    values: list[float], heat: float, top_p: float, number: float
) -> None:
    sampling = Sampling(temperature=heat, top_p=top_p)
    probabilities = target_distribution(row(*values), sampling)
    assert probabilities.sum() == pytest.approx(1)
    assert probabilities[draw_token(probabilities, number)] > 0


def test_numbers_lay_the_tokens_out_by_their_ids() -> None:
    probabilities = np.array([0.25, 0.0, 0.5, 0.25])
    found = [draw_token(probabilities, number) for number in (0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)]
    assert found == [0, 0, 2, 2, 3, 3]


def test_draws_depend_on_seed_prompt_and_position() -> None:
    base = Draws.for_request(1, (1, 2, 3))
    again = Draws.for_request(1, (1, 2, 3))
    assert base.at(5) == again.at(5)
    others = [base.at(6), Draws.for_request(2, (1, 2, 3)).at(5), Draws.for_request(1, (1, 2)).at(5)]
    assert len({base.at(5), *others}) == 4


def test_a_negative_seed_and_a_large_one_are_seeds() -> None:
    assert Draws.for_request(-1, (1,)) == Draws.for_request(2**64 - 1, (1,))


def test_draws_are_uniform() -> None:
    draws = Draws.for_request(7, (1,))
    numbers = np.array([draws.at(i) for i in range(4000)])
    counts = np.histogram(numbers, bins=10, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # chi-square, 9 degrees, p = 0.001


def test_margin_names_the_two_best_and_the_lower_id_of_equals_first() -> None:
    margin = measure_margin(row(1, 4, 2, 4))
    assert (margin.top1_id, margin.top2_id) == (1, 3)
    assert (margin.top1_logit, margin.top2_logit) == (4.0, 4.0)


def chi_square(rules: Rules, depth: int) -> float:
    """How far the third sampled token is from its exact distribution; 4 degrees of freedom."""
    sampling = Sampling(temperature=1.0, top_p=0.95)
    model = FakeModel(vocab=SMALL_VOCAB, miss_every=4)
    step = cache(lambda text: target_distribution(model.logits(text), sampling))
    expected = np.zeros(SMALL_VOCAB)
    for first in range(SMALL_VOCAB):
        for second in range(SMALL_VOCAB):
            weight = step((*PROMPT,))[first] * step((*PROMPT, first))[second]
            expected += weight * step((*PROMPT, first, second))
    counts: Counter[int] = Counter()
    for seed in range(SEEDS):
        bench = Bench(depth=depth, model=model, rules=rules, seed=seed)
        counts[bench.answer(PROMPT, 3, sampling=sampling)[2]] += 1
    return sum((counts[i] - SEEDS * p) ** 2 / (SEEDS * p) for i, p in enumerate(expected))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_speculation_keeps_the_distribution(depth: int) -> None:
    assert chi_square(Rules(), depth) < 18.5  # p = 0.001


def test_an_unverified_draft_does_not_keep_the_distribution() -> None:
    class AcceptsFirst(Rules):
        def count_accepted(self, drafts: Sequence[int], chosen: Sequence[int]) -> int:
            return max(super().count_accepted(drafts, chosen), min(1, len(drafts)))

    assert chi_square(AcceptsFirst(), 3) > 100
