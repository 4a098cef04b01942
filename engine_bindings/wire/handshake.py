"""The start of every engine's output: banner lines, READY, STAT, and the line that proves the protocol.

Chat mode goes on with TIERS, serve mode with HWINFO. Nothing can be sent before that line has been read, so a
client never talks to an engine of the wrong kind.
"""

import re
from abc import abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import ClassVar, TypeVar

from .counts import Hardware, Stat, Tiers
from .errors import LocalProtocolError, WrongProtocol
from .events import Banner, Closed, Note, Protocol, Ready
from .limits import DEFAULT_LIMITS, Limits
from .reader import EventReader, EventT, Pause

READY = b"\x01\x01READY\x01\x01"
KIND = re.compile(rb"[A-Z][A-Z0-9_]{0,31}")
PROOFS: dict[bytes, Protocol] = {b"TIERS": "chat", b"HWINFO": "serve", b"EMAP": "serve"}
ValueT = TypeVar("ValueT")


class _Phase(Enum):
    BANNER = auto()
    STAT = auto()
    PROOF = auto()
    READY = auto()


class EngineReader(EventReader[EventT | Banner | Note | Ready]):
    """Reads up to the proof; a subclass reads on in `_reply_step` and `_reply_end`."""

    protocol: ClassVar[Protocol]

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(limits=limits)
        self._phase = _Phase.BANNER
        self._ready_notes = 0
        self._ready_stat = Stat(emitted_tokens=0, tokens_per_s=0.0, hit_percent=0.0, rss_gb=0.0)

    @property
    def ready(self) -> bool:
        """True from the Ready event until the stream ends or breaks: only then can anything be sent."""
        return self._phase is _Phase.READY and self._error is None and not self._closed

    @abstractmethod
    def _reply_step(self) -> EventT | Note | Pause:
        """Read one item after Ready."""

    @abstractmethod
    def _reply_end(self) -> EventT | Closed:
        """Say what an end after Ready means."""

    def _step(self) -> EventT | Banner | Note | Ready | Pause:
        if self._phase is _Phase.READY:
            return self._reply_step()
        line = self._take_line()
        if line is None:
            return Pause.NEED_DATA
        return self._PHASES[self._phase](self, line)

    def _end(self) -> EventT | Closed:
        if self._phase is _Phase.READY:
            return self._reply_end()
        raise self._stream.error("truncated: the stream ended before the engine was ready")

    def _read_banner(self, line: bytes) -> Banner | Pause:
        if line == READY:
            self._phase = _Phase.STAT
            return Pause.AGAIN
        if self._stream.offset > self._limits.max_banner_bytes:
            raise self._line_error(f"no READY within {self._limits.max_banner_bytes} bytes", line)
        return Banner(line=line.decode("utf-8", "replace"))

    def _read_stat(self, line: bytes) -> Pause:
        self._ready_stat = self._parse(Stat.parse, line)
        self._phase = _Phase.PROOF
        return Pause.AGAIN

    def _read_proof(self, line: bytes) -> Note | Ready:
        kind = self._kind_of(line)
        text = line.decode("utf-8", "replace")
        seen = PROOFS.get(kind)
        if seen is None:
            self._ready_notes += 1
            if self._ready_notes > self._limits.max_ready_notes:
                raise self._line_error("neither TIERS nor HWINFO after READY", line)
            return Note(kind=kind.decode(), line=text)
        if seen != self.protocol:
            offset = self._stream.offset - len(line) - 1
            raise WrongProtocol(expected=self.protocol, seen=seen, line=line, offset=offset)
        self._phase = _Phase.READY
        return Ready(
            protocol=seen,
            stat=self._ready_stat,
            evidence=text,
            hardware=_parse_or_none(Hardware.parse, line),
            tiers=_parse_or_none(Tiers.parse, line),
        )

    def _kind_of(self, line: bytes) -> bytes:
        """Take the first word of a line, which must look like the name of a kind."""
        kind = line.partition(b" ")[0]
        if KIND.fullmatch(kind) is None:
            raise self._line_error("not a line of the protocol", line)
        return kind

    def _parse(self, parse: Callable[[bytes], ValueT], line: bytes) -> ValueT:
        """`parse` the line that was just taken; a ValueError becomes an error at its place."""
        try:
            return parse(line)
        except ValueError as error:
            raise self._line_error(str(error), line) from error

    def _check_ready(self) -> None:
        if not self.ready:
            raise LocalProtocolError(
                "nothing can be sent: the engine is not ready, or its stream ended or broke"
            )

    _PHASES: ClassVar = {
        _Phase.BANNER: _read_banner,
        _Phase.STAT: _read_stat,
        _Phase.PROOF: _read_proof,
    }


def _parse_or_none(parse: Callable[[bytes], ValueT], line: bytes) -> ValueT | None:
    try:
        return parse(line)
    except ValueError:
        return None
