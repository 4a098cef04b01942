"""A transport that plays a script instead of an engine: for tests of sessions, without processes or time."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from harness.drivers.base import Arrival
from harness.drivers.stderr_log import StderrLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Out:
    """Bytes on stdout at a moment of the script's clock; no bytes are the end of it.

    ``early`` ones are there before anybody asks for more.
    """

    data: bytes
    at_ns: int = 0
    early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Err:
    """Bytes on stderr; ``late`` ones are there only for a caller that waits."""

    data: bytes
    late: bool = False


class ScriptedTransport:
    """Plays steps in order. Waiting for more than the script holds takes the clock to the deadline."""

    def __init__(self, log: StderrLog, steps: Iterable[Out | Err], *, exit_status: int | None = 0) -> None:
        self.sent = b""
        self.interrupts = 0
        self.killed = False
        self._log = log
        self._steps = deque(steps)
        self._exit_status = exit_status
        self._clock_ns = 0
        self._ended = False

    def send(self, data: bytes) -> None:
        """Keep the bytes for the test to look at."""
        self.sent += data

    def receive(self, deadline_ns: int) -> Arrival | None:
        """Play stderr up to the next output and return that."""
        while self._steps:
            step = self._steps.popleft()
            if isinstance(step, Out):
                self._clock_ns = max(self._clock_ns, step.at_ns)
                return Arrival(self._clock_ns, step.data)
            self._log.feed(step.data)
        self._clock_ns = deadline_ns
        return None

    def wait_stderr(self, deadline_ns: int) -> bool:
        """Play the next step if it is stderr."""
        if self._steps and isinstance(self._steps[0], Err):
            self._feed_first()
            return True
        self._clock_ns = deadline_ns
        return False

    def drain_stderr(self) -> None:
        """Play all stderr that is there without waiting."""
        while self._steps and isinstance(self._steps[0], Err) and not self._steps[0].late:
            self._feed_first()

    def take_unread(self) -> bytes:
        """Return output that is there before its time; all that is left once the engine was ended."""
        unread = b""
        while self._steps and isinstance(step := self._steps[0], Out) and (step.early or self._ended):
            unread += step.data
            self._steps.popleft()
        return unread

    def interrupt(self) -> None:
        """Count the signal."""
        self.interrupts += 1

    def end(self, deadline_ns: int) -> int | None:
        """Return the script's exit status, or run into the deadline."""
        self._ended = True
        if self._exit_status is None:
            self._clock_ns = deadline_ns
        return self._exit_status

    def kill(self) -> int | None:
        """Note that it was killed."""
        self.killed = True
        return self._exit_status

    def now_ns(self) -> int:
        """Read the script's clock."""
        return self._clock_ns

    def _feed_first(self) -> None:
        step = self._steps.popleft()
        self._log.feed(step.data)
