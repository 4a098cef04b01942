"""What holds for all readers: cuts do not matter, and bytes give events or one typed error, nothing else."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine_bindings.wire import (
    ChatClient,
    ChatServer,
    Closed,
    Limits,
    LocalProtocolError,
    MuxClient,
    MuxServer,
    Note,
    RemoteProtocolError,
    Text,
)
from engine_bindings.wire.reader import ReceiveBuffer
from tests.engine_bindings.wire.recorded_streams import (
    CLIENT_NAMES,
    MUX_NAMES,
    Outcome,
    Reader,
    bytewise,
    client_of,
    cut,
    read_pieces,
    read_recording,
    recording,
)

TINY = Limits(
    max_line_bytes=40, max_data_bytes=20, max_payload_bytes=30, max_grammar_bytes=20, max_banner_bytes=200
)
READERS: dict[str, Callable[[], Reader]] = {
    "chat client": ChatClient,
    "mux client": MuxClient,
    "chat server": ChatServer,
    "mux server": MuxServer,
    "chat client, tiny limits": lambda: ChatClient(limits=TINY),
    "mux client, tiny limits": lambda: MuxClient(limits=TINY),
    "chat server, tiny limits": lambda: ChatServer(limits=TINY),
    "mux server, tiny limits": lambda: MuxServer(limits=TINY),
}
IN_NAMES = [name for name in CLIENT_NAMES if name[0] in "cd"]


def server_of(name: str) -> Reader:
    return ChatServer() if name.startswith("c_") else MuxServer()


def assert_sound(outcome: Outcome, stream: bytes) -> None:
    if outcome.error is None:
        return
    kind, message, offset, excerpt = outcome.error
    assert issubclass(kind, RemoteProtocolError)
    assert message
    assert 0 <= offset <= len(stream)
    assert len(excerpt) <= 64
    assert stream[offset : offset + len(excerpt)] == excerpt


# Recorded streams, cut in every way.


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_recorded_output_reads_the_same_byte_by_byte(name: str) -> None:
    stream = recording(f"{name}.out")
    whole = read_recording(name, [stream])
    assert whole.error is None
    assert whole.events[-1] == Closed()
    assert read_recording(name, bytewise(stream)) == whole


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_recorded_output_reads_the_same_cut_at_every_byte(name: str) -> None:
    stream = recording(f"{name}.out")
    whole = read_recording(name, [stream])
    # The three long runs with one slot differ in their numbers only: a fifth of the cuts each, none twice.
    same = ("d_mux_s1_d0", "d_mux_s1_d1", "d_mux_s1_d3")
    places = range(same.index(name), len(stream), 5) if name in same else range(len(stream))
    for place in places:
        assert read_recording(name, [stream[:place], stream[place:]]) == whole


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_recorded_output_that_ends_at_any_byte_gives_its_events_and_then_truncated(name: str) -> None:
    stream = recording(f"{name}.out")
    whole = read_recording(name, [stream])
    for place in range(0, len(stream), 1 if len(stream) < 1000 else 5):
        part = read_recording(name, [stream[:place]])
        assert part.error is None or "truncated" in part.error[1]
        assert_sound(part, stream[:place])
        done = [event for event in part.events if not isinstance(event, Closed | Text)]
        assert done == [event for event in whole.events if not isinstance(event, Closed | Text)][: len(done)]


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_bytes_after_a_recorded_output_are_an_error_at_their_place(name: str) -> None:
    stream = recording(f"{name}.out")
    whole = read_recording(name, [stream])
    longer = read_recording(name, [stream + b"surprise\n"])
    assert longer.events == whole.events[:-1]
    assert longer.error is not None
    assert longer.error[2:] == (len(stream), b"surprise\n"[: len(longer.error[3])])


@pytest.mark.parametrize("name", MUX_NAMES)
def test_a_line_of_unknown_kind_after_a_recorded_output_is_skipped_as_a_note(name: str) -> None:
    stream = recording(f"{name}.out")
    whole = read_recording(name, [stream])
    longer = read_recording(name, [stream + b"WEATHER fine 20\n"])
    assert longer.events == (*whole.events[:-1], Note(kind="WEATHER", line="WEATHER fine 20"), Closed())


@pytest.mark.parametrize("name", IN_NAMES)
def test_recorded_input_reads_the_same_in_any_pieces(name: str) -> None:
    stream = recording(f"{name}.in")
    whole = read_pieces(server_of(name), [stream])
    assert whole.error is None
    assert whole.events[-1] == Closed()
    assert read_pieces(server_of(name), bytewise(stream)) == whole
    for place in range(len(stream)):
        assert read_pieces(server_of(name), [stream[:place], stream[place:]]) == whole


# Any bytes at all.


def damaged(stream: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for place, count, new in edits:
        start = place % (len(stream) + 1)
        stream = stream[:start] + new + stream[start + count :]
    return stream


EDITS = st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 12), st.binary(max_size=12)), max_size=4)
CUTS = st.lists(st.integers(0, 9999), max_size=5)


@given(reader=st.sampled_from(sorted(READERS)), stream=st.binary(max_size=300), cuts=CUTS)
def test_any_bytes_give_events_or_one_typed_error(reader: str, stream: bytes, cuts: list[int]) -> None:
    whole = read_pieces(READERS[reader](), [stream])
    assert_sound(whole, stream)
    pieces = read_pieces(READERS[reader](), cut(stream, cuts))
    assert pieces.events == whole.events
    assert pieces.error == whole.error


@given(name=st.sampled_from(CLIENT_NAMES), edits=EDITS, cuts=CUTS)
@example(name="c_chat_lines_d1", edits=[(270, 0, b"\n\x01\x01EN")], cuts=[270, 273])
def test_damaged_output_gives_events_or_one_typed_error(
    name: str, edits: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = damaged(recording(f"{name}.out"), edits)
    whole = read_recording(name, [stream])
    assert_sound(whole, stream)
    pieces = read_recording(name, cut(stream, cuts))
    assert pieces.events == whole.events
    assert (pieces.error or (None,))[:1] == (whole.error or (None,))[:1]
    assert (pieces.error or (None, None, None))[2] == (whole.error or (None, None, None))[2]
    assert_sound(pieces, stream)


@given(name=st.sampled_from(IN_NAMES), edits=EDITS, cuts=CUTS)
def test_damaged_input_never_breaks_a_server(
    name: str, edits: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = damaged(recording(f"{name}.in"), edits)
    whole = read_pieces(server_of(name), [stream])
    assert whole.error is None
    assert whole.events[-1] == Closed()
    assert read_pieces(server_of(name), cut(stream, cuts)) == whole


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_an_error_is_final(name: str) -> None:
    stream = recording(f"{name}.out")
    reader, on_ready = client_of(name)
    first = read_pieces(reader, [stream + b"\x00\n"], on_ready=on_ready, eof=False)
    assert first.error is not None
    reader.receive_data(stream)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError) as again:
            list(reader.events())
        assert str(again.value) == first.error[1]


@pytest.mark.parametrize("make", READERS.values(), ids=READERS)
def test_nothing_can_be_received_after_the_end(make: Callable[[], Reader]) -> None:
    reader = make()
    reader.receive_eof()
    with pytest.raises(LocalProtocolError):
        reader.receive_data(b"x")


def test_closed_comes_once() -> None:
    reader = MuxServer()
    reader.receive_eof()
    assert list(reader.events()) == [Closed()]
    assert list(reader.events()) == []


def test_an_iterator_that_was_left_can_be_replaced_and_resumed() -> None:
    reader = MuxServer()
    reader.receive_data(b"STOP 1\nSTOP 2\n")
    left = reader.events()
    first = next(left)
    second = next(reader.events())
    assert (first.request_id, second.request_id) == (1, 2)  # type: ignore[union-attr]
    reader.receive_data(b"STOP 3\n")
    assert [event.request_id for event in left] == [3]  # type: ignore[union-attr]


# The buffer.


@given(pieces=st.lists(st.binary(max_size=9)), sizes=st.lists(st.integers(0, 20)))
def test_buffer_gives_back_what_was_fed(pieces: list[bytes], sizes: list[int]) -> None:
    buffer = ReceiveBuffer()
    stream = b"".join(pieces)
    place = 0
    for piece, size in zip(pieces, [*sizes, *[1] * len(pieces)], strict=False):
        buffer.feed(piece)
        taken = buffer.take(size)
        if taken is not None:
            assert taken == stream[place : place + size]
            place += size
        assert buffer.offset == place
    assert len(buffer) == sum(map(len, pieces)) - place
    assert buffer.take_rest() == stream[place:]


def test_buffer_parks_pieces_of_a_payload_until_it_is_complete() -> None:
    buffer = ReceiveBuffer()
    assert buffer.take(6) is None
    for piece in (b"ab", b"cd"):
        buffer.feed(piece)
        assert buffer.data == b""
        assert buffer.take(6) is None
    buffer.feed(b"efg")
    assert buffer.take(6) == b"abcdef"
    assert buffer.take_rest() == b"g"


def test_buffer_line_limit_counts_the_line_without_its_newline() -> None:
    buffer = ReceiveBuffer()
    buffer.feed(b"12345\n123456")
    assert buffer.take_line(5) == b"12345"
    with pytest.raises(RemoteProtocolError) as error:
        buffer.take_line(5)
    assert (error.value.offset, error.value.excerpt) == (6, b"123456")
