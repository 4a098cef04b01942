"""What an engine writes to stderr: copied to a file, its end kept in memory, its known lines as events."""

from collections import deque
from typing import BinaryIO

from engine_bindings.wire.stderr_lines import StderrEvent, parse_stderr_line

# Enough for the last words of a crash with its stack; the whole text is in the file.
TAIL_LIMIT_BYTES = 64 << 10
# An engine that floods stderr must not fill the disk of a night's run.
FILE_LIMIT_BYTES = 64 << 20
# No line that we read is longer; the rest of a longer one is skipped.
LINE_LIMIT_BYTES = 16 << 10
# A turn gives a handful of events; the oldest go first if nobody takes them.
EVENT_LIMIT = 10_000


class StderrLog:
    """Takes stderr as it arrives. Nothing in it grows without a bound."""

    def __init__(self, file: BinaryIO, *, file_limit_bytes: int = FILE_LIMIT_BYTES) -> None:
        self._file = file
        self._room_bytes = file_limit_bytes
        self._file_limit_bytes = file_limit_bytes
        self._tail = bytearray()
        self._line = bytearray()
        self._events: deque[StderrEvent] = deque(maxlen=EVENT_LIMIT)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._copy(data)
        self._tail += data
        if len(self._tail) > TAIL_LIMIT_BYTES:
            del self._tail[:-TAIL_LIMIT_BYTES]
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._extend_line(piece)
            self._end_line()
        self._extend_line(rest)

    def take_events(self) -> tuple[StderrEvent, ...]:
        """Return the events read since the last call and forget them."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def tail_lines(self, count: int) -> tuple[str, ...]:
        """Return the last ``count`` lines, the newest last."""
        return tuple(self._tail.decode(errors="replace").splitlines()[-count:])

    def _copy(self, data: bytes) -> None:
        if self._room_bytes <= 0:
            return
        self._file.write(data[: self._room_bytes])
        self._room_bytes -= len(data)
        if self._room_bytes <= 0:
            self._file.write(
                f"\n[coli-ab: the rest after {self._file_limit_bytes} bytes is not kept]\n".encode()
            )
        self._file.flush()

    def _extend_line(self, piece: bytes) -> None:
        self._line += piece[: LINE_LIMIT_BYTES - len(self._line)]

    def _end_line(self) -> None:
        event = parse_stderr_line(self._line.decode(errors="replace"))
        self._line.clear()
        if event is not None:
            self._events.append(event)
