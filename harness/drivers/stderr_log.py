"""What an engine writes to stderr: copied to a file, its end kept in memory, its known lines as events."""

from collections import deque
from typing import BinaryIO

from engine_bindings.errors import StorageError
from engine_bindings.wire.stderr_lines import StderrEvent, parse_stderr_line

# Enough for the last words of a crash with its stack; the whole text is in the file.
TAIL_LIMIT_BYTES = 64 << 10
# An engine that floods stderr must not fill the disk of a night's run. Its beginning and its end tell most.
FILE_LIMIT_BYTES = 64 << 20
FILE_TAIL_BYTES = 1 << 20
# No line that we read is longer; the rest of a longer one is skipped.
LINE_LIMIT_BYTES = 16 << 10
# A turn gives a handful of events; the oldest go first if nobody takes them.
EVENT_LIMIT = 10_000


class StderrLog:
    """Takes stderr as it arrives. Nothing in it grows without a bound."""

    def __init__(self, file: BinaryIO, *, file_limit_bytes: int = FILE_LIMIT_BYTES) -> None:
        self._file = file
        self._is_broken = False
        self._held_limit_bytes = min(FILE_TAIL_BYTES, file_limit_bytes // 2)
        self._room_bytes = file_limit_bytes - self._held_limit_bytes
        self._held = bytearray()
        self._dropped_bytes = 0
        self._tail = bytearray()
        self._line = bytearray()
        self._events: deque[StderrEvent] = deque(maxlen=EVENT_LIMIT)

    def close(self) -> None:
        """Write the end of a long stderr behind its beginning, and what was left out between them."""
        end = bytes(self._held)
        if self._dropped_bytes:
            end = f"\n[coli-ab: {self._dropped_bytes:,} bytes left out here]\n".encode() + end
        self._held.clear()
        self._dropped_bytes = self._room_bytes = self._held_limit_bytes = 0
        self._write(end)

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            StorageError: the file does not take them; said once, what comes later is kept out of the file.
        """
        self._keep(data)
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._extend_line(piece)
            self._end_line()
        self._extend_line(rest)

    def add_remark(self, remark: str) -> None:
        """Take a line of our own. A line that the engine has only begun goes on behind it.

        Raises:
            StorageError: as for ``feed``.
        """
        break_off = "\n" if self._line else ""
        self._keep(f"{break_off}{remark}\n".encode("utf-8", "replace"))

    def take_events(self) -> tuple[StderrEvent, ...]:
        """Return the events read since the last call and forget them."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def tail_lines(self, count: int) -> tuple[str, ...]:
        """Return the last ``count`` lines, the newest last."""
        return tuple(self._tail.decode(errors="replace").splitlines()[-count:])

    def _keep(self, data: bytes) -> None:
        self._copy(data)
        self._tail += data
        if len(self._tail) > TAIL_LIMIT_BYTES:
            del self._tail[:-TAIL_LIMIT_BYTES]

    def _copy(self, data: bytes) -> None:
        """Write to the file while it has room; of what comes later the end is held until ``close``."""
        if written := data[: self._room_bytes]:
            self._room_bytes -= len(written)
            self._write(written)
        self._held += data[len(written) :]
        if (surplus := len(self._held) - self._held_limit_bytes) > 0:
            del self._held[:surplus]
            self._dropped_bytes += surplus

    def _write(self, data: bytes) -> None:
        if self._is_broken:
            return
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self._is_broken = True
            name = getattr(self._file, "name", "the engine's stderr")
            raise StorageError(
                f"cannot write {name}: {error.strerror or error}",
                hint="the cells before are on disk; make room, then coli-ab compare --resume RUN",
            ) from error

    def _extend_line(self, piece: bytes) -> None:
        self._line += piece[: LINE_LIMIT_BYTES - len(self._line)]

    def _end_line(self) -> None:
        event = parse_stderr_line(self._line.decode(errors="replace"))
        self._line.clear()
        if event is not None:
            self._events.append(event)
