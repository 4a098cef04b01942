"""Reads one answer of an OpenAI-compatible server, streamed or whole: bytes in, events out."""

import json
from collections.abc import Iterator
from typing import Protocol

from .answer_events import AnswerEnd, AnswerEvent, Finish, KeepAlive, Piece, ServerFault
from .errors import RemoteProtocolError
from .events import Closed
from .limits import MIB
from .openai_objects import WrongObjectError, read_object
from .sse import SseComment, SseReader

DONE = b"[DONE]"
# A whole answer with logprobs takes about 2 KiB a token; this is room for 32k tokens of them.
MAX_WHOLE_BYTES = 64 * MIB


class AnswerReader(Protocol):
    """What reads the body of one answer. Each kind of JSON has a reader of its own."""

    def receive_data(self, data: bytes) -> None:
        """Append bytes of the body."""

    def receive_eof(self) -> None:
        """Note that the body is complete."""

    def events(self) -> Iterator[AnswerEvent]:
        """Yield what is complete now; AnswerEnd is the last one. Raises RemoteProtocolError."""


class OpenAiStream:
    """Reads a streamed answer.

    After an error event or the end nothing more is yielded. A stream that ends with a finish reason and
    without ``[DONE]`` is complete, with a remark; one that has neither was cut.
    """

    def __init__(self, *, mark_expected: bool = True) -> None:
        self._events = SseReader(last_data=DONE)
        self._mark_expected = mark_expected
        self._finished = False
        self._ended = False

    def receive_data(self, data: bytes) -> None:
        """Append bytes of the body."""
        self._events.receive_data(data)

    def receive_eof(self) -> None:
        """Note that the body is complete."""
        self._events.receive_eof()

    def events(self) -> Iterator[AnswerEvent]:
        """Yield what is complete now.

        Raises:
            RemoteProtocolError: an event is no answer, or the stream was cut.
        """
        for event in self._events.events():
            if self._ended:
                return
            if isinstance(event, SseComment):
                yield KeepAlive()
            elif isinstance(event, Closed):
                yield self._end_without_mark()
            elif event.data == DONE:
                self._ended = True
                yield AnswerEnd(remarks=() if self._finished else ("no finish_reason before [DONE]",))
            elif event.data.strip():
                yield from self._read_data(event.data, is_error=event.name == "error")
            else:
                yield KeepAlive()

    def _read_data(self, data: bytes, *, is_error: bool) -> Iterator[AnswerEvent]:
        value = parse_json(data)
        if is_error and not (isinstance(value, dict) and "error" in value):
            value = {"error": value}
        for event in read_json(value, data):
            self._finished |= isinstance(event, Finish)
            self._ended |= isinstance(event, ServerFault)
            yield event

    def _end_without_mark(self) -> AnswerEnd:
        self._ended = True
        if not self._finished:
            message = "the stream ended without a finish_reason and without [DONE]"
            raise RemoteProtocolError(message, offset=0, excerpt=b"")
        return AnswerEnd(remarks=("the stream ended without [DONE]",) if self._mark_expected else ())


class OpenAiWhole:
    """Reads an answer that comes as one JSON object."""

    def __init__(self, *, max_bytes: int = MAX_WHOLE_BYTES) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._max_bytes = max_bytes
        self._complete = False
        self._read = False

    def receive_data(self, data: bytes) -> None:
        """Append bytes of the body; those beyond the limit are counted and not kept."""
        self._size_bytes += len(data)
        if self._size_bytes <= self._max_bytes:
            self._parts.append(data)

    def receive_eof(self) -> None:
        """Note that the body is complete."""
        self._complete = True

    def events(self) -> Iterator[AnswerEvent]:
        """Yield all events once the body is complete.

        Raises:
            RemoteProtocolError: the body is no answer, or too large.
        """
        if self._size_bytes > self._max_bytes:
            raise RemoteProtocolError(f"body longer than {self._max_bytes} bytes", offset=0, excerpt=b"")
        if not self._complete or self._read:
            return
        self._read = True
        body = b"".join(self._parts)
        kinds = set()
        for event in read_json(parse_json(body), body):
            kinds.add(type(event))
            yield event
        if ServerFault in kinds:
            return
        if Piece not in kinds:
            raise RemoteProtocolError("no choice in the answer", offset=0, excerpt=body)
        yield AnswerEnd(remarks=() if Finish in kinds else ("no finish_reason",))


def parse_json(data: bytes) -> object:
    """Return the value of JSON text. Raises RemoteProtocolError that shows how it begins."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("not JSON", offset=0, excerpt=data) from error


def read_json(value: object, data: bytes) -> Iterator[AnswerEvent]:
    """Yield the events of an answer object that was written as ``data``. Raises RemoteProtocolError."""
    try:
        yield from read_object(value)
    except WrongObjectError as error:
        raise RemoteProtocolError(str(error), offset=0, excerpt=data) from error
