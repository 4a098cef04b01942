"""Server-sent events, the receiving end: bytes in, events out, by the WHATWG rules for event streams.

Lines end with LF, CR or CRLF, and several ``data`` lines make one event. The fields ``id`` and ``retry`` are
for clients that connect again, which we never do; they are skipped like any field that the rules do not know.
"""

from typing import NamedTuple

from .errors import RemoteProtocolError
from .events import Closed
from .limits import MIB, Limits
from .reader import EventReader, Pause

# An event may carry the token ids of a long prompt: 256k of them in decimal take about 2 MiB.
MAX_EVENT_BYTES = 16 * MIB
SSE_LIMITS = Limits(max_line_bytes=MAX_EVENT_BYTES)
BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event; ``name`` is empty where the stream gives none, which means ``message``."""

    data: bytes
    name: str = ""


class SseComment(NamedTuple):
    """A comment line, which servers send to keep a silent connection open."""

    text: bytes


class SseReader(EventReader[SseEvent | SseComment]):
    """Reads one stream.

    Args:
        last_data: data of an event that ends the stream. It counts even if the empty line behind it is
            missing.
        limits: ``max_line_bytes`` bounds a line.
        max_event_bytes: bounds the data lines of one event together.
    """

    def __init__(
        self,
        *,
        last_data: bytes | None = None,
        limits: Limits = SSE_LIMITS,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        super().__init__(limits=limits)
        self._last_data = last_data
        self._max_event_bytes = max_event_bytes
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = ""
        self._pending_skip = BOM

    def _step(self) -> SseEvent | SseComment | Closed | Pause:
        line = self._take_any_line()
        if line is None:
            return Pause.NEED_DATA
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            return SseComment(line[1:].removeprefix(b" "))
        self._take_field(line)
        return Pause.AGAIN

    def _end(self) -> SseEvent | Closed | Pause:
        """Refuse an end inside an event: the rules drop what has come of it, and a part would be lost
        unseen.
        """
        rest = self._stream.take_rest()
        if not self._data and (not rest or rest.startswith(b":") or self._pending_skip.startswith(rest)):
            return Closed()
        self._take_field(rest)
        whole = b"\n".join(self._data)
        if whole == self._last_data:
            self._data = []
            return SseEvent(whole, self._name)
        message = "the stream ended inside an event"
        raise RemoteProtocolError(message, offset=self._stream.offset - len(rest), excerpt=whole or rest)

    def _skip_what_opens(self) -> bool:
        """Skip a byte order mark at the start, and the LF of a CRLF; False while more bytes must tell.

        A line that ends with CR is taken at once, because the LF behind it may come much later.
        """
        if self._pending_skip:
            skipped = self._stream.skip(self._pending_skip)
            if skipped is None:
                return False
            self._pending_skip = b""
        return True

    def _take_any_line(self) -> bytes | None:
        if not self._skip_what_opens():
            return None
        taken = self._stream.take_any_line(self._limits.max_line_bytes)
        if taken is None:
            return None
        line, end = taken
        self._pending_skip = b"\n" if end == b"\r" else b""
        return line

    def _take_field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"data":
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._max_event_bytes:
                raise self._line_error(f"event longer than {self._max_event_bytes} bytes", line)
            self._data.append(value)

    def _dispatch(self) -> SseEvent | Pause:
        """Return the event that an empty line ends; one without data is none."""
        event = SseEvent(b"\n".join(self._data), self._name) if self._data else Pause.AGAIN
        self._data = []
        self._data_bytes = 0
        self._name = ""
        return event
