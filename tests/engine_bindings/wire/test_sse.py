"""Every stream is read whole, byte by byte, and cut at any place: the events must not depend on the cuts."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire import Closed, RemoteProtocolError
from engine_bindings.wire.limits import Limits
from engine_bindings.wire.sse import SseComment, SseEvent, SseReader

DONE = b"[DONE]"

STREAMS = {
    "lf": (b"data: a\n\ndata: b\n\n", [SseEvent(b"a"), SseEvent(b"b")]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [SseEvent(b"a"), SseEvent(b"b")]),
    "cr": (b"data: a\r\rdata: b\r\r", [SseEvent(b"a"), SseEvent(b"b")]),
    "mixed": (b"data: a\r\n\ndata: b\n\rdata: c\r\r\n", [SseEvent(b"a"), SseEvent(b"b"), SseEvent(b"c")]),
    "several data lines": (b"data: a\ndata:\ndata: c\n\n", [SseEvent(b"a\n\nc")]),
    "one space only": (b"data:  a \n\ndata:b\n\n", [SseEvent(b" a "), SseEvent(b"b")]),
    "colons": (b'data: {"a": "b: c"}\n\n', [SseEvent(b'{"a": "b: c"}')]),
    "a name": (b"event: error\ndata: x\n\ndata: y\n\n", [SseEvent(b"x", "error"), SseEvent(b"y")]),
    "a name alone is no event": (b"event: ping\n\ndata: y\n\n", [SseEvent(b"y")]),
    "comments": (b": waiting\n\n:\ndata: a\n:x\n\n", [SseComment(b"waiting"), SseComment(b""), SseComment(b"x"), SseEvent(b"a")]),  # noqa: E501
    "other fields": (b"id: 7\nretry: 10\nnonsense\ndata: a\n\n", [SseEvent(b"a")]),
    "empty data is an event": (b"data\n\ndata:\n\n", [SseEvent(b""), SseEvent(b"")]),
    "blank lines": (b"\n\n\r\n\rdata: a\n\n\n", [SseEvent(b"a")]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [SseEvent(b"a")]),
    "a mark further on is text": (b"data: \xef\xbb\xbfa\n\n", [SseEvent(b"\xef\xbb\xbfa")]),
    "nothing": (b"", []),
    "a comment that is cut": (b"data: a\n\n: keep", [SseEvent(b"a")]),
}  # fmt: skip


def read_pieces(pieces: Iterable[bytes], reader: SseReader | None = None) -> list[object]:
    reader = reader or SseReader(last_data=DONE)
    events: list[object] = []
    for piece in pieces:
        reader.receive_data(piece)
        events += reader.events()
    reader.receive_eof()
    return events + list(reader.events())


def single(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_read_whole_and_byte_by_byte(name: str) -> None:
    stream, events = STREAMS[name]

    assert read_pieces([stream]) == [*events, Closed()]
    assert read_pieces(single(stream)) == [*events, Closed()]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_read_with_any_one_cut(name: str) -> None:
    stream, events = STREAMS[name]

    for at in range(len(stream) + 1):
        assert read_pieces([stream[:at], stream[at:]]) == [*events, Closed()]


def test_an_event_is_given_as_soon_as_its_last_cr_is_there() -> None:
    reader = SseReader()
    reader.receive_data(b"data: a\r\n\r")

    assert list(reader.events()) == [SseEvent(b"a")]


@pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n", b"data:[DONE]\r"])
def test_the_last_event_needs_no_empty_line(tail: bytes) -> None:
    stream = b"data: a\n\n" + tail

    assert read_pieces(single(stream)) == [SseEvent(b"a"), SseEvent(DONE), Closed()]


@pytest.mark.parametrize(
    ("tail", "excerpt"),
    [
        (b"data: {}\n", b"{}"),
        (b"data: {}", b"{}"),
        (b"data: a\ndata: b", b"a\nb"),
        (b"event: x", b"event: x"),
        (b"dat", b"dat"),
    ],
)
def test_an_end_inside_an_event_is_an_error(tail: bytes, excerpt: bytes) -> None:
    reader = SseReader(last_data=DONE)
    reader.receive_data(b"data: a\n\n" + tail)
    reader.receive_eof()
    events = reader.events()

    assert next(events) == SseEvent(b"a")
    with pytest.raises(RemoteProtocolError, match="ended inside an event") as caught:
        next(events)
    assert caught.value.excerpt == excerpt
    with pytest.raises(RemoteProtocolError):
        list(reader.events())


def test_a_line_has_a_limit() -> None:
    limits = Limits(max_line_bytes=20)
    fits = b"data: " + b"x" * 14

    assert read_pieces([fits + b"\n\n"], SseReader(limits=limits)) == [SseEvent(b"x" * 14), Closed()]
    with pytest.raises(RemoteProtocolError, match="line longer than 20 bytes"):
        read_pieces(single(fits + b"x"), SseReader(limits=limits))


def test_an_event_has_a_limit() -> None:
    lines = b"data: xxxx\ndata: xxxx\n"

    assert read_pieces([lines + b"\n"], SseReader(max_event_bytes=10)) == [SseEvent(b"xxxx\nxxxx"), Closed()]
    with pytest.raises(RemoteProtocolError, match="event longer than 9 bytes"):
        read_pieces([lines + b"\n"], SseReader(max_event_bytes=9))


values = st.lists(
    st.lists(st.binary(max_size=8).map(lambda b: b.translate(None, b"\r\n")), min_size=1, max_size=3),
    max_size=4,
)


@given(values, st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_any_events_survive_any_cuts(events: list[list[bytes]], newline: bytes, data: st.DataObject) -> None:
    stream = b"".join(b"".join(b"data: " + line + newline for line in lines) + newline for lines in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert read_pieces(pieces) == [*(SseEvent(b"\n".join(lines)) for lines in events), Closed()]


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_give_the_same_events_whole_and_in_pieces(stream: bytes, at: int) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[object], str]:
        reader, events, error = SseReader(), list[object](), ""
        try:
            for piece in [*pieces, None]:
                reader.receive_eof() if piece is None else reader.receive_data(piece)
                for event in reader.events():
                    events.append(event)
        except RemoteProtocolError as raised:
            error = str(raised)
        return events, error

    assert outcome([stream]) == outcome(single(stream)) == outcome([stream[:at], stream[at:]])
