"""Answers as they arrive: stop strings across deliveries, and answers without an end."""

from hypothesis import given
from hypothesis import strategies as st

from harness.drivers.answer import CAP_FACTOR, CAP_SLACK_TOKENS, MAX_TOKEN_BYTES, Answer
from harness.scenario import cut_at_stop

PIECES = st.lists(st.text("ab\u00e9", max_size=4).map(str.encode), max_size=8)


@given(PIECES, st.lists(st.text("ab\u00e9", min_size=1, max_size=3), max_size=3))
def test_stop_strings_are_found_wherever_the_deliveries_are_cut(pieces: list[bytes], stop: list[str]) -> None:
    answer = Answer(stop, max_tokens=8)
    for piece in pieces:
        answer.add_text(0, piece)

    whole = b"".join(pieces)
    cut = cut_at_stop(whole, stop)
    assert answer.stopped == (cut is not None)
    assert answer.visible_text() == (whole if cut is None else cut)
    assert sum(delivery.size_bytes for delivery in answer.deliveries) == len(whole)


def test_token_without_text_is_still_a_token() -> None:
    answer = Answer((), max_tokens=8)
    answer.add_tokens(5, [b"", b"ab"])

    assert answer.token_lengths == [0, 2]
    assert (answer.deliveries[0].tokens, answer.deliveries[0].size_bytes) == (2, 2)


def test_answer_is_endless_beyond_its_limit_and_not_at_it() -> None:
    limit = CAP_FACTOR * 8 + CAP_SLACK_TOKENS
    by_tokens, by_bytes = Answer((), max_tokens=8), Answer((), max_tokens=8)
    by_tokens.add_tokens(0, [b"x"] * limit)
    by_bytes.add_text(0, b"x" * (limit * MAX_TOKEN_BYTES))
    assert not by_tokens.is_endless
    assert not by_bytes.is_endless

    by_tokens.add_tokens(0, [b"x"])
    by_bytes.add_text(0, b"x")
    assert by_tokens.is_endless
    assert by_bytes.is_endless
