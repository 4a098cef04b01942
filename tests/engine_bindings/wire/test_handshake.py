from collections.abc import Callable

import pytest

from engine_bindings.wire import (
    Banner,
    ChatClient,
    Closed,
    Hardware,
    Limits,
    LocalProtocolError,
    MuxClient,
    Note,
    Ready,
    RemoteProtocolError,
    Stat,
    Tiers,
    WrongProtocol,
)
from tests.engine_bindings.wire.recorded_streams import bytewise, read_pieces, recording, send_chat, send_mux

READY_STAT = b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\n"
ZERO = Stat(emitted_tokens=0, tokens_per_s=0.0, hit_percent=0.0, rss_gb=0.01)
CLIENTS: list[Callable[..., ChatClient | MuxClient]] = [ChatClient, MuxClient]


def test_chat_mode_is_proven_by_tiers() -> None:
    client = ChatClient()
    outcome = read_pieces(client, [b"== engine ==\nloaded\n" + READY_STAT + b"TIERS 0 0 32 0.00 0.00\n"])
    assert outcome.events == (
        Banner(line="== engine =="),
        Banner(line="loaded"),
        Ready(protocol="chat", stat=ZERO, evidence="TIERS 0 0 32 0.00 0.00", tiers=Tiers(disk_experts=32)),
        Closed(),
    )


def test_serve_mode_is_proven_by_hwinfo() -> None:
    outcome = read_pieces(MuxClient(), [recording("e_prompt_to_mux.out")])
    hardware = Hardware(cores=2, ram_total_gb=24.7, ram_available_gb=23.7, cpu="AMD EPYC")
    evidence = "HWINFO 2 24.7 23.7 0 0.0 AMD EPYC|"
    assert outcome.events[2] == Ready(protocol="serve", stat=ZERO, evidence=evidence, hardware=hardware)
    assert [event.kind for event in outcome.events[3:5]] == ["TIERS", "EMAP"]


@pytest.mark.parametrize("make", CLIENTS)
def test_it_is_not_ready_before_the_proof(make: Callable[[], ChatClient | MuxClient]) -> None:
    client = make()
    client.receive_data(READY_STAT)
    assert list(client.events()) == []
    assert not client.ready
    with pytest.raises(LocalProtocolError, match="not ready"):
        send_chat(client, "R") if isinstance(client, ChatClient) else send_mux(client, [1])


def test_a_client_of_serve_mode_names_a_chat_engine_before_anything_is_sent() -> None:
    stream = recording("c_chat_api_d0.out")
    for pieces in ([stream], bytewise(stream)):
        client = MuxClient()
        outcome = read_pieces(client, pieces)
        assert [type(event) for event in outcome.events] == [Banner, Banner]
        with pytest.raises(WrongProtocol) as error:
            list(client.events())
        assert (error.value.expected, error.value.seen) == ("serve", "chat")
        assert error.value.evidence == "TIERS 0 0 32 0.00 0.00"
        assert error.value.offset == stream.index(b"TIERS")
        assert not client.ready


def test_a_client_of_chat_mode_names_a_serve_engine_before_anything_is_sent() -> None:
    stream = recording("d_mux_s1_d0.out")
    client = ChatClient()
    client.receive_data(stream)
    with pytest.raises(WrongProtocol) as error:
        list(client.events())
    assert (error.value.expected, error.value.seen) == ("chat", "serve")
    assert error.value.evidence.startswith("HWINFO 2 ")
    with pytest.raises(LocalProtocolError):
        client.encode_prompt(b"x", max_tokens=1)


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize(
    ("stream", "message", "offset"),
    [
        (b"banner\n\x01\x01READY\x01\x01\nSTAT 0 0.00\n", "not a STAT line", 17),
        (b"\x01\x01READY\x01\x01\nHWINFO 2\n", "not a STAT line", 10),
        (READY_STAT + b"tiers 0 0 0\n", "not a line of the protocol", 31),
        (READY_STAT + b"\n", "not a line of the protocol", 31),
    ],
)
def test_a_broken_ready_block(
    make: Callable[[], ChatClient], stream: bytes, message: str, offset: int
) -> None:
    outcome = read_pieces(make(), [stream])
    assert outcome.error is not None
    assert message in outcome.error[1]
    assert outcome.error[2] == offset


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize("stream", [b"", b"banner", b"banner\n", READY_STAT[:-1], READY_STAT])
def test_an_end_before_the_proof_is_truncated(make: Callable[[], ChatClient], stream: bytes) -> None:
    client = make()
    client.receive_data(stream)
    client.receive_eof()
    with pytest.raises(RemoteProtocolError, match="truncated"):
        list(client.events())


def test_lines_of_unknown_kind_before_the_proof_are_notes() -> None:
    outcome = read_pieces(ChatClient(), [READY_STAT + b"WEATHER fine\nTIERS 0 0 1 0.00 0.00\n"])
    assert outcome.events[0] == Note(kind="WEATHER", line="WEATHER fine")
    assert isinstance(outcome.events[1], Ready)


def test_values_that_cannot_be_read_do_not_hide_the_proof() -> None:
    outcome = read_pieces(MuxClient(), [READY_STAT + b"HWINFO many\n"])
    ready = outcome.events[0]
    assert (ready.protocol, ready.evidence, ready.hardware) == ("serve", "HWINFO many", None)


def test_banner_bytes_are_limited() -> None:
    limits = Limits(max_banner_bytes=20)
    inside = read_pieces(ChatClient(limits=limits), [b"123456789\n123456789\n"], eof=False)
    assert (len(inside.events), inside.error) == (2, None)
    beyond = read_pieces(ChatClient(limits=limits), [b"123456789\n1234567890\n"], eof=False)
    assert beyond.error is not None
    assert "no READY within 20 bytes" in beyond.error[1]


def test_notes_before_the_proof_are_limited() -> None:
    limits = Limits(max_ready_notes=2)
    inside = read_pieces(ChatClient(limits=limits), [READY_STAT + b"A\nB\nTIERS\n"], eof=False)
    assert isinstance(inside.events[-1], Ready)
    beyond = read_pieces(ChatClient(limits=limits), [READY_STAT + b"A\nB\nC\n"], eof=False)
    assert beyond.error is not None
    assert "neither TIERS nor HWINFO" in beyond.error[1]


def test_banner_bytes_that_are_not_utf8_are_replaced() -> None:
    assert read_pieces(ChatClient(), [b"\xff!\n"], eof=False).events == (Banner(line="\ufffd!"),)
