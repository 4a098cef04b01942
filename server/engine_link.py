"""One engine process in serve mode: started, probed, spoken to, and watched for progress until it ends."""

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from engine_bindings.printable import escape_control
from engine_bindings.wire import (
    Accepted,
    Data,
    Done,
    LocalProtocolError,
    MuxClient,
    Note,
    ProtocolError,
    Ready,
    Refused,
    TurnProfile,
)
from engine_bindings.wire.events import CANCELLED, ERROR_CODES
from engine_bindings.wire.mux_extension import (
    Speculation,
    TokenDetail,
    encode_options,
    encode_probe,
    parse_note,
    read_probe,
)
from server.engine_turn import EngineTurn, Token, TurnFailed, TurnOutcome, TurnRefused, TurnRequest

# About 200 tokens: what a burst may hold up the first of them.
READ_BYTES = 1 << 14
STDERR_LINES = 50
STDERR_LINE_BYTES = 1 << 16
# Time for an engine that was told to end before it is killed; it has no state that would be lost.
EXIT_TIMEOUT_S = 5.0
PROBE_ID = 1
# What the engine writes on stderr for each layer of a long prefill.
PREFILL_MARK = b"[prefill]"


class EngineLost(Exception):  # noqa: N818 - an event in the life of a server
    """The process is gone or useless; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """How to start the process."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimeouts:
    """How long the engine may take to get ready, and be silent while a turn is open, in seconds.

    ``first_output_s`` holds instead of ``progress_s`` while a turn waits for its first token.
    """

    start_s: float
    first_output_s: float
    progress_s: float


class EngineLink:
    """A running engine.

    ``extension`` says whether it takes OPTIONS; ``lost`` is done when it is of no more use.
    """

    def __init__(self, process: Process, timeouts: EngineTimeouts) -> None:
        self.extension = False
        self.banner: list[str] = []
        self.stderr_tail: deque[str] = deque(maxlen=STDERR_LINES)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = process
        self._timeouts = timeouts
        self._client = MuxClient()
        self._turns: dict[int, EngineTurn] = {}
        self._details: dict[int, TokenDetail] = {}
        self._speculation: dict[int, Speculation] = {}
        self._profile: TurnProfile | None = None
        self._probe: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ready = asyncio.Event()
        self._last_id = PROBE_ID
        self._progress_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._stderr_task = asyncio.create_task(self._read_stderr())
        self._tasks = (asyncio.create_task(self._read()), self._stderr_task)

    @classmethod
    async def start(cls, command: EngineCommand, timeouts: EngineTimeouts) -> "EngineLink":
        """Start the process and wait until it takes turns. Raises EngineLost."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                env=dict(command.environment),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=STDERR_LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineLost(f"{command.argv[0]}: cannot be started: {error.strerror}") from error
        link = cls(process, timeouts)
        try:
            await link._wait_ready()
        except BaseException:  # also when cancelled: no process is left behind
            await link.kill()
            raise
        return link

    async def _wait_ready(self) -> None:
        ready = asyncio.create_task(self._probe_extension())
        self.lost.add_done_callback(lambda _: ready.cancel())
        limit = self._timeouts.start_s
        await asyncio.wait({ready}, timeout=limit)
        if ready.done() and not ready.cancelled():
            await ready
            return
        ready.cancel()
        reason = self.lost.result() if self.lost.done() else f"not ready within {limit:g} s (--start-timeout)"
        raise EngineLost(reason)

    async def _probe_extension(self) -> None:
        await self._ready.wait()
        self._write(encode_probe(PROBE_ID))
        self.extension = await self._probe

    def submit(self, request: TurnRequest) -> EngineTurn:
        """Open a turn. Raises TurnFailed when the engine is lost, TurnRefused for values it cannot take."""
        if self.lost.done():
            raise TurnFailed(self.lost.result())
        self._last_id += 1
        request_id = self._last_id
        try:
            frame = self._client.encode_submit(
                request_id=request_id,
                prompt=request.prompt,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                slot=request.slot,
                grammar=request.grammar,
            )
        except LocalProtocolError as error:
            raise TurnRefused("BAD_REQUEST", (str(error),)) from error
        options = b"" if request.options is None else encode_options(request_id, request.options)
        turn = EngineTurn(request_id, control=self._send_control, sent_ns=time.monotonic_ns())
        self._turns[request_id] = turn
        self._progress_at = time.monotonic()
        self._write(options + frame)
        self._arm_watchdog()
        return turn

    async def close(self) -> None:
        """Tell the engine to end and wait for it."""
        self._lose("the server is stopping")
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), EXIT_TIMEOUT_S)
        await self.kill()

    async def kill(self) -> None:
        """End the process and its children at once."""
        self._lose("it was ended")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _write(self, data: bytes) -> None:
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def _send_control(self, word: str, request_id: int) -> None:
        encode = self._client.encode_stop if word == "stop" else self._client.encode_cancel
        # A turn that ended between the read and this call has nothing left to stop.
        with contextlib.suppress(LocalProtocolError):
            self._write(encode(request_id))

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - PIPE was asked for
        try:
            while data := await stdout.read(READ_BYTES):
                self._progress_at = time.monotonic()
                self._client.receive_data(data)
                self._take_events()
            status = await self._process.wait()
            await asyncio.wait({self._stderr_task}, timeout=EXIT_TIMEOUT_S)
            self._lose(f"it ended with status {status}{self._last_words()}")
        except (ProtocolError, ValueError) as error:
            self._lose(f"it wrote what its protocol does not allow: {error}")

    def _take_events(self) -> None:
        at_ns = time.monotonic_ns()
        for event in self._client.events():
            if isinstance(event, Data):
                turn = self._turns.get(event.request_id)
                if turn is not None:
                    self._take_token(
                        turn, Token(event.payload, at_ns, self._details.pop(turn.request_id, None))
                    )
            elif isinstance(event, Note):
                self._take_note(event)
            elif isinstance(event, Accepted):
                self._turns[event.request_id].accept(event.prompt_tokens, at_ns)
            else:
                self._take_rare(event)

    def _take_token(self, turn: EngineTurn, token: Token) -> None:
        first = not turn.has_output
        turn.add(token)
        if first:
            self._arm_watchdog()

    def _take_rare(self, event: object) -> None:
        if isinstance(event, Done):
            self._take_done(event)
        elif isinstance(event, Refused):
            self._take_error(event)
        elif isinstance(event, TurnProfile):
            self._profile = event
        elif isinstance(event, Ready):
            self._ready.set()

    def _take_note(self, note: Note) -> None:
        detail = parse_note(note)
        if isinstance(detail, TokenDetail):
            self._details[detail.request_id] = detail
        elif detail is not None:
            self._speculation[detail.request_id] = detail

    def _take_done(self, done: Done) -> None:
        profile, self._profile = self._profile, None
        outcome = TurnOutcome(
            stat=done.stat,
            profile=profile.profile if profile else None,
            speculation=self._speculation.pop(done.request_id, None),
        )
        self._end_turn(done.request_id, outcome, None)

    def _take_error(self, error: Refused) -> None:
        answer = read_probe(PROBE_ID, error)
        if answer is not None and not self._probe.done():
            self._probe.set_result(answer)
            return
        turn = self._turns.get(error.request_id)
        remark = error.code in ERROR_CODES and error.code != CANCELLED
        if turn is not None and not (remark and turn.prompt_tokens is not None):
            self._end_turn(error.request_id, None, TurnRefused(error.code, error.arguments))

    def _end_turn(self, request_id: int, outcome: TurnOutcome | None, failure: Exception | None) -> None:
        self._details.pop(request_id, None)
        turn = self._turns.pop(request_id, None)
        if turn is not None:
            turn.end(outcome, failure)

    def _lose(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.lost.done():
            self.lost.set_result(reason)
        for request_id in tuple(self._turns):
            self._end_turn(request_id, None, TurnFailed(self.lost.result()))

    def _silence_limit(self) -> tuple[float, str]:
        if all(turn.has_output for turn in self._turns.values()):
            return self._timeouts.progress_s, "--progress-timeout"
        return self._timeouts.first_output_s, "--first-output-timeout"

    def _arm_watchdog(self) -> None:
        """Set the timer for the limit that holds now, which changes when a first token comes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._turns and not self.lost.done():
            remaining = self._progress_at + self._silence_limit()[0] - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, remaining), self._check_progress)

    def _check_progress(self) -> None:
        self._timer = None
        limit, option = self._silence_limit()
        if self._turns and time.monotonic() - self._progress_at >= limit:
            self._lose(f"no progress for {limit:g} s ({option})")
        self._arm_watchdog()

    async def _read_stderr(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None  # noqa: S101 - PIPE was asked for
        while data := await stderr.read(READ_BYTES):
            if PREFILL_MARK in data:
                self._progress_at = time.monotonic()
            lines = data.decode("utf-8", "replace").splitlines()
            self.stderr_tail.extend(line for line in lines[-STDERR_LINES:] if line.strip())

    def _last_words(self) -> str:
        return f"; its last words: {escape_control(self.stderr_tail[-1])}" if self.stderr_tail else ""
