import ast
import io
import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire import (
    Accepted,
    BadFrame,
    BadRequest,
    Cancel,
    Closed,
    Data,
    Done,
    ExpertHits,
    ExpertMap,
    Hardware,
    Limits,
    LocalProtocolError,
    MuxClient,
    MuxServer,
    Note,
    Profile,
    Ready,
    Refused,
    RemoteProtocolError,
    Stat,
    Stop,
    Submit,
    Tiers,
    TurnProfile,
)
from engine_bindings.wire.handshake import EngineReader
from tests.engine_bindings.wire.recorded_streams import (
    MUX_NAMES,
    Outcome,
    bytewise,
    cut,
    read_pieces,
    read_recording,
    recording,
    send_mux,
)

READY_BLOCK = b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\nHWINFO 2 24.7 23.8 0 0.0 AMD EPYC|\n"
DONE_1 = b"DONE 1 STAT 1 10.00 0.0 0.01 3 0\n"
STAT = Stat(emitted_tokens=0, tokens_per_s=0.0, hit_percent=0.0, rss_gb=0.01)
LONG_STAT = Stat(
    emitted_tokens=1, tokens_per_s=10.0, hit_percent=0.0, rss_gb=0.01, prompt_tokens=3, length_limited=False
)
HARDWARE = Hardware(cores=2, ram_total_gb=24.7, ram_available_gb=23.8, cpu="AMD EPYC")
PROFILE = Profile(
    wall_s=0.1,
    prompt_tokens=3,
    completion_tokens=1,
    expert_disk_s=0.0,
    expert_wait_s=0.0,
    expert_matmul_s=0.0,
    attention_s=0.05,
    head_s=0.001,
    forwards=1,
)
BATCH = ("d_mux_s1_d0", "d_mux_s1_d1", "d_mux_s1_d3", "d_mux_s2_d3")


def ready_client(*request_ids: int, limits: Limits | None = None) -> MuxClient:
    client = MuxClient(limits=limits or Limits())
    client.receive_data(READY_BLOCK)
    assert isinstance(list(client.events())[-1], Ready)
    send_mux(client, request_ids)
    return client


def running_client(*request_ids: int, limits: Limits | None = None) -> MuxClient:
    client = ready_client(*request_ids, limits=limits)
    for request_id in request_ids:
        client.receive_data(b"ACCEPT %d 3\n" % request_id)
    assert len(list(client.events())) == len(request_ids)
    return client


def ready_server(stream: bytes = b"", *, slots: int = 1) -> MuxServer:
    server = MuxServer(slots=slots)
    server.encode_ready(
        STAT, hardware=HARDWARE, tiers=Tiers(), expert_map=ExpertMap(rows=1, columns=1, cells=b"\0")
    )
    server.receive_data(stream)
    return server


def read_commands(stream: bytes, *, slots: int = 1) -> list[Any]:
    server = ready_server(stream, slots=slots)
    server.receive_eof()
    return list(server.events())


def events_of(name: str) -> tuple[Any, ...]:
    return read_recording(name, [recording(f"{name}.out")]).events


def naive_frames(name: str) -> list[tuple[int, bytes]]:
    """DATA frames of a recording as a plain readline and read loop sees them."""
    stream = io.BytesIO(recording(f"{name}.out"))
    frames = []
    while line := stream.readline():
        if line.startswith(b"DATA "):
            _, request_id, size = line.split()
            frames.append((int(request_id), stream.read(int(size))))
            assert stream.read(1) == b"\n"
    return frames


# The recordings.


@pytest.mark.parametrize("name", MUX_NAMES)
def test_recorded_frames_are_those_of_a_plain_loop(name: str) -> None:
    assert [event for event in events_of(name) if isinstance(event, Data)] == naive_frames(name)


@pytest.mark.parametrize("name", MUX_NAMES)
def test_each_recorded_request_has_as_many_frames_as_its_done_says(name: str) -> None:
    frames: dict[int, int] = defaultdict(int)
    for event in events_of(name):
        if isinstance(event, Data):
            frames[event.request_id] += 1
        elif isinstance(event, Done):
            assert frames[event.request_id] == event.stat.emitted_tokens


@pytest.mark.parametrize("name", BATCH)
def test_recorded_errors(name: str) -> None:
    refused = [
        (event.request_id, event.code, *event.arguments)
        for event in events_of(name)
        if isinstance(event, Refused)
    ]
    duplicate = [(9, "DUPLICATE_ID")] if name == "d_mux_s2_d3" else []
    assert refused == [
        (7, "CANCELLED"),
        (777, "SLOT_BUSY"),
        *duplicate,
        (4242, "NOT_FOUND"),
        (4243, "NOT_FOUND"),
        *[(0, "BAD_REQUEST")] * 3,
        (51, "BAD_REQUEST"),
        (0, "BAD_REQUEST"),
        (53, "EMPTY_PROMPT"),
        (99, "NOT_FOUND"),
        (99, "NOT_FOUND"),
        (0, "BAD_REQUEST"),
        (54, "BAD_REQUEST"),
        (0, "BAD_REQUEST"),
        (10, "CONTEXT_EXCEEDED", "511", "510"),
    ]


@pytest.mark.parametrize("name", BATCH)
def test_recorded_input(name: str) -> None:
    def brief(command: Any) -> tuple[object, ...]:
        size = (len(command.prompt), command.max_tokens) if isinstance(command, Submit) else ()
        return (type(command), getattr(command, "request_id", None), *size)

    slots = 2 if name == "d_mux_s2_d3" else 1
    duplicate = [(Submit, 9, 57, 4)] if slots == 2 else []
    assert [brief(command) for command in read_commands(recording(f"{name}.in"), slots=slots)] == [
        (Submit, 1, 65, 16),
        (Submit, 2, 129, 6),
        (Submit, 3, 184, 16),
        (Submit, 4, 307, 16),
        (Submit, 5, 307, 16),
        (Submit, 6, 71, 40),
        (Stop, 6),
        (Submit, 7, 71, 40),
        (Cancel, 7),
        (Submit, 8, 71, 40),
        (Submit, 9, 71, 40),
        (Submit, 777, 57, 4),
        *duplicate,
        (Stop, 4242),
        (Cancel, 4243),
        *[(BadRequest, 0)] * 3,
        (BadRequest, 51),
        (BadRequest, 0),
        (Submit, 53, 0, 4),
        (Stop, 99),
        (Cancel, 99),
        (BadRequest, 0),
        (BadRequest, 54),
        (BadRequest, 0),
        (Submit, 10, 3900, 4),
        (Submit, 11, 60, 30),
        (Closed, None),
    ]


def test_recorded_grammars() -> None:
    first, second, third, closed = read_commands(recording("d_mux_grammar_d3.in"))
    assert first.grammar == b'root ::= "{\\"name\\":\\"" [a-z]+ "\\",\\"size\\":" [0-9]+ "}"\n'
    assert second.grammar == b"root ::= ("
    assert third.grammar == b""
    assert first.prompt == second.prompt == third.prompt
    assert closed == Closed()


def test_recorded_bad_frame_ends_the_input() -> None:
    assert read_commands(recording("d_mux_badframe_s1_d1.in")) == [BadFrame(request_id=1), Closed()]
    assert events_of("d_mux_badframe_s1_d1")[-2:] == (Refused(request_id=1, code="BAD_FRAME"), Closed())


def test_recorded_chat_prompt_sent_to_serve_mode_is_two_bad_requests() -> None:
    commands = read_commands(recording("e_prompt_to_mux.in"))
    assert [type(command) for command in commands] == [BadRequest, BadRequest, Closed]
    assert [event.code for event in events_of("e_prompt_to_mux")[5:-1]] == ["BAD_REQUEST"] * 2


@pytest.mark.parametrize("name", MUX_NAMES)
def test_events_of_a_recording_encode_to_its_bytes(name: str) -> None:
    stream = recording(f"{name}.out")
    server = ready_server()
    written = b""
    for event in events_of(name):
        match event:
            case Ready(stat=stat, evidence=evidence):
                written += b"\x01\x01READY\x01\x01\n" + stat.to_line() + b"\n" + evidence.encode() + b"\n"
            case Note(kind=kind, line=line):
                parse = {"HWINFO": Hardware, "TIERS": Tiers, "EMAP": ExpertMap, "HITS": ExpertHits}[
                    kind
                ].parse
                written += parse(line.encode()).to_line() + b"\n"
            case Accepted(request_id=request_id, prompt_tokens=tokens):
                written += server.encode_accept(request_id, tokens)
            case Data(request_id=request_id, payload=payload):
                written += server.encode_data(request_id, payload)
            case TurnProfile(profile=profile):
                written += server.encode_profile(profile)
            case Done(request_id=request_id, stat=stat):
                written += server.encode_done(request_id, stat)
            case Refused(request_id=request_id, code=code, arguments=arguments):
                written += server.encode_error(request_id, code, *arguments)
    assert written == stream[stream.index(b"\x01\x01READY") :]


@pytest.mark.parametrize("name", BATCH)
def test_what_the_client_encodes_is_what_was_recorded(name: str) -> None:
    """Only the commands that a client may send; the recording also holds wrong ones on purpose."""
    stream = recording(f"{name}.in")
    client = ready_client()
    for command in read_commands(stream, slots=2):
        if isinstance(command, Submit) and command.request_id not in client.open_requests:
            frame = client.encode_submit(
                request_id=command.request_id,
                prompt=command.prompt,
                max_tokens=command.max_tokens,
                slot=command.slot,
                grammar=command.grammar,
            )
            assert frame in stream
    assert client.encode_stop(6) in stream
    assert client.encode_cancel(7) in stream


def test_recorded_grammar_frames_are_what_the_client_encodes() -> None:
    client = ready_client()
    frames = b"".join(
        client.encode_submit(
            request_id=submit.request_id, prompt=submit.prompt, max_tokens=40, grammar=submit.grammar
        )
        for submit in read_commands(recording("d_mux_grammar_d3.in"))[:3]
    )
    assert frames == recording("d_mux_grammar_d3.in")


@pytest.mark.parametrize("name", BATCH)
def test_both_streams_in_time_order(name: str) -> None:
    """Every request is known before its first frame, and STOP and CANCEL hit requests that are open."""
    client, server = MuxClient(), ready_server(slots=2)
    ended = []
    for entry in recording(f"{name}.mix").splitlines():
        stream, literal = re.match(rb" *[0-9.]+ (OUT|IN |ERR) (.*)", entry).groups()  # type: ignore[union-attr]
        data = ast.literal_eval(literal.decode())
        if stream == b"OUT":
            client.receive_data(data)
            ended += [event.request_id for event in client.events() if isinstance(event, Done)]
        elif stream == b"IN ":
            server.receive_data(data)
            for command in server.events():
                if isinstance(command, Submit) and command.request_id not in client.open_requests:
                    send_mux(client, [command.request_id])
                elif isinstance(command, Stop) and command.request_id == 6:
                    client.encode_stop(6)
                elif isinstance(command, Cancel) and command.request_id == 7:
                    client.encode_cancel(7)
    assert ended == [1, 2, 3, 4, 5, 6, 8, 9, 11]
    assert client.open_requests == ()


# Reading replies.


def test_one_turn() -> None:
    profile = PROFILE.to_line() + b"\n"
    stream = b"ACCEPT 1 3\nDATA 1 2\nhi\nHITS 1 1 01\n" + profile + DONE_1
    assert read_pieces(ready_client(1), [stream]).events == (
        Accepted(request_id=1, prompt_tokens=3),
        Data(request_id=1, payload=b"hi"),
        Note(kind="HITS", line="HITS 1 1 01"),
        TurnProfile(profile=PROFILE),
        Done(request_id=1, stat=LONG_STAT),
        Closed(),
    )


def test_frames_of_several_requests_interleave() -> None:
    client = running_client(1, 2)
    frames = b"DATA 1 1\na\nDATA 2 1\nb\nDATA 1 1\nc\nDATA 2 1\nd\n"
    outcome = read_pieces(client, [frames + DONE_1 + DONE_1.replace(b"DONE 1", b"DONE 2")])
    assert outcome.events[:4] == (Data(1, b"a"), Data(2, b"b"), Data(1, b"c"), Data(2, b"d"))
    assert client.open_requests == ()


@pytest.mark.parametrize(
    "payloads",
    [
        ["\u00b7".encode()[:1], "\u00b7".encode()[1:]],
        [b"", b"\n", b"\n\n", b"DATA 1 1\nx\n", b"\x01\x01END\x01\x01\n", b"\0"],
        [b"x" * 300, b"x" * 9],
    ],
)
def test_payloads_are_bytes_of_any_kind(payloads: list[bytes]) -> None:
    frames = b"".join(b"DATA 1 %d\n%b\n" % (len(payload), payload) for payload in payloads * 2)
    for pieces in ([frames + DONE_1], bytewise(frames + DONE_1)):
        outcome = read_pieces(running_client(1), pieces)
        assert [event.payload for event in outcome.events[:-2]] == payloads * 2


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2, 2**64 - 1]), st.binary(max_size=12)), max_size=30),
    cuts=st.lists(st.integers(0, 999)),
)
def test_the_client_reads_what_the_server_encodes(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    ids = (1, 2, 2**64 - 1)
    server = ready_server()
    stream = b"".join(server.encode_accept(request_id, 3) for request_id in ids)
    stream += b"".join(server.encode_data(request_id, payload) for request_id, payload in frames)
    stream += b"".join(server.encode_profile(PROFILE) + server.encode_done(each, LONG_STAT) for each in ids)
    outcome = read_pieces(ready_client(*ids), cut(stream, cuts))
    assert outcome.error is None
    assert list(outcome.events[3 : 3 + len(frames)]) == frames


def assert_error(outcome: Outcome, message: str, offset: int) -> None:
    assert outcome.error is not None
    assert message in outcome.error[1]
    assert outcome.error[2] == offset


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"DATA 2 1", "DATA for request 2, which is not open"),
        (b"DATA 3 1", "DATA for request 3, which is submitted"),
        (b"DATA 1 +1", "not a count"),
        (b"DATA 1 1_0", "not a count"),
        (b"DATA 1 -1", "not a count"),
        (b"DATA 1", "2 fields where 3"),
        (b"DATA 1 1 1", "4 fields where 3"),
        (b"DATA  1 1", "4 fields where 3"),
        (b"DATA 0 1", "request id 0"),
        (b"DATA 18446744073709551616 1", "request id"),
        (b"DATA 1 1048577", "at most 1048576"),
        (b"DATA 1 99999999999999999999999", "not a count"),
        (b"ACCEPT 1 3", "ACCEPT for request 1, which is running"),
        (b"ACCEPT 2 3", "not open"),
        (b"ACCEPT 3", "2 fields"),
        (b"DONE 3 STAT 1 10.00 0.0 0.01 3 0", "DONE for request 3, which is submitted"),
        (b"DONE 1 STAT 1 10.00", "not a STAT line"),
        (b"DONE 1", "2 fields"),
        (b"PROF 1 2", "not a PROF line"),
        (b"ERROR 1", "2 fields"),
        (b"ERROR x CANCELLED", "not a count"),
        (b"ERROR 1 cancelled", "needs a code"),
        (b"ERROR 1 ", "needs a code"),
        (b"", "not a line of the protocol"),
        (b"data 1 1", "not a line of the protocol"),
        (b"\xff\xfe", "not a line of the protocol"),
        (b"DATA\t1 1", "not a line of the protocol"),
    ],
)
def test_lines_that_the_protocol_does_not_allow(line: bytes, message: str) -> None:
    client = running_client(1)
    send_mux(client, [3])
    good = b"DATA 1 1\nx\n"
    start = len(READY_BLOCK) + len(b"ACCEPT 1 3\n") + len(good)
    outcome = read_pieces(client, [good + line + b"\nDATA 1 1\ny\n"])
    assert outcome.events == (Data(1, b"x"),)
    assert_error(outcome, message, start)
    assert outcome.error is not None
    assert outcome.error[3] == line


def test_a_payload_is_followed_by_a_newline() -> None:
    start = len(READY_BLOCK) + len(b"ACCEPT 1 3\n")
    for known in (b"", b"DATA 1 1\nx\n"):
        outcome = read_pieces(running_client(1), [known + b"DATA 1 1\nxy\n"])
        assert_error(outcome, "no newline after a DATA payload", start + len(known) + len(b"DATA 1 1\nx"))


def test_frames_behind_an_error_are_never_yielded() -> None:
    client = running_client(1)
    client.receive_data(b"DATA 1 1\nx\nbad line\nDATA 1 1\ny\n")
    with pytest.raises(RemoteProtocolError):
        list(client.events())
    client.receive_data(b"DATA 1 1\nz\n")
    events = client.events()
    with pytest.raises(RemoteProtocolError):
        next(events)


def test_a_header_that_is_cut_off_is_not_taken_for_a_shorter_one() -> None:
    frame = b"DATA 1 8\n12345678\n"
    client = running_client(1)
    client.receive_data(frame + b"DATA 1 80")
    assert list(client.events()) == [Data(1, b"12345678")]
    client.receive_data(b"\n" + b"x" * 80 + b"\n")
    assert list(client.events()) == [Data(1, b"x" * 80)]


def test_a_payload_in_many_pieces_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def count_steps(kind: type[Any]) -> None:
        step = kind._step
        monkeypatch.setattr(kind, "_step", lambda self: steps.append(kind) or step(self))

    count_steps(EngineReader)
    count_steps(MuxServer)
    read_pieces(running_client(1), [b"DATA 1 1000\n", *[b"x"] * 1000, b"\n"], eof=False)
    read_pieces(ready_server(), [b"SUBMIT 1 0 1000 4 0 1\n", *[b"x"] * 1000, b"\n"], eof=False)
    assert steps.count(MuxServer) < 10
    assert steps.count(EngineReader) < 20


def test_frames_after_the_end_of_their_request_are_an_error() -> None:
    for end in (DONE_1, b"ERROR 1 CANCELLED\n"):
        outcome = read_pieces(running_client(1), [b"DATA 1 1\nx\n" + end + b"DATA 1 1\nx\n"])
        assert len(outcome.events) == 2
        assert outcome.error is not None
        assert "not open" in outcome.error[1]


@pytest.mark.parametrize("code", ["SLOT_BUSY", "DUPLICATE_ID", "NOT_FOUND", "BAD_REQUEST"])
def test_a_remark_about_a_running_request_does_not_end_it(code: str) -> None:
    stream = b"ERROR 1 " + code.encode() + b"\nDATA 1 1\nx\n" + DONE_1
    outcome = read_pieces(running_client(1), [stream])
    assert [type(event) for event in outcome.events] == [Refused, Data, Done, Closed]


def test_an_unknown_error_code_is_passed_on_and_ends_the_request() -> None:
    client = running_client(1)
    outcome = read_pieces(client, [b"ERROR 1 OUT_OF_MEMORY 12 GB\n"])
    assert outcome.events[0] == Refused(request_id=1, code="OUT_OF_MEMORY", arguments=("12", "GB"))
    assert client.open_requests == ()


def test_line_and_payload_limits() -> None:
    limits = Limits(max_line_bytes=40, max_data_bytes=5)
    inside = read_pieces(
        running_client(1, limits=limits), [b"DATA 1 5\n12345\nNOTE " + b"x" * 35 + b"\n"], eof=False
    )
    assert (len(inside.events), inside.error) == (2, None)
    start = len(READY_BLOCK) + len(b"ACCEPT 1 3\n")
    for stream in (b"DATA 1 6\n123456\n", b"NOTE " + b"x" * 36):
        for pieces in ([stream], bytewise(stream)):
            beyond = read_pieces(running_client(1, limits=limits), pieces, eof=False)
            assert beyond.events == ()
            assert beyond.error is not None
            assert beyond.error[2] == start


@pytest.mark.parametrize("stream", [b"DATA", b"DATA 1 2\n", b"DATA 1 2\nhi", b"DATA 1 2\nhi\n", b"NOTE"])
def test_an_end_before_the_request_is_over_is_truncated(stream: bytes) -> None:
    client = running_client(1)
    client.receive_data(stream)
    client.receive_eof()
    with pytest.raises(RemoteProtocolError, match="truncated"):
        list(client.events())
    assert not client.ready


# Encoding commands.


def test_commands_are_encoded_as_recorded() -> None:
    client = ready_client()
    assert client.encode_submit(request_id=1, prompt=b"hi", max_tokens=4) == b"SUBMIT 1 0 2 4 0 1\nhi\n"
    sampled = client.encode_submit(
        request_id=2, prompt=b"", max_tokens=9, temperature=0.7, top_p=0.95, slot=3, grammar=b"root ::= x"
    )
    assert sampled == b"SUBMIT 2 3 0 9 0.7 0.95 10\nroot ::= x\n"
    assert client.encode_stop(1) == b"STOP 1\n"
    assert client.encode_cancel(2) == b"CANCEL 2\n"
    assert client.open_requests == (1, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": 0},
        {"request_id": 2**64},
        {"request_id": 5},
        {"slot": -1},
        {"max_tokens": 0},
        {"temperature": 2.5},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"prompt": b"a\0"},
        {"prompt": b"xxx"},
        {"grammar": b"xxxx"},
    ],
)
def test_requests_that_the_engine_would_reject_are_refused(changes: dict[str, Any]) -> None:
    client = ready_client(5, limits=Limits(max_payload_bytes=2, max_grammar_bytes=3))
    arguments: dict[str, Any] = {"request_id": 1, "prompt": b"xx", "max_tokens": 1, "grammar": b"xxx"}
    with pytest.raises(LocalProtocolError):
        client.encode_submit(**(arguments | changes))
    assert client.open_requests == (5,)
    assert client.encode_submit(**arguments)


def test_only_open_requests_can_be_stopped_or_cancelled() -> None:
    client = running_client(1)
    client.receive_data(DONE_1)
    list(client.events())
    for encode in (client.encode_stop, client.encode_cancel):
        with pytest.raises(LocalProtocolError, match="CONTROL for request 1, which is not open"):
            encode(1)


# Reading commands.


@given(
    prompt=st.binary(max_size=40).filter(lambda data: b"\0" not in data),
    grammar=st.binary(max_size=40),
    request_id=st.integers(1, 2**64 - 1),
    slot=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    cuts=st.lists(st.integers(0, 199)),
)
def test_the_server_reads_what_the_client_encodes(
    prompt: bytes, grammar: bytes, request_id: int, slot: int, temperature: float, cuts: list[int]
) -> None:
    client = ready_client()
    stream = client.encode_submit(
        request_id=request_id,
        prompt=prompt,
        grammar=grammar,
        slot=slot,
        max_tokens=7,
        temperature=temperature,
        top_p=0.9,
    )
    stream += client.encode_stop(request_id) + client.encode_cancel(request_id)
    assert read_pieces(ready_server(slots=4), cut(stream, cuts)).events == (
        Submit(
            request_id=request_id,
            slot=slot,
            prompt=prompt,
            grammar=grammar,
            max_tokens=7,
            temperature=temperature,
            top_p=0.9,
        ),
        Stop(request_id=request_id),
        Cancel(request_id=request_id),
        Closed(),
    )


@pytest.mark.parametrize(
    "line",
    [
        b"HELLO",
        b"",
        b"\x02RESET",
        b"SUBMIT 0 0 3 4 0 1",
        b"SUBMIT 1 -1 3 4 0 1",
        b"SUBMIT 1 0 16777217 4 0 1",
        b"SUBMIT 1 0 3 0 0 1",
        b"SUBMIT 1 0 3 4 3 1",
        b"SUBMIT 1 0 3 4 nan 1",
        b"SUBMIT 1 0 3 4 0 0",
        b"SUBMIT 1 0 3 4 0 1 1048577",
        b"SUBMIT 1 0 3 4 0 1 0 9",
        b"SUBMIT 1 0 3 4 0",
        b"SUBMIT 18446744073709551616 0 3 4 0 1",
        b"STOP x",
        b"STOP 0",
        b"STOP 1 2",
        b"CANCEL ",
        b"CANCEL",
    ],
)
def test_a_line_that_cannot_be_read_has_id_0_and_leaves_its_payload(line: bytes) -> None:
    commands = read_commands(line + b"\nSTOP 5\n")
    assert [type(command) for command in commands] == [BadRequest, Stop, Closed]
    assert commands[0].request_id == 0
    assert commands[0].reason


def test_a_request_that_was_read_but_cannot_run_keeps_its_id_and_its_payload_is_gone() -> None:
    for stream in (b"SUBMIT 5 1 3 4 0 1\nabc\n", b"SUBMIT 5 0 3 4 0 1\na\0c\n"):
        commands = read_commands(stream + b"STOP 6\n", slots=1)
        assert [command.request_id for command in commands[:2]] == [5, 6]
        assert isinstance(commands[0], BadRequest)


def test_limits_of_payload_and_grammar_are_inclusive() -> None:
    server = MuxServer(limits=Limits(max_payload_bytes=3, max_grammar_bytes=2))
    server.receive_data(b"SUBMIT 1 0 3 4 0 1 2\nabcde\nSUBMIT 1 0 4 4 0 1\nSUBMIT 1 0 3 4 0 1 3\n")
    assert [type(command) for command in server.events()] == [Submit, BadRequest, BadRequest]


def test_the_end_of_input_ends_a_line_but_not_a_payload() -> None:
    assert read_commands(b"STOP 1") == [Stop(request_id=1), Closed()]
    assert read_commands(b"SUBMIT 1 0 3 4 0 1\nabc") == [Closed()]
    assert read_commands(b"SUBMIT 1 0 3 4 0 1") == [Closed()]


def test_nothing_is_read_after_a_bad_frame() -> None:
    server = ready_server(b"SUBMIT 1 0 3 4 0 1\nabcd\nSTOP 1\n")
    assert list(server.events()) == [BadFrame(request_id=1), Closed()]
    server.receive_data(b"STOP 1\n")
    assert list(server.events()) == []


# Encoding replies.


def test_the_ready_block_is_encoded_as_recorded() -> None:
    stream = recording("e_prompt_to_mux.out")
    block = MuxServer().encode_ready(
        STAT,
        hardware=Hardware(cores=2, ram_total_gb=24.7, ram_available_gb=23.7, cpu="AMD EPYC"),
        tiers=Tiers(disk_experts=32),
        expert_map=ExpertMap(rows=4, columns=8, cells=bytes(32)),
    )
    assert block == stream[stream.index(b"\x01\x01READY") : stream.index(b"ERROR")]


def test_the_server_holds_requests_to_the_table() -> None:
    server = ready_server()
    with pytest.raises(LocalProtocolError):
        server.encode_data(1, b"x")
    server.encode_accept(1, 3)
    with pytest.raises(LocalProtocolError):
        server.encode_accept(1, 3)
    server.encode_error(1, "DUPLICATE_ID")
    assert server.encode_data(1, b"x") == b"DATA 1 1\nx\n"
    assert server.encode_done(1, LONG_STAT) == DONE_1
    with pytest.raises(LocalProtocolError):
        server.encode_done(1, LONG_STAT)
    server.encode_accept(1, 3)
    assert server.encode_error(1, "CANCELLED") == b"ERROR 1 CANCELLED\n"
    with pytest.raises(LocalProtocolError):
        server.encode_data(1, b"x")
    assert server.encode_error(9, "CONTEXT_EXCEEDED", 511, 510) == b"ERROR 9 CONTEXT_EXCEEDED 511 510\n"


def test_the_server_writes_nothing_before_ready() -> None:
    server = MuxServer()
    with pytest.raises(LocalProtocolError):
        server.encode_accept(1, 3)
    with pytest.raises(LocalProtocolError):
        server.encode_error(0, "BAD_REQUEST")
