"""Margins of tokens: which line is whose, and how far two answers are apart."""

from hypothesis import given
from hypothesis import strategies as st

from harness.margins import join_token_margins, measure_noise, pick_own_margins, read_token_margins
from harness.transcript import Margin
from tests.harness.run_builders import make_turn


def line(best: int, second: int, gap: float = 1.0) -> Margin:
    return Margin(best=best, second=second, gap=gap)


ALONE = (line(1, 9), line(2, 9, 2.0), line(3, 4, 1e-4))


def test_lines_are_tokens_where_there_is_one_for_each_and_one_for_a_stop() -> None:
    three = make_turn(emitted_tokens=3, margins=ALONE)
    assert read_token_margins(three) == ALONE
    assert read_token_margins(make_turn(emitted_tokens=2, margins=ALONE, finish="stop")) == ALONE
    assert read_token_margins(make_turn(emitted_tokens=2, margins=ALONE)) is None
    assert read_token_margins(make_turn(emitted_tokens=4, margins=ALONE)) is None
    assert read_token_margins(None) is None


def test_the_stop_of_a_part_is_no_choice_of_the_whole() -> None:
    stopped = make_turn(emitted_tokens=2, margins=ALONE, finish="stop")
    assert join_token_margins([stopped, stopped]) == (*ALONE[:2], *ALONE)
    assert join_token_margins([stopped, make_turn(margins=None)]) is None


def test_own_lines_are_found_between_those_of_another_turn() -> None:
    other = (line(1, 5, 7.0), line(7, 8), line(2, 5, 3.0), line(4, 3, 2e-4), line(4, 3, 5.0))
    own = (line(1, 9, 1.5), line(2, 9, 2.5), line(4, 3, 3e-4))
    mixed = (other[0], own[0], other[1], own[1], other[2], own[2], other[3], other[4])
    assert pick_own_margins(ALONE, mixed, 2) == (own[0], own[1], other[3])


def test_without_a_line_of_the_two_candidates_the_other_way_round_nothing_is_found() -> None:
    assert pick_own_margins(ALONE, (*ALONE[:2], line(4, 9)), 2) == ()
    assert pick_own_margins(ALONE, (line(4, 3), *ALONE), 2) == ()
    assert pick_own_margins(ALONE, ALONE, 3) == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5)), max_size=12))
def test_lines_of_others_never_make_the_own_ones_look_farther_apart(others: list[tuple[int, float]]) -> None:
    own = (*ALONE[:2], line(4, 3, 1e-4))
    mixed: list[Margin] = list(own)
    for at, (best, gap) in enumerate(others):
        mixed.insert(at * 7 % (len(mixed) + 1), line(best, 9, gap))
    assert pick_own_margins(ALONE, mixed, 2) == own


def test_noise_is_the_distance_of_margins() -> None:
    noise = measure_noise(ALONE, (line(1, 9, 1.5), line(2, 9, 2.0), line(3, 4, 0.0)))
    assert noise is not None
    assert (noise.tokens, noise.median, noise.largest) == (3, 1e-4, 0.5)
    assert measure_noise((), ()) is None
