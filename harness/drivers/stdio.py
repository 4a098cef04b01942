"""What chat and serve sessions share: the start, a turn from request to record, the end, and errors."""

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine_bindings.errors import (
    EngineDiedError,
    EngineGarbageError,
    EngineRefusedError,
    EngineStartError,
    WrongProtocolError,
)
from engine_bindings.wire.chat_protocol import ChatClient
from engine_bindings.wire.cli_screen import CliClient
from engine_bindings.wire.counts import Stat
from engine_bindings.wire.errors import LocalProtocolError, RemoteProtocolError, WrongProtocol
from engine_bindings.wire.events import (
    NOT_FOUND,
    Banner,
    ChatReply,
    Closed,
    MuxReply,
    Note,
    Refused,
    ScreenReply,
)
from engine_bindings.wire.mux_protocol import MuxClient
from engine_bindings.wire.stderr_lines import KvResumed, StderrEvent
from harness.drivers.answer import Answer
from harness.drivers.base import EngineStart, Transport, TurnRequest
from harness.drivers.stderr_log import StderrLog
from harness.drivers.turn_counts import TurnCounts
from harness.drivers.waits import Waits
from harness.identity import show_bytes
from harness.plan import Timeouts
from harness.transcript import Finish, TurnRecord

# The rest is in the stderr file; a failure in a report shows these.
TAIL_LINES = 20
# Of output that nobody asked for.
SHOWN_BYTES = 80
# Stderr is another pipe than stdout: its lines can come after the end of the turn that they tell of, from a
# wrapper that passes them on, or because the engine prints them then.
COUNTS_GRACE_S = 2.0

OutputCallback = Callable[[int], None]
Reply = ChatReply | MuxReply | ScreenReply
Cut = Literal["cancelled", "refused", "broken-grammar"]


def ignore_output(tokens: int) -> None:
    """Do nothing when output arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a turn ended on the wire. None where the path does not say.

    ``cut`` names what ended it before its time: a cancel that was heard, a refusal of the prompt, or an
    engine that gave the answer up because it broke the grammar.
    """

    done_ns: int
    stat: Stat | None
    cut: Cut | None = None
    prompt_tokens: int | None = None
    accepted_ns: int | None = None
    forwards: int | None = None


class StdioSession(ABC):
    """One engine process spoken to over stdin and stdout.

    ``on_output`` hears of every piece of an answer with the tokens in it, or 1 where tokens are not shown.
    ``reported`` names the counts that stderr brings for every turn: they are waited for.
    """

    _client: ChatClient | CliClient | MuxClient

    def __init__(
        self,
        transport: Transport,
        log: StderrLog,
        timeouts: Timeouts,
        *,
        on_output: OutputCallback = ignore_output,
        reported: Collection[str] = (),
    ) -> None:
        self._transport = transport
        self._log = log
        self._timeouts = timeouts
        self._on_output = on_output
        self._reported = frozenset(reported)
        self._missed: frozenset[str] = frozenset()
        self._asked_to_end_ns: int | None = None

    @abstractmethod
    def _encode(self, request: TurnRequest) -> bytes:
        """Return the bytes that ask for a turn. Raises LocalProtocolError when the protocol has none."""

    @abstractmethod
    def _take(
        self, at_ns: int, events: Sequence[Reply], answer: Answer, request: TurnRequest
    ) -> Ending | None:
        """Take events into the answer; return the ending when they hold it."""

    @abstractmethod
    def _stop(self) -> None:
        """Ask the engine to end the running turn."""

    @abstractmethod
    def _cancel(self) -> None:
        """Ask the engine to end the running turn and forget about its answer."""

    @abstractmethod
    def begin_conversation(self) -> None:
        """Forget typed context, if there is any."""

    def start(self) -> EngineStart:
        """Wait for the READY block. Nothing is sent before it has proved the right protocol."""
        waits = Waits(self._timeouts, self._transport.now_ns, place="start")
        waits.begin("start-timeout")
        banner: list[str] = []
        while not self._client.ready:
            _, events = self._receive(waits, "start")
            banner += (event.line for event in events if isinstance(event, Banner))
        self._transport.drain_stderr()
        resumed = [event.tokens for event in self._log.take_events() if isinstance(event, KvResumed)]
        return EngineStart(
            protocol=self._client.protocol,
            banner=tuple(banner),
            kv_resumed_tokens=sum(resumed) if resumed else None,
        )

    def run_turn(self, request: TurnRequest) -> TurnRecord:
        """Ask for one turn and return all that was seen of it."""
        self._transport.drain_stderr()
        self._log.take_events()
        self._refuse_unread(request.place)
        try:
            data = self._encode(request)
        except LocalProtocolError as error:
            raise EngineRefusedError(f"{request.place}: the protocol cannot carry it: {error}") from error
        answer = Answer(request.stop, max_tokens=request.max_tokens)
        waits = Waits(self._timeouts, self._transport.now_ns, place=request.place)
        waits.begin("turn-timeout")
        waits.begin("first-output-timeout")
        sent_ns = self._transport.now_ns()
        self._transport.send(data)
        ending = self._read_answer(answer, waits, request)
        self._transport.drain_stderr()
        record = build_record(request, answer, ending, self._read_counts(request, ending), sent_ns)
        return replace(record, asked_to_end_ns=self._asked_to_end_ns)

    def run_together(self, requests: Sequence[TurnRequest]) -> tuple[TurnRecord, ...]:
        """Ask for turns one after the other: this session has one slot."""
        return tuple(self.run_turn(request) for request in requests)

    def end(self) -> int:
        """Close the engine's input and wait for its exit."""
        waits = Waits(self._timeouts, self._transport.now_ns, place="end of the cell")
        waits.begin("exit-timeout")
        status = self._transport.end(waits.deadline_ns)
        if status is None:
            self._transport.kill()
            raise waits.timeout_error()
        if status != 0:
            raise EngineDiedError(
                f"the engine ended with {describe_exit(status)} after its last turn",
                hint="the end of its input should end it with status 0",
            )
        self._refuse_unread("end of the cell", at_end=True)
        return status

    def kill(self) -> int | None:
        """End the engine's process group at once."""
        return self._transport.kill()

    def now_ns(self) -> int:
        """Return the time since the process was started."""
        return self._transport.now_ns()

    def stderr_tail(self) -> tuple[str, ...]:
        """Return the last lines of stderr."""
        return self._log.tail_lines(TAIL_LINES)

    def _read_answer(self, answer: Answer, waits: Waits, request: TurnRequest) -> Ending:
        self._asked_to_end_ns = None
        while True:
            at_ns, events = self._receive(waits, request.place)
            before = len(answer.deliveries)
            ending = self._take(at_ns, events, answer, request)
            if len(answer.deliveries) > before:
                waits.note_output()
                self._on_output(answer.deliveries[-1].tokens or 1)
            if ending is not None:
                return ending
            if answer.is_endless:
                raise EngineGarbageError(
                    f"{request.place}: no end of the turn after {len(answer.raw)} bytes"
                    f" in {len(answer.deliveries)} pieces",
                    hint="that is far more than its cap allows; the engine does not stop",
                )
            if self._asked_to_end_ns is None:
                self._end_early(answer, request)

    def _end_early(self, answer: Answer, request: TurnRequest) -> None:
        """Stop a turn whose stop string has come, cancel one that is to be cancelled here."""
        cancel_after = request.cancel_after_tokens
        if answer.stopped:
            self._asked_to_end_ns = self._transport.now_ns()
            self._stop()
        elif cancel_after is not None and answer.pieces >= cancel_after:
            self._asked_to_end_ns = self._transport.now_ns()
            self._cancel()

    def _read_counts(self, request: TurnRequest, ending: Ending) -> TurnCounts:
        """Return what stderr says of the turn that has just ended, waiting for what it brings every time.

        A count that failed to come in time is believed no more: its line could belong to an earlier turn.
        """
        expected = self._list_expected(request, ending)
        counts = TurnCounts()
        for events in self._follow_stderr():
            for event in events:
                counts = counts.add(event)
            if not counts.list_missing(expected):
                break
        self._missed |= counts.list_missing(expected)
        return counts.forget(self._missed)

    def _list_expected(self, request: TurnRequest, ending: Ending) -> frozenset[str]:
        """Return the counts that are still to come for a turn. One without a token need not have any."""
        stat = ending.stat
        if ending.cut == "refused" or (stat is not None and not stat.emitted_tokens):
            return frozenset()
        # Of typed lines the engine does not say what it found in its context.
        typed = frozenset() if request.line is None else frozenset({"cached_tokens"})
        return self._reported - self._missed - typed

    def _follow_stderr(self) -> Iterator[tuple[StderrEvent, ...]]:
        """Yield the events that are there, and then those that come while somebody waits for more."""
        deadline_ns = self._transport.now_ns() + round(COUNTS_GRACE_S * 1e9)
        yield self._log.take_events()
        while self._transport.wait_stderr(deadline_ns):
            yield self._log.take_events()

    def _receive(self, waits: Waits, place: str) -> tuple[int, list[Reply]]:
        arrival = self._transport.receive(waits.deadline_ns)
        if arrival is None:
            raise waits.timeout_error()
        if not arrival.data:
            raise self._early_end(place)
        self._client.receive_data(arrival.data)
        try:
            return arrival.at_ns, list(self._client.events())
        except WrongProtocol as error:
            raise WrongProtocolError(
                expected=error.expected, seen=error.seen, evidence=error.evidence
            ) from error
        except RemoteProtocolError as error:
            raise EngineGarbageError(
                f"{place}: the engine's output breaks the protocol: {error}",
                hint="only the engine may write to its stdout; look for a print in a wrapper or a library",
            ) from error

    def _refuse_unread(self, place: str, *, at_end: bool = False) -> None:
        """Take output that no request asked for: notes and answers to a late STOP or CANCEL may be there.

        Raises:
            EngineGarbageError: there is other output; it would else be lost, or taken for the next answer.
        """
        unread = self._transport.take_unread()
        if not self._client.ready:
            return
        self._client.receive_data(unread)
        if at_end:
            self._client.receive_eof()
        shown = f"{len(unread):,} bytes, {show_bytes(unread[:SHOWN_BYTES])}"
        try:
            harmless = all(_is_harmless(event) for event in self._client.events())
        except RemoteProtocolError as error:
            harmless = False
            shown = shown if unread else str(error)
        if not harmless:
            when = "after its last turn" if at_end else "before the turn was asked for"
            raise EngineGarbageError(
                f"{place}: the engine's output goes on {when}: {shown}",
                hint="text behind the end of a turn is lost to whoever reads the answer",
            )

    def _early_end(self, place: str) -> EngineDiedError | EngineStartError:
        waits = Waits(self._timeouts, self._transport.now_ns, place=place)
        waits.begin("exit-timeout")
        status = self._transport.end(waits.deadline_ns)
        how = "closed its stdout" if status is None else f"ended with {describe_exit(status)}"
        if not self._client.ready:
            return EngineStartError(
                f"the engine {how} before it was ready", hint="its last stderr lines say why"
            )
        return EngineDiedError(f"{place}: the engine {how}", hint="its last stderr lines may say why")


def _is_harmless(event: Reply) -> bool:
    return isinstance(event, Note | Closed) or (isinstance(event, Refused) and event.code == NOT_FOUND)


def describe_exit(status: int) -> str:
    """Return an exit status in words: a number, or the name of the signal.

    >>> describe_exit(-11)
    'signal SIGSEGV'
    """
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def build_record(
    request: TurnRequest, answer: Answer, ending: Ending, counts: TurnCounts, sent_ns: int
) -> TurnRecord:
    """Return the record of a turn that has ended."""
    stat = ending.stat
    return TurnRecord(
        conversation=request.conversation,
        turn=request.turn,
        entry="prompt" if request.line is None else "line",
        prompt=request.prompt if request.line is None else request.line,
        text=answer.visible_text(),
        deliveries=tuple(answer.deliveries),
        sent_ns=sent_ns,
        accepted_ns=ending.accepted_ns,
        done_ns=ending.done_ns,
        emitted_tokens=_count_emitted(answer, ending),
        prompt_tokens=ending.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        prefill_tokens=counts.prefill_tokens,
        forwards=counts.forwards if ending.forwards is None else ending.forwards,
        drafted_tokens=counts.drafted_tokens,
        accepted_tokens=counts.accepted_tokens,
        length_limited=stat.length_limited if stat else None,
        finish=_name_finish(answer, ending),
        engine_tokens_per_s=stat.tokens_per_s if stat else None,
        drafts_paused=counts.drafts_paused,
        token_lengths=tuple(answer.token_lengths) if ending.accepted_ns is not None else None,
        margins=counts.margins,
        logprobs=tuple(answer.logprobs) if any(value is not None for value in answer.logprobs) else None,
    )


def _count_emitted(answer: Answer, ending: Ending) -> int | None:
    """Return the engine's count; a turn that ends without one has as many tokens as were framed."""
    if ending.stat is not None:
        return ending.stat.emitted_tokens
    return len(answer.token_lengths) if ending.cut in ("cancelled", "broken-grammar") else None


def _name_finish(answer: Answer, ending: Ending) -> Finish:
    if answer.stopped:
        return "stop-string"
    if ending.cut is not None:
        return ending.cut
    return "length" if ending.stat and ending.stat.length_limited else "stop"
