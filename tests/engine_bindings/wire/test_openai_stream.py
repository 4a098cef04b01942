"""Answers as servers send them, read whole and byte by byte. Tokens are never counted by chunks."""

import contextlib
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire import RemoteProtocolError
from engine_bindings.wire.answer_events import (
    AnswerEnd,
    AnswerEvent,
    AnswerToken,
    CallPiece,
    Candidate,
    Counts,
    Finish,
    KeepAlive,
    Piece,
    ServerFault,
)
from engine_bindings.wire.openai_stream import AnswerReader, OpenAiStream, OpenAiWhole

DONE = b"data: [DONE]\n\n"
NO_MARK = AnswerEnd(remarks=("the stream ended without [DONE]",))


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def text(value: str, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": value, "finish_reason": finish, **fields}]}


def read(reader: AnswerReader, pieces: Iterable[bytes]) -> list[AnswerEvent]:
    events: list[AnswerEvent] = []
    for piece in pieces:
        reader.receive_data(piece)
        events += reader.events()
    reader.receive_eof()
    return [*events, *reader.events()]


def read_stream(*parts: bytes | dict[str, Any]) -> list[AnswerEvent]:
    """Read a stream whole and byte by byte, which must give the same."""
    stream = b"".join(part if isinstance(part, bytes) else event(part) for part in parts)
    events = read(OpenAiStream(), [stream])
    assert read(OpenAiStream(), [stream[i : i + 1] for i in range(len(stream))]) == events
    return events


def test_a_chat_stream() -> None:
    events = read_stream(
        delta(role="assistant", content=""),
        delta(content="Hel"),
        delta(content="lo"),
        delta("stop"),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}},
        DONE,
    )

    assert events == [
        Piece(),
        Piece(content="Hel"),
        Piece(content="lo"),
        Piece(),
        Finish(reason="stop"),
        Counts(prompt_tokens=5, completion_tokens=2),
        AnswerEnd(),
    ]
    assert [e.is_output for e in events if isinstance(e, Piece)] == [False, True, True, False]


def test_a_piece_is_any_number_of_tokens() -> None:
    (piece, *_) = read_stream(delta(content="four tokens at once"), delta("stop"), DONE)

    assert isinstance(piece, Piece)
    assert piece.token_count is None


def test_a_completion_stream() -> None:
    events = read_stream(text("a"), text("b", "length"), DONE)

    assert events == [Piece(content="a"), Piece(content="b"), Finish(reason="length"), AnswerEnd()]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_told_apart(name: str) -> None:
    events = read_stream(delta(**{name: "Hm"}), delta(content="Yes"), delta("stop"), DONE)

    assert events[:2] == [Piece(reasoning="Hm"), Piece(content="Yes")]


def test_reasoning_under_both_names_counts_once() -> None:
    (piece, *_) = read_stream(delta(reasoning_content="Hm", reasoning="Hm"), delta("stop"), DONE)

    assert piece == Piece(reasoning="Hm")


def test_tool_calls() -> None:
    first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    events = read_stream(
        delta(tool_calls=[first]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}, {"index": 1, "function": None}]),
        delta("tool_calls"),
        DONE,
    )

    assert events == [
        Piece(calls=(CallPiece(index=0, name="f", call_id="call_1"),)),
        Piece(calls=(CallPiece(index=0, arguments='{"a"'),)),
        Piece(calls=(CallPiece(index=0, arguments=":1}"), CallPiece(index=1))),
        Piece(),
        Finish(reason="tool_calls"),
        AnswerEnd(),
    ]


def test_usage_details_and_timings() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 2},
    }
    timings = {"prompt_n": 6, "cache_n": 4, "predicted_per_second": 12.5}
    events = read_stream(delta("stop"), {"choices": [], "usage": usage, "timings": timings}, DONE)

    (counts,) = (e for e in events if isinstance(e, Counts))
    assert counts == Counts(
        prompt_tokens=10,
        completion_tokens=8,
        cached_tokens=4,
        prefill_tokens=6,
        accepted_tokens=3,
        rejected_tokens=2,
        tokens_per_s=12.5,
    )
    assert counts.drafted == 5


def test_drafts_as_llama_cpp_counts_them() -> None:
    timings = {"draft_n": 9, "draft_n_accepted": 7}
    events = read_stream(delta("stop"), {"choices": [], "timings": timings}, DONE)

    (counts,) = (e for e in events if isinstance(e, Counts))
    assert (counts.drafted, counts.accepted_tokens) == (9, 7)


def test_details_that_are_null_are_not_reported() -> None:
    details = {"accepted_prediction_tokens": None, "rejected_prediction_tokens": None}
    usage = {"completion_tokens": 2, "completion_tokens_details": details, "prompt_tokens_details": None}
    events = read_stream(delta("stop"), {"choices": [], "usage": usage}, DONE)

    (counts,) = (e for e in events if isinstance(e, Counts))
    assert counts == Counts(completion_tokens=2)
    assert counts.drafted is None


def test_missing_usage_is_not_reported() -> None:
    events = read_stream({**delta(content="a"), "usage": None}, delta("stop"), DONE)

    assert not [e for e in events if isinstance(e, Counts)]


def test_usage_in_every_chunk_ends_with_the_last() -> None:
    parts = [{**delta(content="a"), "usage": {"completion_tokens": n}} for n in (1, 2)]
    counts = Counts()
    for one in read_stream(*parts, delta("stop"), DONE):
        counts = counts.join(one) if isinstance(one, Counts) else counts

    assert counts.completion_tokens == 2


def test_token_ids() -> None:
    chunk = text("ab", "stop", token_ids=[5, 6])

    assert read_stream(chunk, DONE)[0] == Piece(content="ab", token_ids=(5, 6))


def test_logprobs_of_a_chat() -> None:
    top = [{"token": "b", "logprob": -2.0, "bytes": [98]}, {"token": "a", "logprob": -0.5, "bytes": None}]
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": top}
    chunk = delta(content="a")
    chunk["choices"][0]["logprobs"] = {"content": [entry]}

    (piece, *_) = read_stream(chunk, delta("stop"), DONE)
    best = (Candidate(token=b"a", logprob=-0.5), Candidate(token=b"b", logprob=-2.0))
    assert piece == Piece(content="a", tokens=(AnswerToken(data=b"a", logprob=-0.5, candidates=best),))


def test_numbers_that_are_not_finite_are_not_told() -> None:
    tops = [
        {"token": one, "logprob": lp} for one, lp in (("a", float("nan")), ("b", -1), ("c", -float("inf")))
    ]
    entry = {"token": "a", "logprob": float("nan"), "bytes": [97], "top_logprobs": tops}
    chunk = delta(content="a") | {"timings": {"predicted_per_second": float("inf")}}
    chunk["choices"][0]["logprobs"] = {"content": [entry]}

    (piece, *rest) = read_stream(chunk, delta("stop"), DONE)
    best = (Candidate(token=b"b", logprob=-1.0),)
    assert piece == Piece(content="a", tokens=(AnswerToken(data=b"a", candidates=best),))
    assert not any(isinstance(one, Counts) for one in rest)


def test_logprobs_of_a_completion() -> None:
    logprobs = {"tokens": ["a", "b"], "top_logprobs": [{"a": -0.1, "c": -3}, None]}

    (piece, *_) = read_stream(text("ab", "stop", logprobs=logprobs), DONE)
    assert isinstance(piece, Piece)
    assert piece.token_count == 2
    assert piece.tokens == (
        AnswerToken(
            data=None, candidates=(Candidate(token=b"a", logprob=-0.1), Candidate(token=b"c", logprob=-3.0))
        ),
        AnswerToken(data=None),
    )


def test_signs_of_life_are_no_output() -> None:
    events = read_stream(
        b": waiting\n\n", b"data:\n\n", {"choices": []}, delta(content=""), delta("stop"), DONE
    )

    assert events[:4] == [KeepAlive(), KeepAlive(), KeepAlive(), Piece()]
    assert not any(e.is_output for e in events if isinstance(e, Piece))


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ({"error": {"message": "boom", "type": "x", "code": 500}}, ("boom", "x", "500")),
        ({"error": "boom"}, ("boom", "", "")),
        ({"object": "error", "message": "boom", "code": 400}, ("boom", "", "400")),
        (b'event: error\ndata: {"error": {"message": "boom"}}\n\n', ("boom", "", "")),
        (b'event: error\ndata: {"message": "boom"}\n\n', ("boom", "", "")),
        (b'event: error\ndata: "boom"\n\n', ("boom", "", "")),
        ({"error": {}}, ("no message", "", "")),
    ],
)
def test_an_error_inside_a_stream_ends_it(part: Any, fault: tuple[str, str, str]) -> None:
    message, kind, code = fault

    events = read_stream(delta(content="a"), part, delta(content="b"), DONE)
    assert events == [Piece(content="a"), ServerFault(message=message, kind=kind, code=code)]


def test_what_follows_the_end_is_not_read() -> None:
    assert read_stream(delta("stop"), DONE, delta(content="late"))[-1] == AnswerEnd()


def test_a_missing_mark_is_a_remark() -> None:
    assert read_stream(delta("stop"))[-1] == NO_MARK
    reader = OpenAiStream(mark_expected=False)
    assert read(reader, [event(delta("stop"))])[-1] == AnswerEnd()


def test_a_missing_finish_reason_is_a_remark() -> None:
    assert read_stream(delta(content="a"), DONE)[-1] == AnswerEnd(remarks=("no finish_reason before [DONE]",))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((delta(content="a"),), "without a finish_reason"),
        ((), "without a finish_reason"),
        ((delta(content="a"), b'data: {"cho'), "ended inside an event"),
        ((b"data: {]\n\n",), "not JSON"),
        ((b"data: " + b"[" * 100_000 + b"\n\n",), "not JSON"),
        (([1],), "a JSON array where an object belongs"),
        (({"id": "x"},), "no list of choices; its keys: id"),
        (({"choices": [None]},), "choices.0.: a JSON null where an object belongs"),
        (({"choices": [{"index": 1, "delta": {}}]},), "choice 1, although one choice was asked for"),
        ((delta(content=["a"]),), "delta.content: a JSON array where text belongs"),
        ((delta(tool_calls={}),), "delta.tool_calls: a JSON object where a list belongs"),
        ((text(1),), "text: a JSON number where text belongs"),
        ((text("a", token_ids=["x"]),), "token_ids: x where a count belongs"),
        (({"choices": [], "usage": {"completion_tokens": -1}},), "usage.completion_tokens: -1 where a count"),
        (({"choices": [], "usage": {"completion_tokens": True}},), "completion_tokens: True where a count"),
        (({"choices": [], "usage": {"completion_tokens": 10**400}},), "completion_tokens: 1000+[.]{3} where"),
        ((delta(content="a") | {"timings": {"predicted_per_second": 10**400}},), "where a number belongs"),
        (({"choices": [], "usage": 3},), "usage: a JSON number where an object belongs"),
    ],
)
def test_what_is_wrong_is_named(parts: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        read_stream(*parts)


def whole(value: Any) -> list[AnswerEvent]:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read(OpenAiWhole(), [body[:7], body[7:]])


def test_a_whole_chat_answer() -> None:
    message = {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": "Hm",
        "refusal": None,
        "tool_calls": None,
    }
    answer = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"completion_tokens": 2},
    }

    assert whole(answer) == [
        Piece(content="Yes", reasoning="Hm"),
        Finish(reason="stop"),
        Counts(completion_tokens=2),
        AnswerEnd(),
    ]


def test_calls_of_a_whole_answer_have_no_index() -> None:
    calls = [{"id": n, "type": "function", "function": {"name": n, "arguments": "{}"}} for n in "ab"]
    message = {"role": "assistant", "content": None, "tool_calls": calls}

    (piece, *_) = whole({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    assert piece == Piece(
        calls=(
            CallPiece(index=0, name="a", arguments="{}", call_id="a"),
            CallPiece(index=1, name="b", arguments="{}", call_id="b"),
        )
    )


def test_a_whole_answer_without_a_finish_reason_has_a_remark() -> None:
    assert whole(text("a"))[-1] == AnswerEnd(remarks=("no finish_reason",))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html></html>", "not JSON at byte 0: b'<html></html>'"),
        (b"", "not JSON"),
        ({"choices": []}, "no choice in the answer"),
        ({"object": "list", "data": []}, "no list of choices"),
    ],
)
def test_a_whole_body_that_is_no_answer(body: Any, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        whole(body)


def test_an_error_in_place_of_a_whole_answer() -> None:
    assert whole({"error": {"message": "boom"}}) == [ServerFault(message="boom")]


def test_a_whole_answer_has_a_limit() -> None:
    body = json.dumps(text("x" * 10, "stop")).encode()

    assert read(OpenAiWhole(max_bytes=len(body)), [body])[-1] == AnswerEnd()
    with pytest.raises(RemoteProtocolError, match="body longer than"):
        read(OpenAiWhole(max_bytes=len(body) - 1), [body])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "choices",
    "delta",
    "content",
    "tool_calls",
    "usage",
    "index",
    "error",
    "logprobs",
    "token_ids",
    "message",
)


@given(st.dictionaries(st.sampled_from(NAMES), json_values, max_size=4), st.booleans())
def test_any_object_gives_events_or_a_named_error(value: dict[str, Any], nested: bool) -> None:
    parts = {"choices": [value]} if nested else value
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(read_stream(parts, DONE)[-1], AnswerEnd | ServerFault)
