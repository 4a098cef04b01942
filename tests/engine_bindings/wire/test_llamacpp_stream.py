"""Answers of llama.cpp's server, in the form that build 11549 writes."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire.answer_events import (
    AnswerEnd,
    AnswerEvent,
    Counts,
    Finish,
    KeepAlive,
    Piece,
    ServerFault,
)
from engine_bindings.wire.errors import RemoteProtocolError
from engine_bindings.wire.llamacpp_stream import LlamaChatStream, LlamaStream

TIMINGS = {"cache_n": 7, "prompt_n": 24, "predicted_n": 3, "predicted_per_second": 250.0}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def piece(content: str, generated: int, *best: tuple[int, str, float]) -> bytes:
    value: dict[str, Any] = {"content": content, "stop": False, "tokens_predicted": generated, "tokens": [1]}
    if best:
        tops = [{"id": i, "token": text, "bytes": list(text.encode()), "logprob": lp} for i, text, lp in best]
        value["completion_probabilities"] = [{"id": best[0][0], "logprob": best[0][2], "top_logprobs": tops}]
    return event(value)


def end(generated: int, stop_type: str, timings: dict[str, Any] | None = TIMINGS, **more: Any) -> bytes:
    value = {"content": "", "stop": True, "stop_type": stop_type, "tokens_predicted": generated}
    value |= {"tokens_evaluated": 31, "truncated": False, **more}
    return event(value if timings is None else {**value, "timings": timings})


def read(data: bytes, *, ends: bool = False) -> list[AnswerEvent]:
    reader = LlamaStream()
    reader.receive_data(data)
    if ends:
        reader.receive_eof()
    return list(reader.events())


def token_counts(events: Sequence[AnswerEvent]) -> list[int | None]:
    return [found.token_count for found in events if isinstance(found, Piece)]


def test_an_answer_that_ends_at_its_cap() -> None:
    first, second, finish, counts, last = read(piece("a", 1) + piece(" b", 2) + end(2, "limit"))

    assert isinstance(first, Piece)
    assert isinstance(second, Piece)
    assert (first.content, second.content) == ("a", " b")
    assert finish == Finish(reason="length", stop_string=False)
    assert counts == Counts(
        prompt_tokens=31,
        completion_tokens=2,
        cached_tokens=7,
        prefill_tokens=24,
        drafted_tokens=0,
        accepted_tokens=0,
        tokens_per_s=250.0,
    )
    assert last == AnswerEnd()


def test_a_stop_token_is_no_output_and_not_counted() -> None:
    events = read(piece("a", 1) + piece("", 2) + end(2, "eos"))

    assert token_counts(events) == [1]
    assert Finish(reason="stop", stop_string=False) in events
    assert [found.completion_tokens for found in events if isinstance(found, Counts)] == [1]


def test_a_token_without_text_amid_the_answer_goes_with_the_next_piece() -> None:
    events = read(piece("a", 1) + piece("", 2) + piece("b", 3) + end(3, "limit"))

    assert token_counts(events) == [1, 2]


def test_tokens_without_text_before_a_cap_are_counted() -> None:
    assert token_counts(read(piece("a", 1) + piece("", 2) + end(2, "limit"))) == [1, 1]


def test_a_character_of_several_tokens_is_one_piece_of_several_tokens() -> None:
    (letter, sign, *_) = read(piece("a", 1) + piece("é", 3) + end(3, "limit"))

    assert isinstance(letter, Piece)
    assert isinstance(sign, Piece)
    assert letter.tokens is not None
    assert letter.tokens[0].data == b"a"
    assert sign.tokens is not None
    assert [token.data for token in sign.tokens] == [None, None]


def test_tokens_of_a_character_that_was_cut_are_counted_without_bytes() -> None:
    (_, cut, *_) = read(piece("a", 1) + end(3, "limit"))

    assert isinstance(cut, Piece)
    assert (cut.content, cut.token_count) == ("", 2)


def test_drafts_are_those_of_the_timings() -> None:
    told = read(end(3, "limit", {**TIMINGS, "draft_n": 9, "draft_n_accepted": 4}))

    assert [(c.drafted_tokens, c.accepted_tokens) for c in told if isinstance(c, Counts)] == [(9, 4)]


def test_without_timings_nothing_is_reported_of_cache_and_drafts() -> None:
    (counts,) = (found for found in read(end(3, "limit", None)) if isinstance(found, Counts))

    assert (counts.cached_tokens, counts.drafted_tokens, counts.completion_tokens) == (None, None, 3)


def test_candidates_have_ids_and_bytes() -> None:
    (shown, *_) = read(piece("a", 1, (5, "a", -0.5), (9, "é", -2.0)) + end(1, "limit"))

    assert isinstance(shown, Piece)
    assert shown.tokens is not None
    best, second = shown.tokens[0].candidates
    assert (best.token_id, second.token_id, second.token) == (5, 9, "é".encode())
    assert best.logprob - second.logprob == 1.5


def test_numbers_that_are_not_finite_are_not_told() -> None:
    (shown, *rest) = read(
        piece("a", 1, (5, "a", -0.5), (9, "b", float("-inf")))
        + end(1, "limit", {**TIMINGS, "predicted_per_second": float("nan")})
    )

    assert isinstance(shown, Piece)
    assert shown.tokens is not None
    assert [one.token_id for one in shown.tokens[0].candidates] == [5]
    (counts,) = (found for found in rest if isinstance(found, Counts))
    assert counts.tokens_per_s is None


def test_a_stop_string_ends_the_answer_as_such() -> None:
    assert Finish(reason="stop", stop_string=True) in read(piece("a", 1) + end(1, "word"))


def test_a_context_that_was_shifted_is_remarked() -> None:
    assert AnswerEnd(remarks=("the context was shifted",)) in read(end(4, "limit", truncated=True))


def test_an_error_ends_the_answer() -> None:
    fault = {"error": {"code": 500, "message": "no slot", "type": "server_error"}}

    assert read(piece("a", 1) + event(fault) + end(1, "limit"))[1:] == [
        ServerFault(message="no slot", kind="server_error", code="500")
    ]
    assert [type(found) for found in read(b'event: error\ndata: {"message": "no slot"}\n\n')] == [ServerFault]


def test_a_comment_is_a_sign_of_life() -> None:
    assert read(b": ping\n\n") == [KeepAlive()]


@pytest.mark.parametrize(
    "data",
    [
        b"data: 7\n\n",
        b'data: {"content": "a"}\n\n',
        b'data: {"content": 3, "stop": false, "tokens_predicted": 1}\n\n',
        b'data: {"content": "a", "stop": false}\n\n',
        b'data: {"content": "a", "stop": false, "tokens_predicted": true}\n\n',
        b'data: {"content": "", "stop": true, "tokens_evaluated": 1, "tokens_predicted": -1}\n\n',
        b'data: {"content": "a", "stop": false, "tokens_predicted": 1, "completion_probabilities": [3]}\n\n',
        b'data: {"content": "a", "stop": false, "tokens_predicted": 100000000000}\n\n',
        b'data: {"content": "", "stop": true, "tokens_evaluated": 1, "tokens_predicted": 100000000000}\n\n',
        b"data: not JSON\n\n",
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(data)


def test_a_stream_that_is_cut_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError, match="before its last object"):
        read(piece("a", 1), ends=True)


@given(st.lists(st.integers(0, 400), max_size=6))
def test_any_cut_of_the_bytes_gives_the_same_events(cuts: list[int]) -> None:
    whole = piece("a", 1, (5, "a", -0.5), (9, "é", -2.0)) + piece("é", 3) + piece("", 4) + end(4, "eos")
    reader, found = LlamaStream(), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True):
        reader.receive_data(whole[start:stop])
        found += list(reader.events())
    assert found == read(whole)


def chat(finish: str, timings: dict[str, Any] | None) -> list[AnswerEvent]:
    reader = LlamaChatStream()
    usage: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    reader.receive_data(
        event({"choices": [{"index": 0, "delta": {"content": "ab"}, "finish_reason": None}]})
        + event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        + event(usage if timings is None else {**usage, "timings": timings})
        + b"data: [DONE]\n\n"
    )
    reader.receive_eof()
    return list(reader.events())


@pytest.mark.parametrize(("finish", "tokens"), [("stop", 2), ("length", 3)])
def test_a_chat_counts_no_stop_token(finish: str, tokens: int) -> None:
    (counts,) = (found for found in chat(finish, TIMINGS) if isinstance(found, Counts))

    assert (counts.completion_tokens, counts.drafted_tokens, counts.accepted_tokens) == (tokens, 0, 0)
    assert (counts.cached_tokens, counts.prefill_tokens) == (7, 24)


def test_a_chat_is_never_ended_by_a_stop_string() -> None:
    assert Finish(reason="stop", stop_string=False) in chat("stop", None)


def test_a_chat_without_timings_reports_no_drafts() -> None:
    (counts,) = (found for found in chat("length", None) if isinstance(found, Counts))

    assert counts.drafted_tokens is None
