"""A server that plays a script: for tests of HTTP sessions, without sockets or time."""

from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from harness.drivers.base import Arrival
from harness.drivers.http_transport import ConnectionLostError, Exchange, Head, HttpCall

EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is answered to one call.

    Attributes:
        status, content_type, headers: of the head.
        body: pieces, each read at once.
        wait_ns: time that passes before the head; gap_ns: before each piece.
        hangs: after the pieces nothing comes any more, not even the end.
        breaks: after the pieces the connection breaks, with this message.
        refused: no connection is made, with this message.
    """

    status: int = 200
    content_type: str = EVENT_STREAM
    headers: dict[str, str] = field(default_factory=dict)
    body: tuple[bytes, ...] = ()
    wait_ns: int = 0
    gap_ns: int = 0
    hangs: bool = False
    breaks: str = ""
    refused: str = ""


class ScriptedServer:
    """Answers calls in order and keeps them for the test to look at.

    Paths in ``fixed`` are always answered alike and take nothing from the script.
    """

    def __init__(self, answers: Iterable[Answer], *, fixed: dict[str, Answer] | None = None) -> None:
        self.calls: list[HttpCall] = []
        self.closed_early = 0
        self.closed = False
        self.pauses = 0
        self.clock_ns = 0
        self._answers = deque(answers)
        self._fixed = fixed or {}

    @asynccontextmanager
    async def open(self, call: HttpCall) -> AsyncIterator[Exchange]:
        """Answer a call with the next step of the script."""
        self.calls.append(call)
        answer = self._fixed[call.path] if call.path in self._fixed else self._answers.popleft()
        exchange = ScriptedExchange(self, answer)
        try:
            yield exchange
        finally:
            self.closed_early += bool(exchange.left)

    async def pause(self, seconds: float) -> None:
        """Move the clock."""
        self.pauses += 1
        self.clock_ns += round(seconds * 1e9)

    async def close(self) -> None:
        """Note that it was closed."""
        self.closed = True

    def now_ns(self) -> int:
        """Read the script's clock."""
        return self.clock_ns


class ScriptedExchange:
    """One answer of the script."""

    def __init__(self, server: ScriptedServer, answer: Answer) -> None:
        self.left = deque(answer.body)
        self._server = server
        self._answer = answer

    async def read_head(self, deadline_ns: int) -> Head | None:
        """Return the head, or None when the script lets the deadline pass."""
        if self._answer.refused:
            raise ConnectionLostError(self._answer.refused)
        if not self._pass(self._answer.wait_ns, deadline_ns):
            return None
        headers = {"content-type": self._answer.content_type, **self._answer.headers}
        return Head(status=self._answer.status, headers=headers)

    async def receive(self, deadline_ns: int) -> Arrival | None:
        """Return the next piece."""
        if not self.left and self._answer.hangs:
            self._server.clock_ns = deadline_ns
            return None
        if not self.left and self._answer.breaks:
            raise ConnectionLostError(self._answer.breaks)
        if not self._pass(self._answer.gap_ns, deadline_ns):
            return None
        return Arrival(self._server.clock_ns, self.left.popleft() if self.left else b"")

    def _pass(self, gap_ns: int, deadline_ns: int) -> bool:
        self._server.clock_ns = min(self._server.clock_ns + gap_ns, deadline_ns)
        return self._server.clock_ns < deadline_ns
