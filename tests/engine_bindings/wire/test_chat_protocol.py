import ast
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine_bindings.wire import (
    BadPrompt,
    ChatClient,
    ChatServer,
    Closed,
    Limits,
    Line,
    LocalProtocolError,
    More,
    Prompt,
    Ready,
    RemoteProtocolError,
    Reset,
    Stat,
    Text,
    Tiers,
    TurnEnd,
)
from tests.engine_bindings.wire.recorded_streams import (
    CHAT_REPLIES,
    Outcome,
    cut,
    read_pieces,
    read_recording,
    recording,
    send_chat,
)

READY_BLOCK = b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\nTIERS 0 0 32 0.00 0.00\n"
END = b"\x01\x01END\x01\x01\n"
SHORT = b"STAT 0 0.00 0.0 0.01\n"
SHORT_STAT = Stat(emitted_tokens=0, tokens_per_s=0.0, hit_percent=0.0, rss_gb=0.01)


def ready_client(replies: str = "", *, limits: Limits | None = None) -> ChatClient:
    client = ChatClient(limits=limits or Limits())
    client.receive_data(READY_BLOCK)
    assert isinstance(list(client.events())[-1], Ready)
    send_chat(client, replies)
    return client


def ready_server(stream: bytes = b"", *, slots: int = 1) -> ChatServer:
    server = ChatServer(slots=slots)
    server.encode_ready(SHORT_STAT, Tiers(disk_experts=32))
    server.receive_data(stream)
    return server


def read_commands(stream: bytes, *, slots: int = 1) -> list[Any]:
    server = ready_server(stream, slots=slots)
    server.receive_eof()
    return list(server.events())


def stat(
    emitted: int, rate: float, hit: float, prompt: int | None = None, limited: bool | None = None
) -> Stat:
    return Stat(
        emitted_tokens=emitted,
        tokens_per_s=rate,
        hit_percent=hit,
        rss_gb=0.01,
        prompt_tokens=prompt,
        length_limited=limited,
    )


# The recordings.


def test_recorded_interactive_lines() -> None:
    outcome = read_recording("c_chat_lines_d1", [recording("c_chat_lines_d1.out")])
    assert outcome.events[3:] == (
        Text(data=b"3 4 5 6 7 8 "),
        TurnEnd(stat=stat(12, 45.59, 73.0, 14, True), newline=True),
        Text(data=b"9 10."),
        TurnEnd(stat=stat(4, 56.98, 100.0), newline=True),
        Text(data=b"r-i-v-e-r."),
        TurnEnd(stat=stat(9, 105.46, 98.9, 8, False), newline=True),
        TurnEnd(stat=stat(0, 0.0, 0.0), newline=False),
        TurnEnd(stat=stat(0, 0.0, 0.0), newline=False),
        TurnEnd(stat=stat(0, 0.0, 0.0), newline=False),
        Text(data=b"r-i-v-e-r."),
        TurnEnd(stat=stat(9, 439.18, 100.0, 10, False), newline=True),
        Closed(),
    )


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_recorded_prompts(depth: int) -> None:
    outcome = read_recording(f"c_chat_api_d{depth}", [recording(f"c_chat_api_d{depth}.out")])
    texts = [event.data for event in outcome.events if isinstance(event, Text)]
    listing = b"1. cat\n2. dog\n3. bird"
    last = b"bird to 4 5 6 7 8 9 10 11"
    assert texts == [b"3 4 5 6 7 8 9 10.", b"r-i-v-e", b"3+4=17", listing, listing, last]
    ends = [event for event in outcome.events if isinstance(event, TurnEnd)]
    assert [end.newline for end in ends] == [False] * 6 + [True]
    counts = [(end.stat.emitted_tokens, end.stat.prompt_tokens, end.stat.length_limited) for end in ends]
    assert counts == [
        (16, 14, True),
        (6, 38, True),
        (6, 56, False),
        (11, 73, False),
        (11, 73, False),
        (0, 0, False),
        (19, 7, False),
    ]


def test_a_serve_header_sent_to_chat_mode_is_answered_twice() -> None:
    name = "e_submit_to_chat_d0"
    ends = [
        event
        for event in read_recording(name, [recording(f"{name}.out")]).events
        if hasattr(event, "newline")
    ]
    assert [end.stat.prompt_tokens for end in ends] == [25, 18]
    lines = read_commands(recording(f"{name}.in"))
    assert [type(line) for line in lines] == [Line, Line, Closed]
    assert lines[0].text == b"SUBMIT 1 0 65 16 0 1"


@pytest.mark.parametrize("name", CHAT_REPLIES)
def test_events_of_a_recording_encode_to_its_bytes(name: str) -> None:
    stream = recording(f"{name}.out")
    server = ready_server(recording(f"{name}.in"))
    list(server.events())
    written = b""
    for event in read_recording(name, [stream]).events:
        if isinstance(event, Ready) and event.tiers is not None:
            written += ChatServer().encode_ready(event.stat, event.tiers)
        elif isinstance(event, Text):
            written += server.encode_text(event.data)
        elif isinstance(event, TurnEnd):
            written += server.encode_turn_end(event.stat, newline=event.newline)
    assert written == stream[stream.index(b"\x01\x01READY") :]


def test_recorded_input_of_interactive_lines() -> None:
    assert read_commands(recording("c_chat_lines_d1.in")) == [
        Line(text=b"Count from 3 to 9"),
        More(),
        Line(text=b"Spell river"),
        Reset(),
        More(),
        Line(text=b""),
        Line(text=b"Spell river"),
        Closed(),
    ]


def test_recorded_input_of_prompts() -> None:
    commands = read_commands(recording("c_chat_api_d3.in"))
    prompts = commands[:5]
    assert [len(prompt.payload) for prompt in prompts] == [65, 129, 184, 245, 245]
    assert [prompt.max_tokens for prompt in prompts] == [16, 6, 16, 16, 16]
    assert {(prompt.temperature, prompt.top_p, prompt.slot) for prompt in prompts} == {(0.0, 1.0, 0)}
    assert isinstance(commands[5], BadPrompt)
    assert "max_tokens 0" in commands[5].reason
    assert commands[6:] == [Line(text=b"hello"), Closed()]


@pytest.mark.parametrize("name", ["c_chat_lines_d1", "c_chat_api_d0"])
def test_what_the_client_encodes_is_what_was_recorded(name: str) -> None:
    client = ready_client()
    written = b""
    for command in read_commands(recording(f"{name}.in")):
        match command:
            case Line(text=text):
                written += client.encode_line(text)
            case Prompt(payload=payload, max_tokens=most):
                written += client.encode_prompt(payload, max_tokens=most)
            case More():
                written += client.encode_more()
            case Reset():
                written += client.encode_reset()
            case BadPrompt(line=line):
                written += line + b"\n"
    assert written == recording(f"{name}.in")


@pytest.mark.parametrize("name", ["c_chat_lines_d1", "c_chat_api_d0", "c_chat_api_d1", "c_chat_api_d3"])
def test_both_streams_in_time_order_leave_nothing_outstanding_at_each_command(name: str) -> None:
    client = ChatClient()
    server = ready_server()
    kinds = {Line: "L", More: "M", Prompt: "P", BadPrompt: "P", Reset: "R"}
    ends = 0
    for entry in recording(f"{name}.mix").splitlines():
        stream, literal = re.match(rb" *[0-9.]+ (OUT|IN |ERR) (.*)", entry).groups()  # type: ignore[union-attr]
        data = ast.literal_eval(literal.decode())
        if stream == b"OUT":
            client.receive_data(data)
            ends += sum(isinstance(event, TurnEnd) for event in client.events())
        elif stream == b"IN ":
            assert client.outstanding_replies == 0
            server.receive_data(data)
            for command in server.events():
                send_chat(client, "E" if command == Line(text=b"") else kinds[type(command)])  # type: ignore[index]
    assert (client.outstanding_replies, ends) == (0, len(CHAT_REPLIES[name]))


# Reading replies.


def test_text_is_held_back_only_while_it_could_become_the_sentinel() -> None:
    client = ready_client("P")

    def feed(data: bytes) -> list[Any]:
        client.receive_data(data)
        return list(client.events())

    assert feed(b"ab") == [Text(data=b"ab")]
    assert feed(b"\n") == [Text(data=b"\n")]
    assert feed(b"\x01\x01EN") == []
    assert feed(b"!") == [Text(data=b"\x01\x01EN!")]
    assert feed(b"\x01\x01\x01") == [Text(data=b"\x01")]
    assert feed(b"END\x01\x01\n") == []
    assert feed(SHORT) == [TurnEnd(stat=SHORT_STAT, newline=False)]


@pytest.mark.parametrize("reply", ["L", "M"])
def test_a_newline_is_held_back_where_the_engine_writes_one_of_its_own(reply: str) -> None:
    client = ready_client(reply)
    client.receive_data(b"a\n")
    assert list(client.events()) == [Text(data=b"a")]
    client.receive_data(b"\n")
    assert list(client.events()) == [Text(data=b"\n")]
    client.receive_data(END + SHORT)
    assert list(client.events()) == [TurnEnd(stat=SHORT_STAT, newline=True)]


@pytest.mark.parametrize("reply", ["P", "R", "E"])
def test_a_newline_before_the_end_is_text_where_the_engine_writes_none(reply: str) -> None:
    outcome = read_pieces(ready_client(reply), [b"\n" + END + SHORT])
    assert outcome.events == (Text(data=b"\n"), TurnEnd(stat=SHORT_STAT, newline=False), Closed())


CONFUSABLE = st.lists(
    st.sampled_from([b"\x01", b"\n", b"\x01\x01EN", b"END", b"STAT 0", b"\x01\x01END\x01\x01", b"\xc3", b"x"])
).map(b"".join)


@given(text=CONFUSABLE, reply=st.sampled_from("LMP"), cuts=st.lists(st.integers(0, 99)))
def test_text_comes_out_exactly(text: bytes, reply: str, cuts: list[int]) -> None:
    newline = reply in "LM"
    body = text + (b"\n" if newline else b"")
    assume((body + END).find(END) == len(body))
    outcome = read_pieces(ready_client(reply), cut(body + END + SHORT, cuts))
    expected = (Text(data=text),) if text else ()
    assert outcome.events == (*expected, TurnEnd(stat=SHORT_STAT, newline=newline), Closed())


def test_replies_come_in_the_order_of_the_frames() -> None:
    client = ready_client("LPR")
    assert client.outstanding_replies == 3
    outcome = read_pieces(client, [b"a\n" + END + SHORT + b"b\n" + END + SHORT + END + SHORT])
    texts = [event.data for event in outcome.events if isinstance(event, Text)]
    assert texts == [b"a", b"b\n"]
    assert client.outstanding_replies == 0


def assert_error(outcome: Outcome, message: str, offset: int) -> None:
    assert outcome.error is not None
    assert message in outcome.error[1]
    assert outcome.error[2] == offset


def test_text_with_nothing_outstanding_is_an_error() -> None:
    start = len(READY_BLOCK)
    assert_error(read_pieces(ready_client(), [b"hello"]), "no reply is outstanding", start)
    reply = b"a" + END + SHORT
    outcome = read_pieces(ready_client("P"), [reply + b"b"])
    assert len(outcome.events) == 2
    assert_error(outcome, "no reply is outstanding", start + len(reply))


def test_the_sentinel_is_followed_by_stat() -> None:
    outcome = read_pieces(ready_client("P"), [b"a" + END + b"more text\n"])
    assert outcome.events == (Text(data=b"a"),)
    assert_error(outcome, "not a STAT line", len(READY_BLOCK) + 1 + len(END))


def test_a_stat_line_without_an_end_is_limited() -> None:
    client = ready_client("P", limits=Limits(max_line_bytes=30))
    outcome = read_pieces(client, [END + b"STAT " + b"0" * 26])
    assert_error(outcome, "line longer than 30 bytes", len(READY_BLOCK) + len(END))


@pytest.mark.parametrize("stream", [b"", b"a", b"a\x01\x01EN", b"a" + END, b"a" + END + SHORT[:-1]])
def test_an_end_before_the_reply_is_complete_is_truncated(stream: bytes) -> None:
    client = ready_client("P")
    client.receive_data(stream)
    client.receive_eof()
    with pytest.raises(RemoteProtocolError, match="truncated"):
        list(client.events())
    assert not client.ready


# Encoding commands.


def test_commands_are_encoded_as_recorded() -> None:
    client = ready_client()
    assert client.encode_prompt(b"hi", max_tokens=16) == b"\x02PROMPT 2 16 0 1\nhi\n"
    sampled = client.encode_prompt(b"", max_tokens=1, temperature=0.7, top_p=0.95, slot=3)
    assert sampled == b"\x02PROMPT 0 1 0.7 0.95 3\n\n"
    assert client.encode_reset() == b"\x02RESET\n"
    assert client.encode_more() == b"\x02MORE\n"
    assert client.encode_line(b"") == b"\n"


@pytest.mark.parametrize("text", [b"a\nb", b"a\0b", b"\x02RESET", b"x" * 65_001])
def test_lines_that_would_be_read_as_something_else_are_refused(text: bytes) -> None:
    client = ready_client()
    with pytest.raises(LocalProtocolError):
        client.encode_line(text)
    assert client.outstanding_replies == 0


def test_the_longest_line_is_allowed() -> None:
    assert len(ready_client().encode_line(b"x" * 65_000)) == 65_001


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 0},
        {"max_tokens": 2**31},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"slot": -1},
        {"payload": b"a\0"},
        {"payload": b"xxx"},
    ],
)
def test_prompts_that_the_engine_would_reject_are_refused(changes: dict[str, Any]) -> None:
    client = ready_client(limits=Limits(max_payload_bytes=2))
    arguments = {"max_tokens": 1} | changes
    with pytest.raises(LocalProtocolError):
        client.encode_prompt(arguments.pop("payload", b"xx"), **arguments)
    assert client.outstanding_replies == 0
    assert client.encode_prompt(b"xx", max_tokens=1)


# Reading commands.


@given(
    payload=st.binary(max_size=50).filter(lambda data: b"\0" not in data),
    most=st.integers(1, 2**31 - 1),
    temperature=st.sampled_from([0.0, 0.7, 1e-3, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 1e-6]),
    slot=st.integers(0, 3),
    cuts=st.lists(st.integers(0, 99)),
)
def test_the_server_reads_what_the_client_encodes(
    payload: bytes, most: int, temperature: float, top_p: float, slot: int, cuts: list[int]
) -> None:
    sampling = {"max_tokens": most, "temperature": temperature, "top_p": top_p}
    stream = ready_client().encode_prompt(payload, **sampling, slot=slot) + b"next\n"  # type: ignore[arg-type]
    outcome = read_pieces(ready_server(slots=4), cut(stream, cuts))
    assert outcome.events == (
        Prompt(payload=payload, slot=slot, **sampling),  # type: ignore[arg-type]
        Line(text=b"next"),
        Closed(),
    )


@pytest.mark.parametrize(
    "header",
    [
        b"\x02PROMPT 1 0 0 1",
        b"\x02PROMPT 1 4 3 1",
        b"\x02PROMPT 1 4 nan 1",
        b"\x02PROMPT 1 4 0 0",
        b"\x02PROMPT 1 4 0 1 1",
        b"\x02PROMPT 1 4 0 1 -1",
        b"\x02PROMPT 16777217 4 0 1",
        b"\x02PROMPT 1 4 0",
        b"\x02PROMPT ",
        b"\x02PROMPT x",
    ],
)
def test_a_bad_header_leaves_its_payload_to_be_read_as_a_line(header: bytes) -> None:
    commands = read_commands(header + b"\nx\n")
    assert [type(command) for command in commands] == [BadPrompt, Line, Closed]
    assert commands[0].line == header
    assert commands[0].reason


def test_a_nul_byte_rejects_the_prompt_with_its_payload() -> None:
    commands = read_commands(b"\x02PROMPT 3 4 0 1\na\0b\nnext\n")
    assert [type(command) for command in commands] == [BadPrompt, Line, Closed]
    assert commands[1] == Line(text=b"next")


def test_a_missing_newline_after_a_payload_is_forgiven() -> None:
    commands = read_commands(b"\x02PROMPT 2 4 0 1\nabcd\n")
    assert (commands[0].payload, commands[1]) == (b"ab", Line(text=b"cd"))


def test_text_after_the_header_is_ignored() -> None:
    assert read_commands(b"\x02PROMPT 1 4 0 1 please\nx\n")[0].payload == b"x"


@pytest.mark.parametrize(
    "text", [b"\x02", b"\x02RESET ", b"\x02RESETS", b"\x02PROMPT", b"SUBMIT 1 0 3 4 0 1", b"a\r"]
)
def test_everything_else_is_chat(text: bytes) -> None:
    assert read_commands(text + b"\n") == [Line(text=text), Closed()]


def test_the_end_of_input_ends_a_line_and_completes_a_payload() -> None:
    assert read_commands(b"hello") == [Line(text=b"hello"), Closed()]
    assert read_commands(b"\x02PROMPT 2 4 0 1\nab")[0].payload == b"ab"
    assert read_commands(b"\x02PROMPT 3 4 0 1\nab") == [Closed()]


def test_a_command_line_is_limited() -> None:
    inside = read_pieces(ChatServer(limits=Limits(max_line_bytes=5)), [b"12345\n"])
    assert inside.events == (Line(text=b"12345"), Closed())
    beyond = read_pieces(ChatServer(limits=Limits(max_line_bytes=5)), [b"123456"])
    assert_error(beyond, "line longer than 5 bytes", 0)


# Encoding replies.


def test_the_server_replies_only_to_commands() -> None:
    server = ChatServer()
    with pytest.raises(LocalProtocolError):
        server.encode_turn_end(SHORT_STAT, newline=False)
    assert server.encode_ready(SHORT_STAT, Tiers(disk_experts=32)) == READY_BLOCK
    with pytest.raises(LocalProtocolError):
        server.encode_ready(SHORT_STAT, Tiers())
    with pytest.raises(LocalProtocolError):
        server.encode_text(b"x")
    server.receive_data(b"hello\n")
    list(server.events())
    assert server.encode_text(b"x") == b"x"
    assert server.encode_turn_end(SHORT_STAT, newline=True) == b"\n" + END + SHORT
    with pytest.raises(LocalProtocolError):
        server.encode_turn_end(SHORT_STAT, newline=False)
