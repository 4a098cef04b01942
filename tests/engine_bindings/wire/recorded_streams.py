"""The recordings, and ways to read a stream in pieces that the tests of all readers share."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine_bindings.wire import (
    ChatClient,
    ChatServer,
    MuxClient,
    MuxServer,
    Ready,
    RemoteProtocolError,
    Text,
)

RECORDINGS = Path(__file__).parents[2] / "recordings"
# The replies in a recording of chat mode: Line, More, Prompt, Reset, Empty line.
CHAT_REPLIES = {
    "c_chat_lines_d1": "LMLRMEL",
    "c_chat_api_d0": "PPPPPPL",
    "c_chat_api_d1": "PPPPPPL",
    "c_chat_api_d3": "PPPPPPL",
    "e_submit_to_chat_d0": "LL",
}
MUX_NAMES = (
    "d_mux_s1_d0",
    "d_mux_s1_d1",
    "d_mux_s1_d3",
    "d_mux_s2_d3",
    "d_mux_grammar_d3",
    "d_mux_badframe_s1_d1",
    "e_prompt_to_mux",
)
CLIENT_NAMES = (*CHAT_REPLIES, *MUX_NAMES)

Reader = ChatClient | ChatServer | MuxClient | MuxServer


@dataclass(frozen=True)
class Outcome:
    """What came out of a reader; neighbouring Text is merged, as its cuts follow those of the stream."""

    events: tuple[Any, ...]
    error: tuple[type[RemoteProtocolError], str, int, bytes] | None


@cache
def recording(name: str) -> bytes:
    return (RECORDINGS / name).read_bytes()


def send_chat(client: ChatClient, replies: str) -> list[bytes]:
    sends: dict[str, Callable[[], bytes]] = {
        "L": lambda: client.encode_line(b"x"),
        "M": client.encode_more,
        "P": lambda: client.encode_prompt(b"x", max_tokens=1),
        "R": client.encode_reset,
        "E": lambda: client.encode_line(b""),
    }
    return [sends[reply]() for reply in replies]


def send_mux(client: MuxClient, request_ids: Iterable[int]) -> list[bytes]:
    return [client.encode_submit(request_id=each, prompt=b"x", max_tokens=1) for each in request_ids]


@cache
def accepted_ids(name: str) -> tuple[int, ...]:
    stream = recording(f"{name}.out")
    return tuple(int(digits) for digits in re.findall(rb"^ACCEPT (\d+) ", stream, re.MULTILINE))


def client_of(name: str) -> tuple[Reader, Callable[[], object]]:
    """A client for a recorded .out, and what to send once it is ready so that all replies are expected."""
    if name in CHAT_REPLIES:
        chat = ChatClient()
        return chat, lambda: send_chat(chat, CHAT_REPLIES[name])
    mux = MuxClient()
    return mux, lambda: send_mux(mux, accepted_ids(name))


def read_pieces(
    reader: Reader, pieces: Sequence[bytes], *, on_ready: Callable[[], object] | None = None, eof: bool = True
) -> Outcome:
    events: list[Any] = []
    try:
        for number, piece in enumerate(pieces):
            reader.receive_data(piece)
            if eof and number == len(pieces) - 1:
                reader.receive_eof()
            for event in reader.events():
                if isinstance(event, Text) and events and isinstance(events[-1], Text):
                    events[-1] = Text(data=events[-1].data + event.data)
                else:
                    events.append(event)
                if on_ready is not None and isinstance(event, Ready):
                    on_ready()
    except RemoteProtocolError as error:
        return Outcome(tuple(events), (type(error), str(error), error.offset, error.excerpt))
    return Outcome(tuple(events), None)


def read_recording(name: str, pieces: Sequence[bytes], *, eof: bool = True) -> Outcome:
    reader, on_ready = client_of(name)
    return read_pieces(reader, pieces, on_ready=on_ready, eof=eof)


def cut(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(stream) + 1) for place in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[place : place + 1] for place in range(len(stream))] or [b""]
