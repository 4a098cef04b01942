"""Where two turns first differ: fields, positions, and what is not compared."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.identity import END_OF_ANSWER, Difference, TurnComparison, compare_turns, show_bytes
from harness.transcript import TurnRecord
from tests.harness.run_builders import make_turn

tokens = st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=12)


def test_equal_turns_have_no_difference_and_nothing_left_out():
    assert compare_turns(make_turn(), make_turn()) == TurnComparison(differences=(), not_compared=())


def test_the_first_differing_byte_and_token_are_named_with_context_and_both_sides():
    a = make_turn(text=b"The quick brown fox", token_lengths=(3, 6, 6, 4))
    b = make_turn(text=b"The quick brown dog", token_lengths=(3, 6, 6, 4))
    assert compare_turns(a, b).differences == (
        Difference(
            field="tokens", byte_offset=16, token_index=3, context="'The quick brown '", a="'fox'", b="'dog'"
        ),
    )


def test_one_side_s_boundaries_are_enough_for_the_token():
    a = make_turn(text=b"abcdef")
    b = make_turn(text=b"abcXef", token_lengths=(2, 2, 2))
    (difference,) = compare_turns(a, b).differences
    assert (difference.byte_offset, difference.token_index) == (3, 1)
    (difference,) = compare_turns(a, make_turn(text=b"abcXef")).differences
    assert (difference.byte_offset, difference.token_index) == (3, None)


def test_an_answer_that_ends_early_differs_at_its_end():
    (difference,) = compare_turns(make_turn(text=b"abc"), make_turn(text=b"abcdef")).differences
    assert (difference.byte_offset, difference.a, difference.b) == (3, END_OF_ANSWER, "'def'")


def test_the_same_bytes_in_other_tokens_are_a_difference():
    a = make_turn(text=b"abcd", token_lengths=(1, 1, 2))
    b = make_turn(text=b"abcd", token_lengths=(1, 2, 1))
    (difference,) = compare_turns(a, b).differences
    assert (difference.byte_offset, difference.token_index) == (1, 1)
    assert (difference.a, difference.b) == ("the token 'b'", "the token 'bc'")


def test_a_character_is_shown_whole_though_only_its_last_byte_differs():
    (difference,) = compare_turns(make_turn(text="x→y".encode()), make_turn(text="x↑y".encode())).differences
    assert (difference.byte_offset, difference.context, difference.a, difference.b) == (
        3,
        "'x'",
        "'→y'",
        "'↑y'",
    )


@given(a=tokens, b=tokens, both=st.booleans())
def test_the_position_is_the_first_that_differs(a: list[bytes], b: list[bytes], both: bool):
    left = make_turn(text=b"".join(a), token_lengths=tuple(map(len, a)))
    right = make_turn(text=b"".join(b), token_lengths=tuple(map(len, b)) if both else None)
    found = [d for d in compare_turns(left, right).differences if d.field == "tokens"]
    if left.text == right.text and (a == b or not both):
        assert not found
        return
    (difference,) = found
    offset, index = difference.byte_offset, difference.token_index
    assert offset is not None
    assert index is not None
    assert left.text[:offset] == right.text[:offset]
    if left.text != right.text:
        assert left.text[offset : offset + 1] != right.text[offset : offset + 1]
    if both:
        assert a[:index] == b[:index]
        assert a[index : index + 1] != b[index : index + 1]
    else:
        ends = [0, *accumulate(map(len, a))]
        assert ends[index] <= offset
        assert index == len(a) or offset < ends[index + 1]


@given(text=st.lists(st.binary(min_size=1, max_size=3), min_size=2, max_size=10), data=st.data())
def test_one_edited_token_is_found_where_it_is(text: list[bytes], data: st.DataObject):
    index = data.draw(st.integers(0, len(text) - 1))
    edited = [*text[:index], bytes([text[index][0] ^ 1]) + text[index][1:], *text[index + 1 :]]
    sides = [make_turn(text=b"".join(side), token_lengths=tuple(map(len, side))) for side in (text, edited)]
    (difference,) = compare_turns(*sides).differences
    assert (difference.byte_offset, difference.token_index) == (len(b"".join(text[:index])), index)


@pytest.mark.parametrize(
    ("change", "field", "a", "b"),
    [
        ({"finish": "stop"}, "finish_reason", "length", "stop"),
        ({"emitted_tokens": 7}, "token_count", "6", "7"),
        ({"prompt_tokens": 11}, "prompt_tokens", "10", "11"),
        ({"prefill_tokens": 9}, "prefill_tokens", "10", "9"),
        ({"cached_tokens": 1}, "cached_tokens", "0", "1"),
    ],
)
def test_the_same_text_with_another_count_or_end_differs(
    change: dict[str, object], field: str, a: str, b: str
):
    (difference,) = compare_turns(make_turn(), make_turn(**change)).differences
    assert (difference.field, difference.a, difference.b) == (field, a, b)
    assert difference.byte_offset is None


def test_what_a_side_does_not_report_is_named_and_not_compared():
    blank = make_turn(emitted_tokens=None, prompt_tokens=None, prefill_tokens=None, cached_tokens=None)
    comparison = compare_turns(make_turn(), blank)
    assert comparison.differences == ()
    assert comparison.not_compared == ("token_count", "prompt_tokens", "prefill_tokens", "cached_tokens")


def test_behind_a_stop_string_the_count_is_not_compared_but_text_and_prompt_are():
    a = make_turn(text=b"one ", finish="stop-string", emitted_tokens=3, token_lengths=(2, 3, 1))
    b = make_turn(text=b"one ", finish="stop-string", emitted_tokens=4, token_lengths=(2, 3, 1, 2))
    assert compare_turns(a, b).differences == ()
    (difference,) = compare_turns(
        a, make_turn(text=b"one ", finish="stop-string", prompt_tokens=4)
    ).differences
    assert difference.field == "prompt_tokens"


def test_hidden_tokens_do_not_count_as_boundaries():
    a = make_turn(text=b"one ", finish="stop-string", token_lengths=(4, 3))
    b = make_turn(text=b"one ", finish="stop-string", token_lengths=(3, 5))
    (difference,) = compare_turns(a, b).differences
    assert (difference.token_index, difference.a, difference.b) == (0, "the token 'one '", "the token 'one'")


def test_after_a_stop_string_the_prefix_is_not_compared():
    changed = make_turn(cached_tokens=2, prefill_tokens=8)
    assert compare_turns(make_turn(), changed, prefix_uncertain=True).differences == ()
    assert len(compare_turns(make_turn(), changed).differences) == 2


def test_in_another_context_the_prefix_alone_is_not_compared():
    changed = make_turn(cached_tokens=2, prefill_tokens=8, forwards=5)
    comparison = compare_turns(make_turn(), changed, prefix_moved=True, counters=True)
    assert [difference.field for difference in comparison.differences] == ["forwards"]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain", "'plain'"),
        (b"two\nlines\t", "'two\\nlines\\t'"),
        ("é→".encode(), "'é→'"),
        (b"a\xff\xf0\x9f", "'a\\xff\\xf0\\x9f'"),
        (b"", "''"),
    ],
)
def test_bytes_are_shown_on_one_printable_line(data: bytes, shown: str):
    assert show_bytes(data) == shown


@given(st.binary(max_size=30))
def test_whatever_the_bytes_they_are_printable(data: bytes):
    assert show_bytes(data).isprintable()


def cancelled(text: bytes, **changes: object) -> TurnRecord:
    return make_turn(text=text, finish="cancelled", emitted_tokens=None, **changes)


def test_a_cancelled_answer_must_be_the_beginning_of_the_other_and_no_more():
    whole = make_turn(text=b"one two three", emitted_tokens=3, finish="stop")
    assert compare_turns(cancelled(b"one"), whole).differences == ()
    assert compare_turns(whole, cancelled(b"one t")).differences == ()
    assert compare_turns(cancelled(b"one"), cancelled(b"one two")).differences == ()
    assert [d.field for d in compare_turns(cancelled(b"onX"), whole).differences] == ["tokens"]
    assert [d.field for d in compare_turns(cancelled(b"one two three four"), whole).differences] == ["tokens"]
    other_prompt = compare_turns(cancelled(b"one", prompt_tokens=9), whole).differences
    assert [d.field for d in other_prompt] == ["prompt_tokens"]


def test_chat_mode_has_no_other_word_for_a_broken_grammar_than_a_limit():
    chat, serve = make_turn(finish="length"), make_turn(finish="broken-grammar", forwards=None)
    assert compare_turns(chat, serve).differences == ()
    stopped = compare_turns(make_turn(finish="stop"), serve).differences
    assert [d.field for d in stopped] == ["finish_reason"]


def test_two_refusals_are_the_same_and_report_nothing_to_compare():
    refused = make_turn(text=b"", finish="refused", emitted_tokens=None, prompt_tokens=None)
    assert compare_turns(refused, refused) == TurnComparison(differences=(), not_compared=())
    answered = compare_turns(refused, make_turn(text=b"", finish="length")).differences
    assert [d.field for d in answered] == ["finish_reason"]
