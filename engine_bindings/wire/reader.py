"""The parts that all four protocol readers share: a receive buffer and the one gate that every event passes.

A reader is fed with `receive_data` and drained with `events`. What it yields does not depend on how the bytes
were cut into pieces.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum, auto
from typing import Generic, TypeVar

from .errors import MAX_EXCERPT_BYTES, LocalProtocolError, RemoteProtocolError
from .events import Closed
from .limits import DEFAULT_LIMITS, Limits

EventT = TypeVar("EventT")
LINE_END = re.compile(rb"[\r\n]")


class Pause(Enum):
    """What a reading step says when it has no event."""

    AGAIN = auto()
    """Something was read; the next step can go on."""
    NEED_DATA = auto()
    """Nothing was read; more bytes are needed."""


class ReceiveBuffer:
    """Bytes that arrived and were not read yet, as one `bytes` with a cursor.

    Slicing `bytes` is the cheapest way to take a frame. Pieces are joined as they arrive, except while a
    reader waits for a payload: then they are parked and joined once, so that a payload costs linear time.
    """

    __slots__ = ("_base", "_parked", "_parked_bytes", "_searched", "_wanted_bytes", "cursor", "data")

    def __init__(self) -> None:
        self.data = b""
        self.cursor = 0
        self._base = 0
        self._parked: list[bytes] = []
        self._parked_bytes = 0
        self._searched = 0
        self._wanted_bytes = 0

    def __len__(self) -> int:
        return len(self.data) - self.cursor + self._parked_bytes

    @property
    def starved(self) -> bool:
        """True while fewer bytes are here than a reader has asked for."""
        return self._wanted_bytes > 0

    @property
    def offset(self) -> int:
        """Position of the cursor, in bytes from the start of the stream."""
        return self._base + self.cursor

    def feed(self, piece: bytes) -> None:
        """Append bytes."""
        if self.cursor == len(self.data) and not self._wanted_bytes:
            self._base += self.cursor
            self._searched = self.cursor = 0
            self.data = piece
            return
        self._parked.append(piece)
        self._parked_bytes += len(piece)
        if len(self) >= self._wanted_bytes:
            self._join()

    def _join(self) -> None:
        self.data = b"".join((self.data[self.cursor :], *self._parked))
        self._searched = max(0, self._searched - self.cursor)
        self._base += self.cursor
        self.cursor = 0
        self._parked.clear()
        self._parked_bytes = 0
        self._wanted_bytes = 0

    def take(self, count: int) -> bytes | None:
        """Take the next `count` bytes, or None until so many have come."""
        if len(self) < count:
            self._wanted_bytes = count
            return None
        if self._parked:
            self._join()
        end = self.cursor + count
        taken = self.data[self.cursor : end]
        self.cursor = end
        return taken

    def take_line(self, max_bytes: int) -> bytes | None:
        """Take the next line without its newline, or None until one is complete.

        Raises:
            RemoteProtocolError: the line is longer than `max_bytes`.
        """
        if self._parked:
            self._join()
        end = self.data.find(b"\n", max(self.cursor, self._searched))
        if end < 0:
            self._searched = end = len(self.data)
            if end - self.cursor <= max_bytes:
                return None
        if end - self.cursor > max_bytes:
            raise self.error(f"line longer than {max_bytes} bytes")
        line = self.data[self.cursor : end]
        self.cursor = end + 1
        return line

    def take_any_line(self, max_bytes: int) -> tuple[bytes, bytes] | None:
        """Take the next line and the byte that ended it, LF or CR, or None until one is complete.

        Raises:
            RemoteProtocolError: the line is longer than `max_bytes`.
        """
        if self._parked:
            self._join()
        found = LINE_END.search(self.data, max(self.cursor, self._searched))
        end = found.start() if found else len(self.data)
        if end - self.cursor > max_bytes:
            raise self.error(f"line longer than {max_bytes} bytes")
        if found is None:
            self._searched = end
            return None
        line = self.data[self.cursor : end]
        self.cursor = end + 1
        return line, found[0]

    def skip(self, prefix: bytes) -> bool | None:
        """Skip `prefix` and return True, or return False where other bytes are; None: too few have come."""
        if self._parked:
            self._join()
        head = self.data[self.cursor : self.cursor + len(prefix)]
        if head == prefix:
            self.cursor += len(prefix)
            return True
        return None if prefix.startswith(head) else False

    def take_rest(self) -> bytes:
        """Take everything that is left, possibly nothing."""
        self._join()
        taken = self.data
        self.cursor = len(taken)
        return taken

    def give_back(self, count: int, *, until: int = 0) -> None:
        """Put the last `count` bytes that were taken back, and ask for `until` bytes from there on."""
        self.cursor -= count
        self._wanted_bytes = until

    def error(self, message: str) -> RemoteProtocolError:
        """Make an error about the bytes at the cursor."""
        excerpt = self.data[self.cursor : self.cursor + MAX_EXCERPT_BYTES]
        return RemoteProtocolError(message, offset=self.offset, excerpt=excerpt)


class EventReader(ABC, Generic[EventT]):
    """Base of the protocol readers: bytes in, events out.

    A subclass reads one item in `_step` and says in `_end` whether the stream may end where it did.
    """

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._stream = ReceiveBuffer()
        self._ended = False
        self._closed = False
        self._error: RemoteProtocolError | None = None

    def receive_data(self, data: bytes) -> None:
        """Append bytes from the other side; no bytes at all are no bytes, not an end."""
        if self._ended:
            raise LocalProtocolError("receive_data after receive_eof")
        if data and not self._closed and self._error is None:
            self._stream.feed(data)

    def receive_eof(self) -> None:
        """Note that the other side sends no more."""
        self._ended = True

    def events(self) -> Iterator[EventT | Closed]:
        """Yield every event that is complete now; may be called again after more bytes.

        Raises:
            RemoteProtocolError: the bytes after the last event are wrong. Every later call raises it again.
        """
        while (event := self._next_event()) is not None:
            yield event

    def _next_event(self) -> EventT | Closed | None:
        """Be the gate: every event and every error of every reader comes through here."""
        if self._error is not None:
            raise self._error
        try:
            return self._run_steps()
        except RemoteProtocolError as error:
            self._error = error
            self._stream.take_rest()
            raise

    def _run_steps(self) -> EventT | Closed | None:
        while not self._closed:
            result = Pause.NEED_DATA if self._stream.starved else self._step()
            if result is Pause.NEED_DATA:
                if not self._ended:
                    return None
                result = self._end()
            if isinstance(result, Closed):
                self._closed = True
            if not isinstance(result, Pause):
                return result
        return None

    @abstractmethod
    def _step(self) -> EventT | Closed | Pause:
        """Read one item."""

    @abstractmethod
    def _end(self) -> EventT | Closed | Pause:
        """Say what the end means here: an event, Closed, or RemoteProtocolError."""

    def _take_line(self) -> bytes | None:
        return self._stream.take_line(self._limits.max_line_bytes)

    def _line_error(self, message: str, line: bytes) -> RemoteProtocolError:
        """Make an error about the line that was just taken."""
        return RemoteProtocolError(message, offset=self._stream.offset - len(line) - 1, excerpt=line)
