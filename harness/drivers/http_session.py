"""A session with a server over HTTP: one request a turn, timed by our own clock, cancelled by closing it."""

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from engine_bindings.errors import (
    EngineDiedError,
    EngineError,
    EngineGarbageError,
    EngineStartError,
)
from engine_bindings.wire.answer_events import Counts
from engine_bindings.wire.errors import RemoteProtocolError
from harness.drivers.base import EngineStart, TurnRequest
from harness.drivers.http_answer import HttpAnswer
from harness.drivers.http_api import HttpApi
from harness.drivers.http_errors import HttpRefusal, read_refusal
from harness.drivers.http_transport import ConnectionLostError, Exchange, Head, HttpCall, HttpTransport
from harness.drivers.server_counters import CountersKind, MetricsCounters
from harness.drivers.stderr_log import StderrLog
from harness.drivers.stdio import TAIL_LINES, OutputCallback, describe_exit, ignore_output
from harness.drivers.turn_counts import TurnCounts
from harness.drivers.waits import Waits
from harness.plan import Timeouts
from harness.transcript import Finish, TurnRecord

EVENT_STREAM = "text/event-stream"
JSON = "application/json"
# An error body longer than this says nothing more.
ERROR_BODY_BYTES = 64 << 10
# A list of models may be long: a gateway to many providers sends some hundred KiB.
READY_BODY_BYTES = 16 << 20
# Shorter ones are stand-ins for a key, such as EMPTY, and may stand in any text.
SECRET_CHARACTERS = 8
HIDDEN = "<key>"
# How often a server that is starting is asked whether it is ready.
START_POLL_S = 0.2
ResultT = TypeVar("ResultT")


class ServerHost(Protocol):
    """The process of a server that this session owns."""

    def exit_status(self) -> int | None:
        """Return its exit status, None while it runs."""

    def drain(self) -> None:
        """Take what it has written until now into the log."""

    def end(self, timeout_s: float) -> int | None:
        """Tell it to exit; return its exit status, or None when the time passes first."""

    def kill(self) -> int | None:
        """End the whole process group at once."""


@dataclass(kw_only=True)
class _Turn:
    """What is known of a turn while it runs."""

    request: TurnRequest
    answer: HttpAnswer
    sent_ns: int = 0
    done_ns: int = 0
    cut: Finish | None = None
    counts: Counts = field(default_factory=Counts)


class HttpSession:
    """One cell on a server.

    Args:
        transport: the server.
        api: the way to ask for a turn.
        ready: what must be answered with 200 and JSON before the first turn.
        log: takes a line for each request; with a ``host`` also what its process writes to stderr.
        counted: read the server's own counters around each turn that runs alone, by means of ``counters``.
        preparations: sent once before the first turn; a server that knows no such request is no error.
        host: the server's process where this session owns it: then it is waited for at the start.
        start_hints: by words in the last stderr lines of a ``host`` that ends before it is ready, what to do.
        secret: the key; where the server repeats it in an error, neither the log nor the error shows it.
    """

    def __init__(
        self,
        transport: HttpTransport,
        api: HttpApi,
        log: StderrLog,
        timeouts: Timeouts,
        *,
        on_output: OutputCallback = ignore_output,
        ready: HttpCall = HttpCall(method="GET", path="/models"),  # noqa: B008 - a frozen value
        counted: bool = False,
        counters: CountersKind = MetricsCounters,
        preparations: Sequence[HttpCall] = (),
        host: ServerHost | None = None,
        secret: str | None = None,
        start_hints: Mapping[str, str] | None = None,
    ) -> None:
        self._transport = transport
        self._api = api
        self._log = log
        self._timeouts = timeouts
        self._on_output = on_output
        self._ready = ready
        self._counters = counters(transport, self.note) if counted else None
        self._preparations = tuple(preparations)
        self._host = host
        self._secret = secret if secret and len(secret) >= SECRET_CHARACTERS else None
        self._start_hints = start_hints or {}
        self._received: dict[str, dict[bytes, dict[str, Any]]] = {}
        self._runner = asyncio.Runner()
        self._closed = False

    def start(self) -> EngineStart:
        """Wait for the server, prove that it speaks the API, and prepare it."""
        return self._run(self._start())

    def begin_conversation(self) -> None:
        """Forget the answers of earlier conversations; every request names its whole context."""
        self._received.clear()

    def run_turn(self, request: TurnRequest) -> TurnRecord:
        """Ask for one turn and return all that was seen of it."""
        return self._run(self._run_alone(request))

    def run_together(self, requests: Sequence[TurnRequest]) -> tuple[TurnRecord, ...]:
        """Ask for several turns at once; counts beside the answers would mix them, so none are read."""
        return self._run(self._run_all(requests))

    def end(self) -> int:
        """Close the connections, and end the server's process where it is ours."""
        self.close()
        if self._host is None:
            return 0
        waits = Waits(self._timeouts, self.now_ns, place="end of the cell")
        waits.begin("exit-timeout")
        status = self._host.end((waits.deadline_ns - self.now_ns()) / 1e9)
        if status is None:
            self._host.kill()
            raise waits.timeout_error()
        return status

    def kill(self) -> int | None:
        """Close the connections, and end the server's process group where it is ours."""
        self.close()
        return None if self._host is None else self._host.kill()

    def now_ns(self) -> int:
        """Return the time since the cell began."""
        return self._transport.now_ns()

    def stderr_tail(self) -> tuple[str, ...]:
        """Return the last lines of the log."""
        return self._log.tail_lines(TAIL_LINES)

    def note(self, remark: str) -> None:
        """Put a remark into the log."""
        self._log.add_remark(f"[http] {self._hide(remark)}")

    def _run(self, work: Awaitable[ResultT]) -> ResultT:
        async def run() -> ResultT:
            return await work

        try:
            return self._runner.run(run())
        except EngineError as error:
            error.message = self._hide(error.message)
            raise

    def _hide(self, text: str) -> str:
        return text.replace(self._secret, HIDDEN) if self._secret else text

    async def _read_body(
        self, exchange: Exchange, waits: Waits, *, max_bytes: int = ERROR_BODY_BYTES
    ) -> bytes:
        """Return the body of an answer without the key, before it is cut to what is shown of it."""
        body = await read_body(exchange, waits, max_bytes=max_bytes)
        return body.replace(self._secret.encode(), HIDDEN.encode()) if self._secret else body

    def close(self) -> None:
        """Close the connections. Safe to call again."""
        if not self._closed:
            self._closed = True
            self._run(self._transport.close())
            self._runner.close()

    async def _start(self) -> EngineStart:
        waits = Waits(self._timeouts, self.now_ns, place="start")
        waits.begin("start-timeout")
        while True:
            try:
                head, body = await self._fetch(self._ready, waits)
            except ConnectionLostError as error:
                await self._wait_for_host(waits, f"cannot reach the server: {error}", error)
                continue
            if head.status != 503 or self._host is None:
                break
            await self._wait_for_host(waits, "the server is not ready (503)", None)
        check_ready(head, body)
        for call in self._preparations:
            await self._prepare(call, waits)
        banner = tuple(f"{name}: {head.headers[name]}" for name in ("server",) if name in head.headers)
        return EngineStart(protocol="http", banner=banner, kv_resumed_tokens=None)

    async def _wait_for_host(self, waits: Waits, message: str, cause: Exception | None) -> None:
        """Let a server of ours go on with its start; another one has to be there already."""
        if self._host is None:
            hint = "start it first, and check the address; it ends with /v1 for most servers"
            raise EngineStartError(message, hint=hint) from cause
        status = self._host.exit_status()
        if status is not None:
            self._host.drain()
            told = "\n".join(self.stderr_tail())
            hints = (hint for words, hint in self._start_hints.items() if words in told)
            raise EngineStartError(
                f"the server ended with {describe_exit(status)} before it was ready",
                hint=next(hints, "its last stderr lines say why"),
            ) from cause
        if self.now_ns() >= waits.deadline_ns:
            raise waits.timeout_error()
        await self._transport.pause(START_POLL_S)

    async def _prepare(self, call: HttpCall, waits: Waits) -> None:
        try:
            await self._fetch(call, waits)
        except ConnectionLostError as error:
            raise EngineStartError(f"{call.method} {call.path}: {error}") from error

    async def _fetch(self, call: HttpCall, waits: Waits) -> tuple[Head, bytes]:
        async with self._transport.open(call) as exchange:
            head = await exchange.read_head(waits.deadline_ns)
            if head is None:
                raise waits.timeout_error()
            body = await self._read_body(exchange, waits, max_bytes=READY_BODY_BYTES)
        self._note(call, head, f"{len(body)} bytes")
        return head, body

    async def _run_alone(self, request: TurnRequest) -> TurnRecord:
        if self._counters is not None:
            await self._counters.begin()
        self._take_written()
        turn = await self._ask(request)
        turn.counts = turn.answer.counts
        if self._counters is not None and turn.cut is None:
            turn.counts = await self._counters.end(turn.counts)
        return build_record(turn, self._api, self._take_written())

    def _take_written(self) -> TurnCounts:
        """Return what a server of ours wrote about the turn that has just ended."""
        counts = TurnCounts()
        if self._host is not None:
            self._host.drain()
        for event in self._log.take_events():
            counts = counts.add(event)
        return counts

    async def _run_all(self, requests: Sequence[TurnRequest]) -> tuple[TurnRecord, ...]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask_kept(request)) for request in requests]
        results = [task.result() for task in tasks]
        for result in results:
            if isinstance(result, EngineError):
                raise result
        nothing = TurnCounts()
        return tuple(build_record(turn, self._api, nothing) for turn in results if isinstance(turn, _Turn))

    async def _ask_kept(self, request: TurnRequest) -> "_Turn | EngineError":
        """Return an error instead of raising it, so that the group does not cut the other turns."""
        try:
            turn = await self._ask(request)
        except EngineError as error:
            return error
        turn.counts = turn.answer.counts
        return turn

    async def _ask(self, request: TurnRequest) -> _Turn:
        turn = _Turn(request=request, answer=HttpAnswer(request.stop, max_tokens=request.max_tokens))
        received = self._received.setdefault(request.conversation, {})
        call = self._api.build_call(request, received)
        waits = Waits(self._timeouts, self.now_ns, place=request.place)
        waits.begin("turn-timeout")
        waits.begin("first-output-timeout")
        turn.sent_ns = self.now_ns()
        try:
            async with self._transport.open(call) as exchange:
                head = await exchange.read_head(waits.deadline_ns)
                if head is None:
                    raise waits.timeout_error()
                await self._take_answer(turn, call, head, exchange, waits)
        except ConnectionLostError as error:
            raise EngineDiedError(f"{request.place}: the connection broke: {error}") from error
        self._note(call, head, f"{len(turn.answer.deliveries)} deliveries", *turn.answer.remarks)
        received[turn.answer.visible_text()] = turn.answer.message()
        return turn

    async def _take_answer(
        self, turn: _Turn, call: HttpCall, head: Head, exchange: Exchange, waits: Waits
    ) -> None:
        place = turn.request.place
        if head.status != 200:
            refusal = read_refusal(head, await self._read_body(exchange, waits))
            self._note(call, head, refusal.message)
            self._refuse(turn, refusal)
            return
        wanted = EVENT_STREAM if call.streams else JSON
        if head.content_type != wanted:
            body = await self._read_body(exchange, waits)
            raise EngineGarbageError(
                f"{place}: asked for {wanted}, got {head.content_type or 'no content type'}: {body[:80]!r}",
                hint="the address may not be that of an OpenAI-compatible API, or it does not stream",
            )
        await self._read_answer(turn, exchange, waits)

    async def _read_answer(self, turn: _Turn, exchange: Exchange, waits: Waits) -> None:
        reader, answer = self._api.open_reader(), turn.answer
        while not answer.complete and turn.cut is None:
            arrival = await exchange.receive(waits.deadline_ns)
            if arrival is None:
                raise waits.timeout_error()
            turn.done_ns = arrival.at_ns
            if arrival.data:
                reader.receive_data(arrival.data)
            else:
                reader.receive_eof()
            before = len(answer.deliveries)
            try:
                answer.add_events(arrival.at_ns, list(reader.events()))
            except RemoteProtocolError as error:
                raise self._broken(turn, error, ended=not arrival.data) from error
            if answer.fault is not None:
                self._refuse(turn, HttpRefusal(status=200, fault=answer.fault))
                return
            if len(answer.deliveries) > before:
                waits.note_output()
                self._on_output(answer.deliveries[-1].tokens or 1)
            self._end_early(turn)

    def _broken(self, turn: _Turn, error: RemoteProtocolError, *, ended: bool) -> EngineError:
        if ended:
            message = f"{turn.request.place}: the answer was cut: {error}"
            return EngineDiedError(message, hint="the server's own log may say why")
        return EngineGarbageError(f"{turn.request.place}: the answer breaks the API: {error}")

    def _end_early(self, turn: _Turn) -> None:
        """Cancel a turn that is to be cancelled here; refuse one that does not end."""
        answer, cancel_after = turn.answer, turn.request.cancel_after_tokens
        if answer.is_endless:
            raise EngineGarbageError(
                f"{turn.request.place}: no end of the turn after {answer.pieces} tokens or pieces",
                hint="that is far more than its cap allows; the engine does not stop",
            )
        if cancel_after is not None and answer.deliveries and answer.pieces >= cancel_after:
            turn.cut = "cancelled"

    def _refuse(self, turn: _Turn, refusal: HttpRefusal) -> None:
        """Take a refusal of the prompt as the result of a turn that may be refused, else raise it."""
        turn.done_ns = self.now_ns()
        if not (turn.request.may_refuse and refusal.is_about_length):
            raise refusal.error(turn.request.place)
        turn.cut = "refused"

    def _note(self, call: HttpCall, head: Head, *remarks: str) -> None:
        self.note(f"{call.method} {call.path} {head.status} {head.content_type}: {'; '.join(remarks)}")


async def read_body(exchange: Exchange, waits: Waits, *, max_bytes: int) -> bytes:
    """Return the body of an answer that is no stream, at most ``max_bytes`` of it."""
    body = bytearray()
    while len(body) < max_bytes:
        arrival = await exchange.receive(waits.deadline_ns)
        if arrival is None:
            raise waits.timeout_error()
        if not arrival.data:
            break
        body += arrival.data
    return bytes(body[:max_bytes])


def check_ready(head: Head, body: bytes) -> None:
    """Raise EngineStartError unless a server answered with JSON and 200."""
    if head.status != 200:
        refusal = read_refusal(head, body)
        raise EngineStartError(f"the server answered {head.status}: {refusal.message}", hint=refusal.hint)
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EngineStartError(
            f"the server answered {head.content_type or 'no content type'} where JSON belongs: {body[:80]!r}",
            hint="this is no OpenAI-compatible API; its address ends with /v1 for most servers",
        ) from error


def build_record(turn: _Turn, api: HttpApi, written: TurnCounts) -> TurnRecord:
    """Return the record of a turn that has ended; ``written`` stands in where the answer has no number."""
    answer, request = turn.answer, turn.request
    beside = Counts(
        cached_tokens=written.cached_tokens,
        prefill_tokens=written.prefill_tokens,
        forwards=written.forwards,
        drafted_tokens=written.drafted_tokens,
        accepted_tokens=written.accepted_tokens,
    )
    counts = beside.join(turn.counts)
    margins = answer.margins()
    return TurnRecord(
        conversation=request.conversation,
        turn=request.turn,
        entry=api.entry,
        prompt=request.prompt,
        text=answer.visible_text(),
        deliveries=tuple(answer.deliveries),
        sent_ns=turn.sent_ns,
        done_ns=turn.done_ns,
        emitted_tokens=counts.completion_tokens,
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        prefill_tokens=counts.prefill_tokens,
        forwards=counts.forwards,
        drafted_tokens=counts.drafted,
        accepted_tokens=counts.accepted_tokens,
        finish=turn.cut or answer.finish(),
        engine_tokens_per_s=counts.tokens_per_s,
        drafts_paused=written.drafts_paused,
        token_lengths=answer.token_lengths(),
        margins=written.margins if margins is None else margins,
        logprobs=answer.logprobs(),
    )
