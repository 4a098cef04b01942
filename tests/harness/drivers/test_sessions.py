"""Chat and serve sessions over a scripted transport: no process, and a clock that the script moves."""

import io
import re

import pytest

from engine_bindings.errors import (
    EngineDiedError,
    EngineGarbageError,
    EngineRefusedError,
    EngineStartError,
    EngineTimeoutError,
    WrongProtocolError,
)
from harness.drivers.base import TurnRequest
from harness.drivers.chat_session import ChatSession
from harness.drivers.scripted import Err, Out, ScriptedTransport
from harness.drivers.serve_session import ServeSession
from harness.drivers.stderr_log import StderrLog
from harness.grammar import Grammar
from harness.plan import Timeouts

READY = b"== engine ==\nloaded\n\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\n"
CHAT_READY = Out(data=READY + b"TIERS 0 0 8 0.00 0.00\n")
SERVE_READY = Out(data=READY + b"HWINFO 2 24.7 23.8 0 0.0 cpu|\nTIERS 0 0 8 0.00 0.00\nEMAP 1 2 0000\n")
END = b"\x01\x01END\x01\x01\n"
API_LINE = Err(data=b"[API] KV slot 0 prefix 30/38 token, prefill 8\n", late=True)
SPEC_LINE = Err(data=b"[SPEC] turn: drafted 9, accepted 6, forwards 3\n")
FORWARDS_LINE = (
    b"[PROF] decode forwards: 3 | latency p50 1.0 ms | p90 1.0 ms | p99 1.0 ms | max 1.0 ms"
    b" | 3.00 tok/forward\n"
)
TIMEOUTS = Timeouts(
    start_timeout_s=1, first_output_timeout_s=2, progress_timeout_s=3, turn_timeout_s=4, exit_timeout_s=5
)


def request(
    *,
    line: bytes | None = None,
    stop: tuple[str, ...] = (),
    turn: int = 0,
    cancel_after_tokens: int | None = None,
    may_refuse: bool = False,
    logprobs: bool = False,
    slot: int = 0,
) -> TurnRequest:
    return TurnRequest(
        conversation="c",
        turn=turn,
        prompt=b"Hello",
        line=line,
        max_tokens=16,
        temperature=0.0,
        top_p=1.0,
        stop=stop,
        cancel_after_tokens=cancel_after_tokens,
        may_refuse=may_refuse,
        logprobs=logprobs,
        slot=slot,
    )


def chat(
    *steps: Out | Err, exit_status: int | None = 0, reported: tuple[str, ...] = ()
) -> tuple[ChatSession, ScriptedTransport]:
    log = StderrLog(io.BytesIO())
    transport = ScriptedTransport(log, steps, exit_status=exit_status)
    return ChatSession(transport, log, TIMEOUTS, reported=reported), transport


def serve(
    *steps: Out | Err,
    exit_status: int | None = 0,
    grammar: Grammar | None = None,
    reported: tuple[str, ...] = (),
) -> tuple[ServeSession, ScriptedTransport]:
    log = StderrLog(io.BytesIO())
    transport = ScriptedTransport(log, steps, exit_status=exit_status)
    return ServeSession(transport, log, TIMEOUTS, grammar=grammar, reported=reported), transport


def test_chat_turn_is_recorded_with_its_counts_and_times() -> None:
    session, transport = chat(
        CHAT_READY,
        API_LINE,
        Out(data=b"one ", at_ns=100),
        SPEC_LINE,
        Out(data=b"two" + END + b"STAT 9 50.00 0.0 0.01 38 1\n", at_ns=250),
        Err(data=FORWARDS_LINE, late=True),
    )

    start = session.start()
    record = session.run_turn(request())

    assert start.protocol == "chat"
    assert start.banner == ("== engine ==", "loaded")
    assert transport.sent == b"\x02PROMPT 5 16 0 1\nHello\n"
    assert record.text == b"one two"
    assert [(d.at_ns, d.size_bytes, d.tokens) for d in record.deliveries] == [(100, 4, None), (250, 3, None)]
    assert (record.emitted_tokens, record.prompt_tokens, record.finish) == (9, 38, "length")
    assert (record.cached_tokens, record.prefill_tokens) == (30, 8)
    assert (record.forwards, record.drafted_tokens, record.accepted_tokens) == (3, 9, 6)
    assert (record.sent_ns, record.accepted_ns, record.done_ns) == (0, None, 250)
    assert record.token_lengths is None


def test_chat_turn_names_its_context_unless_it_is_the_first() -> None:
    turn = Out(data=b"x" + END + b"STAT 1 50.00 0.0 0.01 38 1\n")
    session, transport = chat(CHAT_READY, turn, turn)

    session.start()
    for slot in (0, 2):
        session.run_turn(request(slot=slot))

    assert transport.sent == b"\x02PROMPT 5 16 0 1\nHello\n\x02PROMPT 5 16 0 1 2\nHello\n"


def test_serve_turn_is_recorded_token_by_token() -> None:
    session, transport = serve(
        SERVE_READY,
        Out(data=b"ACCEPT 1 38\n", at_ns=10),
        API_LINE,
        Out(data=b"DATA 1 4\none \nDATA 1 2\ntw\nDATA", at_ns=100),
        Out(data=b" 1 1\no\n", at_ns=200),
        SPEC_LINE,
        Out(data=b"PROF 0.1 38 3 0.0 0.0 0.0 0.0 0.0 2\nDONE 1 STAT 3 50.00 0.0 0.01 38 0\n", at_ns=210),
    )

    session.start()
    record = session.run_turn(request())

    assert transport.sent == b"SUBMIT 1 0 5 16 0 1\nHello\n"
    assert record.text == b"one two"
    assert record.token_lengths == (4, 2, 1)
    assert [(d.at_ns, d.size_bytes, d.tokens) for d in record.deliveries] == [(100, 6, 2), (200, 1, 1)]
    assert (record.accepted_ns, record.done_ns, record.forwards, record.finish) == (10, 210, 2, "stop")


@pytest.mark.parametrize(
    ("binds", "options"), [(True, b"OPTIONS 1 constrain=1 constrain_after=think\n"), (False, b"")]
)
def test_served_request_carries_the_grammar_and_binds_it_by_the_extension(
    binds: bool, options: bytes
) -> None:
    done = Out(data=b"ACCEPT 1 38\nDONE 1 STAT 0 50.00 0.0 0.01 38 0\n", at_ns=10)
    grammar = Grammar(kind="gbnf", text='root ::= "é"', binds=binds)
    session, transport = serve(SERVE_READY, done, grammar=grammar)

    session.start()
    session.run_turn(request())

    assert transport.sent == options + 'SUBMIT 1 0 5 16 0 1 13\nHelloroot ::= "é"\n'.encode()


DONE = b"DONE %d STAT 2 50.00 0.0 0.01 38 0\n"


def test_logprobs_are_asked_for_by_the_extension_that_a_probe_has_shown() -> None:
    first = b"ACCEPT 2 38\nTOKEN 2 7 p -0.25\nDATA 2 1\na\nTOKEN 2 8 d -0.5"
    session, transport = serve(
        SERVE_READY,
        Out(data=b"ERROR 1 BAD_OPTION probe\n"),
        Out(data=first, at_ns=10),
        Out(data=b" 9:-1.5\nDATA 2 1\nb\n" + DONE % 2, at_ns=20),
        Out(data=b"ACCEPT 3 38\nDATA 3 1\na\nDATA 3 1\nb\n" + DONE % 3, at_ns=30),
    )

    session.start()
    asked, plain = session.run_turn(request(logprobs=True)), session.run_turn(request())

    assert transport.sent == (
        b"OPTIONS 1 probe=1\nOPTIONS 2 detail=1\nSUBMIT 2 0 5 16 0 1\nHello\nSUBMIT 3 0 5 16 0 1\nHello\n"
    )
    assert (asked.logprobs, plain.logprobs) == ((-0.25, -0.5), None)
    assert asked.text == plain.text == b"ab"


def test_engine_without_the_extension_is_asked_once_and_gives_no_logprobs() -> None:
    turn = b"ACCEPT %d 38\nDATA %d 1\na\nDATA %d 1\nb\n"
    session, transport = serve(
        SERVE_READY,
        Out(data=b"ERROR 0 BAD_REQUEST\n"),
        Out(data=turn % (2, 2, 2) + DONE % 2),
        Out(data=turn % (3, 3, 3) + DONE % 3),
    )

    session.start()
    records = [session.run_turn(request(logprobs=True)) for _ in range(2)]

    assert [record.logprobs for record in records] == [None, None]
    assert transport.sent.count(b"OPTIONS") == 1


@pytest.mark.parametrize("token", [b"TOKEN 2 7 p", b"TOKEN 2 7 p nan", b"TOKEN 2 7 p -inf"])
def test_token_line_that_cannot_be_right_ends_the_turn(token: bytes) -> None:
    session, _ = serve(
        SERVE_READY,
        Out(data=b"ERROR 1 BAD_OPTION probe\n"),
        Out(data=b"ACCEPT 2 38\n" + token + b"\nDATA 2 1\na\n" + DONE % 2),
    )

    session.start()
    with pytest.raises(EngineGarbageError, match="turn 1 of conversation 'c'"):
        session.run_turn(request(logprobs=True))


def test_saved_conversation_that_was_resumed_is_reported() -> None:
    resumed = b"[KV] resumed conversation from disk: 73 tokens in 0.0s (no re-prefill)\n"
    session, _ = chat(Err(data=resumed), CHAT_READY)

    assert session.start().kv_resumed_tokens == 73


def test_typed_line_loses_the_frame_newline_and_its_partial_prompt_count() -> None:
    session, transport = chat(CHAT_READY, Out(data=b"hi\n\n" + END + b"STAT 2 9.00 0.0 0.01 14 0\n"))

    session.start()
    record = session.run_turn(request(line=b"Say hi"))

    assert transport.sent == b"Say hi\n"
    assert record.entry == "line"
    assert record.prompt == b"Say hi"
    assert record.text == b"hi\n"
    assert record.prompt_tokens is None


def test_typed_context_is_reset_between_conversations() -> None:
    reply = Out(data=b"a\n" + END + b"STAT 1 9.00 0.0 0.01 14 0\n")
    session, transport = chat(CHAT_READY, reply, Out(data=END + b"STAT 0 0.00 0.0 0.01\n"), reply)

    session.start()
    session.begin_conversation()
    session.run_turn(request(line=b"first"))
    session.begin_conversation()
    record = session.run_turn(request(line=b"second"))

    assert transport.sent == b"first\n\x02RESET\nsecond\n"
    assert record.text == b"a"


def test_stop_string_over_two_deliveries_stops_a_served_turn() -> None:
    session, transport = serve(
        SERVE_READY,
        Out(data=b"ACCEPT 1 38\nDATA 1 5\none E\n"),
        Out(data=b"DATA 1 6\nND two\n"),
        Out(data=b"DATA 1 6\n three\nDONE 1 STAT 3 50.00 0.0 0.01 38 0\n"),
    )

    session.start()
    record = session.run_turn(request(stop=("END",)))

    assert transport.sent.endswith(b"STOP 1\n")
    assert transport.sent.count(b"STOP") == 1
    assert (record.text, record.finish, record.emitted_tokens) == (b"one ", "stop-string", 3)
    assert sum(record.token_lengths or ()) == 17


def test_stop_string_interrupts_a_chat_turn() -> None:
    session, transport = chat(
        CHAT_READY, Out(data=b"one EN"), Out(data=b"D two"), Out(data=END + b"STAT 4 9.00 0.0 0.01 5 0\n")
    )

    session.start()
    record = session.run_turn(request(stop=("END", "never")))

    assert transport.interrupts == 1
    assert (record.text, record.finish) == (b"one ", "stop-string")


def test_stop_string_in_the_last_delivery_sends_nothing_to_a_turn_that_is_over() -> None:
    session, transport = chat(CHAT_READY, Out(data=b"one END" + END + b"STAT 4 9.00 0.0 0.01 5 0\n"))

    session.start()
    record = session.run_turn(request(stop=("END",)))

    assert transport.interrupts == 0
    assert record.finish == "stop-string"


def test_stop_that_crossed_with_the_end_of_its_turn_does_not_disturb_the_next() -> None:
    session, _ = serve(
        SERVE_READY,
        Out(data=b"ACCEPT 1 5\nDATA 1 3\nEND\n"),
        Out(data=b"DONE 1 STAT 1 50.00 0.0 0.01 5 0\n"),
        Out(data=b"ERROR 1 NOT_FOUND\nACCEPT 2 5\nDATA 2 2\nok\nDONE 2 STAT 1 50.00 0.0 0.01 5 0\n"),
    )

    session.start()
    session.run_turn(request(stop=("END",)))
    record = session.run_turn(request(turn=1))

    assert record.text == b"ok"


def _start_and_run(session: ChatSession) -> None:
    session.start()
    session.run_turn(request())


def test_late_forwards_line_is_never_counted_for_another_turn() -> None:
    reply = b"a" + END + b"STAT 1 9.00 0.0 0.01 5 0\n"
    late = Err(data=FORWARDS_LINE, late=True)
    session, _ = chat(CHAT_READY, Out(data=reply), Out(data=reply[:1]), late, Out(data=reply[1:]), late)

    session.start()
    first = session.run_turn(request())
    second = session.run_turn(request(turn=1))

    assert (first.forwards, second.forwards) == (None, None)


REPORTED = ("cached_tokens", "drafted_tokens")
LATE_SPEC = Err(data=SPEC_LINE.data, late=True)


def test_chat_waits_for_every_count_that_the_engine_reports() -> None:
    reply = Out(data=b"a" + END + b"STAT 1 9.00 0.0 0.01 38 0\n")
    forwards = Err(data=FORWARDS_LINE, late=True)
    session, _ = chat(CHAT_READY, reply, forwards, API_LINE, LATE_SPEC, reported=REPORTED)

    session.start()
    record = session.run_turn(request())

    assert (record.forwards, record.drafted_tokens, record.accepted_tokens) == (3, 9, 6)
    assert (record.cached_tokens, record.prefill_tokens) == (30, 8)


def test_serve_waits_for_every_count_that_the_engine_reports() -> None:
    reply = (
        b"ACCEPT 1 38\nDATA 1 1\na\nPROF 0.1 38 1 0.0 0.0 0.0 0.0 0.0 1\nDONE 1 STAT 1 50.00 0.0 0.01 38 0\n"
    )
    session, transport = serve(SERVE_READY, Out(data=reply), API_LINE, LATE_SPEC, reported=REPORTED)

    session.start()
    record = session.run_turn(request())

    assert (record.cached_tokens, record.drafted_tokens, record.accepted_tokens) == (30, 9, 6)
    assert transport.now_ns() == 0


def test_what_the_engine_does_not_report_is_not_waited_for() -> None:
    reply = b"ACCEPT 1 38\nDATA 1 1\na\nDONE 1 STAT 1 50.00 0.0 0.01 38 0\n"
    session, transport = serve(SERVE_READY, Out(data=reply))

    session.start()
    record = session.run_turn(request())

    assert (record.cached_tokens, record.drafted_tokens, transport.now_ns()) == (None, None, 0)


def test_late_drafts_are_never_counted_for_another_turn() -> None:
    start = b"ACCEPT %d 38\nDATA %d 1\n"
    end = b"a\nDONE %d STAT 1 50.00 0.0 0.01 38 0\n"
    session, transport = serve(
        SERVE_READY,
        API_LINE,
        Out(data=start % (1, 1) + end % 1),
        Out(data=start % (2, 2)),
        API_LINE,
        LATE_SPEC,
        Out(data=end % 2),
        reported=REPORTED,
    )

    session.start()
    records = [session.run_turn(request(turn=turn)) for turn in range(2)]

    assert [record.cached_tokens for record in records] == [30, 30]
    assert [(record.drafted_tokens, record.accepted_tokens) for record in records] == [(None, None)] * 2
    assert transport.now_ns() == 2e9


def test_a_refused_prompt_has_no_counts_to_wait_for() -> None:
    session, transport = chat(CHAT_READY, Out(data=END + b"STAT 0 0.00 0.0 0.01 0 0\n"), reported=REPORTED)

    session.start()

    assert session.run_turn(request(may_refuse=True)).cached_tokens is None
    assert transport.now_ns() == 0


def test_lines_from_before_the_turn_are_not_its_counts() -> None:
    session, _ = chat(CHAT_READY, Err(data=FORWARDS_LINE), Out(data=END + b"STAT 0 0.00 0.0 0.01 5 0\n"))

    session.start()

    assert session.run_turn(request()).forwards is None


def test_output_is_announced_as_it_arrives() -> None:
    heard: list[int] = []
    log = StderrLog(io.BytesIO())
    steps = (SERVE_READY, Out(data=b"ACCEPT 1 5\nDATA 1 1\na\nDATA 1 1\nb\n"), Out(data=b"DATA 1 1\nc\n"))
    session = ServeSession(ScriptedTransport(log, steps), log, TIMEOUTS, on_output=heard.append)

    session.start()
    with pytest.raises(EngineTimeoutError):
        session.run_turn(request())

    assert heard == [2, 1]


@pytest.mark.parametrize(
    ("steps", "limit_name"),
    [
        ((), "start-timeout"),
        ((CHAT_READY,), "first-output-timeout"),
        ((CHAT_READY, Out(data=b"one", at_ns=10**9 // 2)), "progress-timeout"),
        ((CHAT_READY, Out(data=b"one", at_ns=10**9), Out(data=b"two", at_ns=2 * 10**9)), "turn-timeout"),
    ],
)
def test_each_limit_is_named(steps: tuple[Out, ...], limit_name: str) -> None:
    session, _ = chat(*steps)

    with pytest.raises(EngineTimeoutError, match=limit_name) as caught:
        _start_and_run(session)

    assert caught.value.limit_name == limit_name
    assert f"--{limit_name}" in caught.value.hint


def test_engine_that_does_not_exit_is_killed_and_named() -> None:
    session, transport = chat(CHAT_READY, exit_status=None)

    session.start()
    with pytest.raises(EngineTimeoutError, match="exit-timeout"):
        session.end()

    assert transport.killed


@pytest.mark.parametrize(("status", "words"), [(7, "exit status 7"), (-11, "signal SIGSEGV")])
def test_bad_exit_status_is_an_error(status: int, words: str) -> None:
    session, _ = chat(CHAT_READY, exit_status=status)

    session.start()
    with pytest.raises(EngineDiedError, match=words):
        session.end()


@pytest.mark.parametrize(
    ("session", "expected", "seen", "evidence"),
    [
        (chat(SERVE_READY), "chat", "serve", "HWINFO 2 24.7 23.8 0 0.0 cpu|"),
        (serve(CHAT_READY), "serve", "chat", "TIERS 0 0 8 0.00 0.00"),
    ],
)
def test_wrong_protocol_is_named_before_anything_is_sent(
    session: tuple[ChatSession | ServeSession, ScriptedTransport], expected: str, seen: str, evidence: str
) -> None:
    opened, transport = session

    with pytest.raises(WrongProtocolError) as caught:
        opened.start()

    assert (caught.value.expected, caught.value.seen, caught.value.evidence) == (expected, seen, evidence)
    assert transport.sent == b""


def test_garbage_is_named_with_its_place_in_the_stream() -> None:
    session, _ = serve(SERVE_READY, Out(data=b"ACCEPT 1 5\nprint: hello\n"))

    session.start()
    offset = len(SERVE_READY.data) + len(b"ACCEPT 1 5\n")
    with pytest.raises(EngineGarbageError, match=re.escape(f"at byte {offset}: b'print: hello'")):
        session.run_turn(request())


def test_end_of_output_before_ready_is_a_start_error() -> None:
    session, _ = chat(Out(data=b"banner\n"), Out(data=b""), exit_status=1)

    with pytest.raises(EngineStartError, match="exit status 1 before it was ready"):
        session.start()


def test_end_of_output_inside_a_turn_names_turn_and_signal() -> None:
    session, _ = chat(CHAT_READY, Out(data=b"one"), Out(data=b""), exit_status=-9)

    session.start()
    with pytest.raises(EngineDiedError, match=r"turn 2 of conversation 'c': .*signal SIGKILL"):
        session.run_turn(request(turn=1))


@pytest.mark.parametrize(
    "session",
    [
        chat(CHAT_READY, Out(data=END + b"STAT 0 0.00 0.0 0.01 0 0\n"))[0],
        serve(SERVE_READY, Out(data=b"ERROR 1 CONTEXT_EXCEEDED 511 510\n"))[0],
        serve(SERVE_READY, Out(data=b"ERROR 0 BAD_REQUEST\n"))[0],
    ],
)
def test_refused_prompt_is_an_error(session: ChatSession | ServeSession) -> None:
    session.start()
    with pytest.raises(EngineRefusedError, match="turn 1 of conversation 'c'"):
        session.run_turn(request())


def test_text_that_the_protocol_cannot_carry_is_refused_before_it_is_sent() -> None:
    session, transport = chat(CHAT_READY)

    session.start()
    with pytest.raises(EngineRefusedError, match="newline"):
        session.run_turn(request(line=b"two\nlines"))

    assert transport.sent == b""


def test_paused_drafts_are_counted() -> None:
    paused = Err(
        data=b"[MTP] 67% acceptance over the last 24 proposals: drafts paused for 256 tokens\n", late=True
    )
    session, _ = chat(CHAT_READY, paused, paused, Out(data=END + b"STAT 0 0.00 0.0 0.01 5 0\n"))

    session.start()

    assert session.run_turn(request()).drafts_paused == 2


def test_cancelled_serve_turn_keeps_what_was_framed() -> None:
    session, transport = serve(
        SERVE_READY,
        Out(data=b"ACCEPT 1 38\nDATA 1 4\none \n"),
        Out(data=b"DATA 1 3\ntwo\n"),
        Out(data=b"DATA 1 6\n three\nERROR 1 CANCELLED\n", at_ns=90),
    )

    session.start()
    record = session.run_turn(request(cancel_after_tokens=2))

    assert transport.sent.endswith(b"CANCEL 1\n")
    assert transport.sent.count(b"CANCEL") == 1
    assert (record.finish, record.text, record.emitted_tokens) == ("cancelled", b"one two three", 3)
    assert (record.prompt_tokens, record.length_limited, record.done_ns) == (38, None, 90)


BROKEN = b"ERROR 1 BAD_GRAMMAR token_7_was_emitted_against_the_grammar\n"


def test_an_answer_that_broke_its_grammar_is_kept_as_far_as_it_came() -> None:
    session, _ = serve(SERVE_READY, Out(data=b"ACCEPT 1 38\nDATA 1 4\none \nDATA 1 3\ntwo\n" + BROKEN))

    session.start()
    record = session.run_turn(request())

    assert (record.text, record.finish, record.emitted_tokens) == (b"one two", "broken-grammar", 2)


def test_a_grammar_that_is_refused_before_its_turn_is_an_error() -> None:
    session, _ = serve(SERVE_READY, Out(data=BROKEN))

    session.start()
    with pytest.raises(EngineRefusedError, match="BAD_GRAMMAR"):
        session.run_turn(request())


def test_cancel_that_crossed_with_the_end_leaves_the_turn_as_it_ended() -> None:
    session, _ = serve(
        SERVE_READY,
        Out(data=b"ACCEPT 1 5\nDATA 1 3\none\n"),
        Out(data=b"DONE 1 STAT 1 50.00 0.0 0.01 5 0\n"),
        Out(data=b"ERROR 1 NOT_FOUND\nACCEPT 2 5\nDATA 2 2\nok\nDONE 2 STAT 1 50.00 0.0 0.01 5 0\n"),
    )

    session.start()
    first = session.run_turn(request(cancel_after_tokens=1))
    second = session.run_turn(request(turn=1))

    assert (first.finish, first.emitted_tokens, second.text) == ("stop", 1, b"ok")


def test_chat_turn_is_cancelled_by_a_signal_after_so_many_pieces() -> None:
    session, transport = chat(
        CHAT_READY, Out(data=b"one "), Out(data=b"two "), Out(data=END + b"STAT 5 9.00 0.0 0.01 5 0\n")
    )

    session.start()
    record = session.run_turn(request(cancel_after_tokens=2))

    assert transport.interrupts == 1
    assert (record.finish, record.text, record.emitted_tokens) == ("cancelled", b"one two ", 5)


def test_chat_turn_that_reached_its_cap_was_not_cancelled() -> None:
    session, _ = chat(CHAT_READY, Out(data=b"one"), Out(data=END + b"STAT 16 9.00 0.0 0.01 5 1\n"))

    session.start()

    assert session.run_turn(request(cancel_after_tokens=1)).finish == "length"


def test_refused_prompt_is_a_result_where_it_may_be_one() -> None:
    served, _ = serve(SERVE_READY, Out(data=b"ERROR 1 CONTEXT_EXCEEDED 140 126\n"))
    typed, _ = chat(CHAT_READY, Out(data=END + b"STAT 0 0.00 0.0 0.01 0 0\n"))

    for session in (served, typed):
        session.start()
        record = session.run_turn(request(may_refuse=True))
        assert (record.finish, record.text) == ("refused", b"")
        assert (record.emitted_tokens, record.prompt_tokens, record.forwards) == (None, None, None)


def test_other_refusal_than_of_a_long_prompt_is_never_a_result() -> None:
    session, _ = serve(SERVE_READY, Out(data=b"ERROR 1 SLOT_BUSY\n"))

    session.start()

    with pytest.raises(EngineRefusedError, match="SLOT_BUSY"):
        session.run_turn(request(may_refuse=True))


CHAT_TURN = b"one" + END + b"STAT 1 50.00 0.0 0.01 38 1\n"
SERVE_TURN = b"ACCEPT 1 38\nDATA 1 3\none\nDONE 1 STAT 1 50.00 0.0 0.01 38 0\n"


@pytest.mark.parametrize(
    "late", [b"two", b"\n", b"\x01", b"\x01\x01END\x01\x01\nSTAT 0 0.00 0.0 0.01 38 1\n"]
)
def test_chat_output_behind_the_last_turn_fails_the_cell(late: bytes) -> None:
    session, _ = chat(CHAT_READY, Out(data=CHAT_TURN), Err(data=FORWARDS_LINE), Out(data=late))
    session.start()
    session.run_turn(request())

    with pytest.raises(
        EngineGarbageError, match=f"end of the cell: .* after its last turn: {len(late)} bytes"
    ):
        session.end()


@pytest.mark.parametrize("late", [b"DATA 1 3\ntwo\n", b"print\n", b"HITS", b"ERROR 1 BAD_REQUEST\n"])
def test_served_output_behind_the_last_turn_fails_the_cell(late: bytes) -> None:
    session, _ = serve(SERVE_READY, Out(data=SERVE_TURN), Out(data=late))
    session.start()
    session.run_turn(request())

    with pytest.raises(
        EngineGarbageError, match=f"end of the cell: .* after its last turn: {len(late)} bytes"
    ):
        session.end()


def test_half_a_line_that_came_with_the_end_of_the_last_turn_fails_the_cell_too() -> None:
    session, _ = serve(SERVE_READY, Out(data=SERVE_TURN + b"DATA 1"))
    session.start()
    session.run_turn(request())

    with pytest.raises(EngineGarbageError, match=r"after its last turn: truncated.*b'DATA 1'"):
        session.end()


@pytest.mark.parametrize("late", [b"", b"HITS 1 2 00\n", b"ERROR 1 NOT_FOUND\n"])
def test_notes_and_answers_to_a_late_stop_may_follow_the_last_turn(late: bytes) -> None:
    session, _ = serve(SERVE_READY, Out(data=SERVE_TURN), Out(data=late))
    session.start()
    session.run_turn(request())

    assert session.end() == 0


def test_output_between_two_turns_is_not_taken_for_the_next_answer() -> None:
    session, _ = chat(
        CHAT_READY,
        Out(data=CHAT_TURN),
        Err(data=FORWARDS_LINE),
        Out(data=b"more\x1b[2J", early=True),
        Out(data=CHAT_TURN),
    )
    session.start()
    session.run_turn(request())

    with pytest.raises(EngineGarbageError, match=r"turn 2 .* before the turn .* 8 bytes, 'more\\x1b\[2J'"):
        session.run_turn(request(turn=1))
