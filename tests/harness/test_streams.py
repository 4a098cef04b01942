"""Texts that lost whole tokens on their way, told from texts that are other ones."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan import CellSpec
from harness.streams import describe_incomplete, is_part_of
from harness.transcript import TurnRecord
from tests.harness.run_builders import CHAT_ON, judge_run, make_plan, make_turn, run_healthy

LENGTHS = (4,) * 6
WHOLE = make_turn(text=b"oneotwootreefourfivesix6")


@given(st.lists(st.tuples(st.binary(max_size=3), st.booleans()), max_size=30))
def test_what_is_left_of_tokens_is_found(tokens: list[tuple[bytes, bool]]) -> None:
    left = b"".join(token for token, kept in tokens if kept)

    assert is_part_of(left, [token for token, _ in tokens])


@pytest.mark.parametrize("text", [b"ac", b"b", b"abcda", b"dab", b"abcdd"])
def test_parts_of_tokens_or_another_order_are_not(text: bytes) -> None:
    assert not is_part_of(text, [b"ab", b"cd"])


@pytest.mark.parametrize(
    ("changes", "complains"),
    [
        ({"text": b"oneotreesix6"}, True),
        ({"text": b""}, True),
        ({"text": b"oneotreesix7"}, False),
        ({"text": b"oneotreesix6", "emitted_tokens": 3}, False),
        ({"text": b"oneotreesix6", "finish": "stop"}, False),
        ({"text": b"oneotreesix6", "token_lengths": (2,) * 6}, False),
        ({"text": b"oneotreesix6", "token_lengths": (4,) * 3}, True),
        ({"text": WHOLE.text + b"seve"}, False),
    ],
)
def test_only_missing_tokens_of_an_equal_count_make_a_stream_incomplete(
    changes: dict[str, object], complains: bool
) -> None:
    turn = make_turn(**changes)

    assert bool(describe_incomplete("chat/3", turn, WHOLE, LENGTHS)) == complains


@pytest.mark.parametrize("lengths", [None, (), (4, 4)])
def test_without_the_boundaries_of_the_whole_text_nothing_is_said(lengths: tuple[int, ...] | None) -> None:
    assert describe_incomplete("chat/3", make_turn(text=b"oneo"), WHOLE, lengths) == ""


def test_chat_stream_that_lacks_tokens_is_named_by_its_count() -> None:
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=turn.text[:4] + turn.text[16:]) if spec.arm == CHAT_ON else turn

    plan = make_plan()
    _, verdict = judge_run(plan, run_healthy(plan, bend))

    assert (verdict.status, verdict.verdict_class) == ("fail", "counters")
    assert "chat/3 counted 24 tokens and sent them without 12 bytes of whole tokens" in verdict.reasons[0]
