"""Requests that run at once over a scripted transport: whose token is whose."""

import io
from dataclasses import replace

import pytest

from engine_bindings.errors import EngineRefusedError
from harness.drivers.scripted import Err, Out, ScriptedTransport
from harness.drivers.slots_session import SlotsSession
from harness.drivers.stderr_log import StderrLog
from harness.transcript import Margin
from tests.harness.drivers.test_sessions import SERVE_READY, TIMEOUTS, request

PROF = b"PROF 0.1 5 2 0.0 0.0 0.0 0.0 0.0 2\n"
FIRST = replace(request(), prompt=b"Hello")
SECOND = replace(request(), conversation="d", prompt=b"Bye", slot=1)


def open_session(*steps: Out | Err, reported: tuple[str, ...] = ()) -> tuple[SlotsSession, ScriptedTransport]:
    log = StderrLog(io.BytesIO())
    transport = ScriptedTransport(log, (SERVE_READY, *steps))
    session = SlotsSession(transport, log, TIMEOUTS, reported=reported)
    session.start()
    return session, transport


def test_interleaved_answers_are_told_apart_by_their_ids() -> None:
    session, transport = open_session(
        Err(data=b"[API] KV slot 0 prefix 1/5 token, prefill 4\n", late=True),
        Err(data=b"[API] KV slot 1 prefix 2/3 token, prefill 1\n", late=True),
        Out(data=b"ACCEPT 1 5\nDATA 1 2\nab\nACCEPT 2 3\nDATA 2 1\nx\nDATA 1 1\nc\n", at_ns=10),
        Out(data=PROF + b"DONE 1 STAT 2 50.00 0.0 0.01 5 0\nDATA 2 1\ny\nDATA 2 1\nz\n", at_ns=20),
        Out(data=PROF.replace(b"2\n", b"3\n") + b"DONE 2 STAT 3 50.00 0.0 0.01 3 1\n", at_ns=30),
    )

    first, second = session.run_together([FIRST, SECOND])

    assert transport.sent == b"SUBMIT 1 0 5 16 0 1\nHello\nSUBMIT 2 1 3 16 0 1\nBye\n"
    assert (first.conversation, first.text, first.token_lengths) == ("c", b"abc", (2, 1))
    assert (second.conversation, second.text, second.token_lengths) == ("d", b"xyz", (1, 1, 1))
    assert (first.forwards, second.forwards) == (2, 3)
    assert (first.finish, second.finish) == ("stop", "length")
    assert (first.cached_tokens, second.cached_tokens) == (1, 2)
    assert (first.done_ns, second.done_ns) == (20, 30)


def test_the_prefix_of_every_turn_is_waited_for() -> None:
    session, transport = open_session(
        Err(data=b"[API] KV slot 1 prefix 2/3 token, prefill 1\n", late=True),
        Out(data=b"ACCEPT 1 5\nDATA 1 1\na\nACCEPT 2 3\nDATA 2 1\nx\n"),
        Out(data=b"DONE 1 STAT 1 50.00 0.0 0.01 5 0\nDONE 2 STAT 1 50.00 0.0 0.01 3 1\n"),
        Err(data=b"[API] KV slot 0 prefix 1/5 token, prefill 4\n", late=True),
        reported=("cached_tokens", "drafted_tokens"),
    )

    first, second = session.run_together([FIRST, SECOND])

    assert (first.cached_tokens, second.cached_tokens) == (1, 2)
    assert transport.now_ns() == 0


def test_margins_that_name_no_slot_are_kept_with_every_turn_they_may_be_of() -> None:
    gap = b"LOGITGAP pos=%d top1=%d:2.000000 top2=7:1.000000 gap=1.000000000\n"
    session, _ = open_session(
        Err(data=b"[API] KV slot 0 prefix 1/5 token, prefill 4\n" + gap % (0, 3), late=True),
        Err(data=gap % (1, 4), late=True),
        Out(data=b"ACCEPT 1 5\nDATA 1 1\na\nACCEPT 2 3\nDATA 2 1\nx\n", at_ns=10),
        Out(data=b"DONE 1 STAT 1 50.00 0.0 0.01 5 0\nDONE 2 STAT 1 50.00 0.0 0.01 3 1\n", at_ns=20),
    )

    for turn in session.run_together([FIRST, SECOND]):
        assert turn.margins is None
        assert turn.shared_margins == (Margin(best=3, second=7, gap=1.0), Margin(best=4, second=7, gap=1.0))


def test_a_refusal_names_the_turn_that_was_refused() -> None:
    session, _ = open_session(Out(data=b"ACCEPT 1 5\nERROR 2 SLOT_BUSY\n"))

    with pytest.raises(EngineRefusedError, match=r"conversation 'd'.*SLOT_BUSY"):
        session.run_together([FIRST, SECOND])


def test_a_turn_alone_keeps_its_slot() -> None:
    session, transport = open_session(
        Out(data=b"ACCEPT 1 3\nDATA 1 2\nok\nDONE 1 STAT 1 50.00 0.0 0.01 3 0\n")
    )

    assert session.run_turn(SECOND).text == b"ok"
    assert transport.sent == b"SUBMIT 1 1 3 16 0 1\nBye\n"
