"""One engine process: started in its own group, read and written in one loop, and always ended as a group."""

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol, Self

from engine_bindings.binding import Launch, build_environment
from engine_bindings.errors import EngineStartError
from harness.drivers.base import Arrival
from harness.drivers.guard import ProcessGuard
from harness.drivers.stderr_log import StderrLog

# One read; a pipe holds 64 KiB by default.
READ_BYTES = 64 << 10
# Long waits are cut into pieces of this length to notice an engine whose children hold its pipes open.
EXIT_CHECK_S = 0.5
# The most that a pipe can hold: what was written before the end of a turn is surely within it.
DRAIN_READS = 16
# Unread pieces of stdout that are held while only stderr is waited for.
HELD_ARRIVALS = 64
# Of what an engine writes after its last turn: enough to show what it is.
UNREAD_LIMIT_BYTES = 64 << 10
# A killed process is gone at once unless the kernel holds it in a device; then it is left to the kernel.
KILL_WAIT_S = 5.0


class Child(Protocol):
    """A process that leads a group of its own."""

    @property
    def pid(self) -> int:
        """Its id, and that of its group."""

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status; subprocess.TimeoutExpired after ``timeout`` seconds."""


class EngineProcess:
    """The pipes of one engine. Single-threaded: bytes move only while one of the methods runs."""

    def __init__(
        self,
        process: Child,
        pipes: "tuple[IO[bytes] | None, IO[bytes] | None, IO[bytes] | None]",
        *,
        log: StderrLog,
        guard: ProcessGuard,
        started_ns: int = 0,
    ) -> None:
        self._log = log
        self._started_ns = started_ns
        self._process = process
        self._guard = guard
        self._selector = selectors.DefaultSelector()
        self._outgoing = bytearray()
        self._arrivals: deque[Arrival] = deque()
        self._unread = bytearray()
        self._stderr_reads = 0
        self._pipes = pipes
        self._stdin, self._stdout, self._stderr = map(_nonblocking, pipes)
        self._stdin_open = self._stdout_open = True
        self._stdin_watched = False
        self._selector.register(self._stdout, selectors.EVENT_READ, self._read_stdout)
        self._selector.register(self._stderr, selectors.EVENT_READ, self._read_stderr)

    @classmethod
    def prepare(cls, model_dir: Path) -> None:
        """Put into the model directory what the process needs there besides the model: nothing."""

    @classmethod
    def start(
        cls,
        launch: Launch,
        *,
        inherited: Mapping[str, str],
        model_dir: Path,
        log: StderrLog,
        guard: ProcessGuard,
    ) -> Self:
        """Start the engine on a model directory. Raises EngineStartError when the system cannot run it."""
        pipe = subprocess.PIPE
        started_ns = time.monotonic_ns()
        try:
            process = subprocess.Popen(
                launch.argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                env=build_process_environment(launch, inherited, model_dir),
                start_new_session=True,
            )
        except OSError as error:
            raise EngineStartError(
                f"cannot run {launch.argv[0]!r}: {error.strerror}", hint="check the path after --engine"
            ) from error
        guard.watch(process.pid, str(model_dir))
        pipes = (process.stdin, process.stdout, process.stderr)
        return cls(process, pipes, log=log, guard=guard, started_ns=started_ns)

    def now_ns(self) -> int:
        """Return the time since the process was started, on the monotonic clock."""
        return time.monotonic_ns() - self._started_ns

    def send(self, data: bytes) -> None:
        """Queue bytes for stdin and write what fits now; an engine that is gone shows by its output's end."""
        self._outgoing += data
        self._write_stdin()

    def receive(self, deadline_ns: int) -> Arrival | None:
        """Return the next bytes of stdout (none at its end), or None when the deadline passes first."""
        while not self._arrivals:
            if not self._stdout_open:
                return Arrival(self.now_ns(), b"")
            remaining_s = (deadline_ns - self.now_ns()) / 1e9
            if not self._pump(remaining_s):
                if remaining_s <= 0:
                    return None
                if self._process.poll() is not None:
                    self._stdout_open = False
        return self._arrivals.popleft()

    def wait_stderr(self, deadline_ns: int) -> bool:
        """Wait for more stderr and return True, or False when the deadline passes or stderr has ended."""
        before = self._stderr_reads
        while self._stderr_reads == before:
            remaining_s = (deadline_ns - self.now_ns()) / 1e9
            moved = self._pump(remaining_s)
            if not moved and (remaining_s <= 0 or self._process.poll() is not None):
                return False
            if len(self._arrivals) > HELD_ARRIVALS or not self._stdout_open:
                return False
        return True

    def drain_stderr(self) -> None:
        """Take what stderr holds now, without waiting and without reading for ever."""
        for _ in range(DRAIN_READS):
            before = self._stderr_reads
            self._pump(0)
            if self._stderr_reads == before:
                return

    def take_unread(self) -> bytes:
        """Take the bytes of stdout that nobody received; a flood behind the last turn is cut."""
        unread, self._unread = self._unread, bytearray()
        while self._arrivals and self._arrivals[0].data:
            unread += self._arrivals.popleft().data
        return bytes(unread)

    def interrupt(self) -> None:
        """Send SIGINT to the group, so that a wrapper's child gets it too."""
        self._signal(signal.SIGINT)

    def end(self, deadline_ns: int) -> int | None:
        """Close stdin, read what is still written, and return the exit status, or None past the deadline."""
        self._outgoing.clear()
        self._close_stdin()
        while self._stdout_open:
            arrival = self.receive(deadline_ns)
            if arrival is None:
                return None
            self._unread += arrival.data[: UNREAD_LIMIT_BYTES - len(self._unread)]
        try:
            status = self._process.wait(timeout=max(0.0, (deadline_ns - self.now_ns()) / 1e9))
        except subprocess.TimeoutExpired:
            return None
        self.kill()
        return status

    def kill(self) -> int | None:
        """End the whole group at once and let go of the pipes. Safe to call again."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=KILL_WAIT_S)
        if self._selector.get_map() is not None:
            try:
                self.drain_stderr()
            finally:
                self._selector.close()
                for pipe in self._pipes:
                    _close(pipe)
                self._guard.release(self._process.pid)
        return self._process.poll()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _pump(self, timeout_s: float) -> bool:
        """Move bytes once, waiting at most ``timeout_s`` or one piece of it; say whether anything moved."""
        ready = self._selector.select(min(max(timeout_s, 0), EXIT_CHECK_S))
        for key, _ in ready:
            key.data()
        return bool(ready)

    def _read_stdout(self) -> None:
        data = _read(self._stdout)
        self._arrivals.append(Arrival(self.now_ns(), data))
        if not data:
            self._stdout_open = False
            self._selector.unregister(self._stdout)

    def _read_stderr(self) -> None:
        data = os.read(self._stderr, READ_BYTES)
        self._stderr_reads += 1
        if data:
            self._log.feed(data)
        else:
            self._selector.unregister(self._stderr)

    def _write_stdin(self) -> None:
        try:
            while self._outgoing and self._stdin_open:
                written = os.write(self._stdin, self._outgoing[:READ_BYTES])
                del self._outgoing[:written]
        except BlockingIOError:
            self._watch_stdin(True)
            return
        except BrokenPipeError:
            self._outgoing.clear()
        self._watch_stdin(False)

    def _watch_stdin(self, wanted: bool) -> None:
        if wanted and not self._stdin_watched:
            self._selector.register(self._stdin, selectors.EVENT_WRITE, self._write_stdin)
        elif self._stdin_watched and not wanted:
            self._selector.unregister(self._stdin)
        self._stdin_watched = wanted

    def _close_stdin(self) -> None:
        self._watch_stdin(False)
        if self._stdin_open:
            self._stdin_open = False
            _close(self._pipes[0])


def build_process_environment(
    launch: Launch, inherited: Mapping[str, str], model_dir: Path
) -> dict[str, str]:
    """Return the environment of an engine that finds its model, and files of its own, in ``model_dir``."""
    environment = build_environment(inherited, launch.pins) | {launch.model_variable: str(model_dir)}
    files = (*launch.grammar_variables, *(script.variable for script in launch.scripts))
    return environment | {name: str(model_dir / environment[name]) for name in files}


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError as error:
        # A terminal whose other end is closed says so with an error.
        if error.errno != errno.EIO:
            raise
        return b""


def _nonblocking(pipe: IO[bytes] | None) -> int:
    assert pipe is not None, "all three pipes were asked for"  # noqa: S101
    descriptor = pipe.fileno()
    os.set_blocking(descriptor, False)
    return descriptor


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()
