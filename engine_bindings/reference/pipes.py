"""The process's edges: reading commands without blocking a running turn, writing whole, and soft signals."""

import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Protocol

READ_BYTES = 1 << 16
Writer = Callable[[bytes], None]


class Source(Protocol):
    """Where command bytes come from."""

    def read(self, *, wait: bool) -> bytes | None:
        """Return what is there, b"" at the end, None when nothing is there or a signal ended the wait."""
        ...


class StopFlags:
    """What the loops look at between steps: end the running turns, end the process."""

    def __init__(self) -> None:
        self.interrupted = False
        self.terminated = False

    def take_interrupt(self) -> bool:
        """Return whether an interrupt came since the last call."""
        came, self.interrupted = self.interrupted, False
        return came


class Signals(StopFlags):
    """Flags set by signals: SIGINT ends the current turns, SIGTERM also the process."""

    def __init__(self) -> None:
        super().__init__()
        self.wakeup_fd, self._write_fd = os.pipe()

    def install(self) -> None:
        """Take over SIGINT and SIGTERM; either also wakes a waiting read."""
        os.set_blocking(self._write_fd, False)
        os.set_blocking(self.wakeup_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._interrupt)
        signal.signal(signal.SIGTERM, self._terminate)

    def close(self) -> None:
        """Close the wake-up pipe."""
        os.close(self.wakeup_fd)
        os.close(self._write_fd)

    def drain(self) -> None:
        """Empty the wake-up pipe."""
        try:
            while os.read(self.wakeup_fd, 64):
                pass
        except BlockingIOError:
            return

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupted = True

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupted = self.terminated = True


class Input:
    """Command bytes from a file descriptor."""

    def __init__(self, fd: int, signals: Signals) -> None:
        self.fd = fd
        self.signals = signals

    def read(self, *, wait: bool) -> bytes | None:
        """Return what is there, b"" at the end, None when nothing is there or a signal ended the wait."""
        watched = [self.fd, self.signals.wakeup_fd]
        ready, _, _ = select.select(watched, [], [], None if wait else 0)
        if self.signals.wakeup_fd in ready:
            self.signals.drain()
            if wait:
                return None
        return os.read(self.fd, READ_BYTES) if self.fd in ready else None


class Output:
    """Bytes to a file descriptor, each call written whole before it returns."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, data: bytes) -> None:
        """Write everything; raise BrokenPipeError when nobody reads any more."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]
