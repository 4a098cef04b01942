"""Reads one answer of llama.cpp's server: of ``/completion``, and of its chat completions.

Its own JSON tells more than OpenAI's, and it counts a stop token as one that it generated. Here a stop token
is none, on both paths: it is taken off the count, and its piece is no output.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .answer_events import (
    AnswerEnd,
    AnswerEvent,
    AnswerToken,
    Candidate,
    Counts,
    Finish,
    KeepAlive,
    Piece,
)
from .errors import RemoteProtocolError
from .events import Closed
from .openai_objects import MAX_COUNT
from .openai_stream import OpenAiStream, parse_json, read_json
from .sse import SseComment, SseReader

Object = Mapping[str, Any]
# A piece waits for the end of a character or of a stop string, which takes far fewer tokens.
MAX_PIECE_TOKENS = 1 << 20
FINISHES = {"eos": "stop", "limit": "length", "word": "stop"}


class LlamaStream:
    """Reads a streamed answer of ``/completion``.

    A piece is one token, or more where a character or what may be a stop string had to be completed first:
    the running count tells. The ids in a stream are not read, because the server leaves out those of tokens
    that end inside a character.
    """

    def __init__(self) -> None:
        self._events = SseReader()
        self._generated = 0
        self._held: list[AnswerToken] = []
        self._ended = False

    def receive_data(self, data: bytes) -> None:
        """Append bytes of the body."""
        self._events.receive_data(data)

    def receive_eof(self) -> None:
        """Note that the body is complete."""
        self._events.receive_eof()

    def events(self) -> Iterator[AnswerEvent]:
        """Yield what is complete now. Raises RemoteProtocolError: no answer object, or the stream was cut."""
        for event in self._events.events():
            if self._ended:
                return
            if isinstance(event, SseComment):
                yield KeepAlive()
            elif isinstance(event, Closed):
                raise RemoteProtocolError("the stream ended before its last object", offset=0, excerpt=b"")
            else:
                yield from self._read_data(event.data, is_error=event.name == "error")

    def _read_data(self, data: bytes, *, is_error: bool) -> Iterator[AnswerEvent]:
        value = parse_json(data)
        if isinstance(value, dict) and ("error" in value or is_error):
            self._ended = True
            yield from read_json(value if "error" in value else {"error": value}, data)
            return
        if not isinstance(value, dict) or not isinstance(value.get("stop"), bool):
            raise RemoteProtocolError("no answer of /completion: no 'stop'", offset=0, excerpt=data)
        try:
            yield from self._read_end(value) if value["stop"] else self._read_piece(value)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"a field is missing or wrong: {error}", offset=0, excerpt=data
            ) from error

    def _read_piece(self, value: Object) -> Iterator[Piece]:
        """Yield a piece. One without text waits: it may turn out to be the stop token."""
        content = _text(value["content"])
        generated = _count(value, "tokens_predicted")
        self._check_growth(generated)
        tokens = _read_tokens(value, content, generated - self._generated)
        self._generated = generated
        self._held += tokens
        if content:
            yield Piece(content=content, tokens=self._take_held())

    def _check_growth(self, generated: int) -> None:
        """Refuse a jump that no piece explains, before there is a place for each token of it."""
        if generated - self._generated > MAX_PIECE_TOKENS:
            raise ValueError(f"tokens_predicted: from {self._generated} to {generated} in one piece")

    def _take_held(self) -> tuple[AnswerToken, ...]:
        held, self._held = tuple(self._held), []
        return held

    def _read_end(self, value: Object) -> Iterator[AnswerEvent]:
        """Yield the end. Tokens that the answer was cut behind inside a character are counted, never sent."""
        self._ended = True
        stopped = value.get("stop_type") == "eos"
        if stopped:
            self._held = self._held[:-1]
        generated = _count(value, "tokens_predicted")
        self._check_growth(generated)
        self._held += [AnswerToken(data=None)] * (generated - self._generated)
        content = _text(value.get("content", ""))
        if content or self._held:
            yield Piece(content=content, tokens=self._take_held())
        stop_type = str(value.get("stop_type"))
        yield Finish(reason=FINISHES.get(stop_type, ""), stop_string=stop_type == "word")
        yield _read_counts(value, stop_tokens=int(stopped))
        yield AnswerEnd(remarks=("the context was shifted",) if value.get("truncated") else ())


class LlamaChatStream:
    """Reads a streamed answer of llama.cpp's chat completions that were given no stop strings."""

    def __init__(self) -> None:
        self._stream = OpenAiStream()
        self._finish = ""

    def receive_data(self, data: bytes) -> None:
        """Append bytes of the body."""
        self._stream.receive_data(data)

    def receive_eof(self) -> None:
        """Note that the body is complete."""
        self._stream.receive_eof()

    def events(self) -> Iterator[AnswerEvent]:
        """Yield what is complete now. Raises RemoteProtocolError."""
        for event in self._stream.events():
            if isinstance(event, Finish):
                self._finish = event.reason
                yield replace(event, stop_string=False)
            else:
                yield self._correct(event) if isinstance(event, Counts) else event

    def _correct(self, counts: Counts) -> Counts:
        """Take a stop token off the count; drafts that are not told of beside timings are none."""
        if counts.completion_tokens is not None and self._finish != "length":
            counts = replace(counts, completion_tokens=max(0, counts.completion_tokens - 1))
        if counts.prefill_tokens is None:
            return counts
        return Counts(drafted_tokens=0, accepted_tokens=0).join(counts)


def _read_counts(value: Object, *, stop_tokens: int) -> Counts:
    """Return the counts of the last object. Drafts are told of only when there were any."""
    timings = value.get("timings")
    told = Counts(
        prompt_tokens=_count(value, "tokens_evaluated"),
        completion_tokens=_count(value, "tokens_predicted") - stop_tokens,
    )
    if not isinstance(timings, dict):
        return told
    return replace(
        told,
        cached_tokens=_count(timings, "cache_n"),
        prefill_tokens=_count(timings, "prompt_n"),
        drafted_tokens=_count(timings, "draft_n") if "draft_n" in timings else 0,
        accepted_tokens=_count(timings, "draft_n_accepted") if "draft_n_accepted" in timings else 0,
        tokens_per_s=_finite(timings["predicted_per_second"]),
    )


def _read_tokens(value: Object, content: str, count: int) -> list[AnswerToken]:
    """Return the tokens of a piece; their bytes and candidates are known where it is a single one."""
    if count != 1:
        return [AnswerToken(data=None)] * count
    entries = value.get("completion_probabilities") or [{}]
    best = entries[0].get("top_logprobs") or ()
    known = [_read_candidate(one) for one in best if _finite(one["logprob"]) is not None]
    return [AnswerToken(data=content.encode(), candidates=tuple(known))]


def _read_candidate(entry: Object) -> Candidate:
    return Candidate(
        token=bytes(entry["bytes"]), logprob=float(entry["logprob"]), token_id=_count(entry, "id")
    )


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} where text belongs")
    return value


def _count(table: Object, name: str) -> int:
    value = table[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name}: {value!r:.40} where a count belongs")
    return value
