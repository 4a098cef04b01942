"""The engine's command line on a terminal: what `coli chat` writes to the screen, and what is typed into it.

Its screen is made for people: boxes, colours, a spinner that is overwritten. With COLI_RAW=1 the answer
itself is written as it is, indented by two blanks, so its exact bytes come back by taking the rest away. The
terminal must not translate line ends.
"""

import re
from dataclasses import replace
from enum import Enum, auto
from typing import ClassVar, Final

from .counts import Stat
from .errors import LocalProtocolError, RemoteProtocolError
from .events import Attached, Banner, Closed, Quit, SavedConversation, ScreenReply, Text, TurnEnd
from .limits import DEFAULT_LIMITS, Limits
from .reader import EventReader, Pause

# Lines that the command line takes as commands, not as something to answer.
COMMANDS = frozenset({b":q", b":quit", b"exit", b":reset", b":more", b":piu", ":più".encode(), b":continua"})
RESET_LINE = b":reset\n"
QUIT_LINE = b":q\n"
INDENT = b"  "
ENGINE_READY = b"\x01\x01READY"


def _screen(pattern: str) -> re.Pattern[bytes]:
    """Compile a pattern in which ``@`` stands for colours, which an answer is not expected to hold."""
    return re.compile(pattern.encode().replace(b"@", rb"(?:\x1b\[[0-9;?]*[A-Za-z])+"))


CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")
PROMPT = _screen("\n?  @╭(?:─)+╮@\n  @│@ @›@ ")
EDGE = _screen("  @╭(?:─)+╮@")
ANSWER_HEAD = _screen("╯@\n\n  @◆ colibri@\n")
BOX_ROW = _screen("│@ (?:@›@| ) ([^\n]*?) *@│@\n")
FOOTER = _screen(
    "\r  @└─ ([0-9]+) tok · ([0-9.]+) tok/s · hit ([0-9]+)% · RSS ([0-9.]+) GB · [0-9]+s[^\n]*@\n"
)
AT_CAP = _screen("  @…stopped at --ngen ")
TERMINATED = _screen(r"\n  @\[engine terminated: ([^\n\]]*)\]@\n")
INTERRUPTED = _screen("\n  @interrupted@\n")
SAVED = _screen("  @↺ resuming a saved conversation: ([0-9]+) tokens")
ATTACHED = _screen("  @✦ attached@ @to ([^ ]+)")
CLEARED = _screen("  @✦ memory cleared@\n")
# What is written over, or between, the pieces of an answer and is none of it. The engine ends an answer with
# a newline of its own, and the spinner's place is cleared behind it.
BESIDE = (
    re.compile(rb"\r(?:  \x1b[^\r\n]*?)?\x1b\[K"),
    re.compile(rb"\n  (?=\r\x1b\[K)"),
    _screen("\n  @⏹ stopping[^\n]*@\n"),
    _screen("  @⏹ interrupted@\n"),
)
# The beginning of any of the above that more bytes may complete.
_UNFINISHED = re.compile(
    rb"\r(?: {0,2}|\x1b\[?|  \x1b[^\r\n]*)\Z"
    rb"|\n(?: {0,2}|  \r(?:\x1b\[?)?|  \x1b[^\n]*(?:\n {0,2}(?:\x1b[^\n]*)?)?)\Z"
    rb"|  (?:\x1b[^\n]*)?\Z"
)
_PLAIN = re.compile(rb"[^\r\n]+")
# A style that opens what is no control sequence after all; none of ours is as long.
MAX_UNFINISHED_BYTES: Final = 4096
# Of the screen, for the message of an error.
MAX_SHOWN_BYTES: Final = 4096


class _Phase(Enum):
    STARTING = auto()
    IDLE = auto()
    ASKED = auto()
    ANSWERING = auto()
    ENDING = auto()
    RESETTING = auto()
    LEAVING = auto()


class CliClient(EventReader[ScreenReply]):
    """Our end of `coli chat`: `encode_*` returns what to type, `events` yields the answer and its end."""

    protocol = "cli"

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(limits=limits)
        self._phase = _Phase.STARTING
        self._pending = b""
        self._shown = b""
        self._typed = b""
        self._indented = False
        self._stat = _EMPTY_STAT

    @property
    def ready(self) -> bool:
        """True from the first prompt until the stream ends or breaks: only then can anything be typed."""
        return self._phase is not _Phase.STARTING and self._error is None and not self._closed

    @property
    def idle(self) -> bool:
        """True while a line can be typed."""
        return self.ready and self._phase is _Phase.IDLE

    def encode_line(self, text: bytes) -> bytes:
        """Type a line.

        Raises:
            LocalProtocolError: the line cannot be typed, or would not be asked for an answer.
        """
        if any(byte < 0x20 or byte == 0x7F for byte in text):
            raise LocalProtocolError("a typed line cannot hold control characters")
        if not text.strip() or text in COMMANDS:
            raise LocalProtocolError(f"the command line gives no answer to the line {text.decode()!r}")
        if len(text) > self._limits.max_chat_line_bytes:
            limit = self._limits.max_chat_line_bytes
            raise LocalProtocolError(f"a typed line of {len(text)} bytes, at most {limit} are allowed")
        self._begin(_Phase.ASKED)
        self._typed, self._indented, self._stat = text, False, _EMPTY_STAT
        return text + b"\n"

    def encode_prompt(
        self,
        payload: bytes,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        slot: int | None = None,
    ) -> bytes:
        """Refuse: nothing but typed lines goes in. Raises LocalProtocolError."""
        where = "" if slot is None else f" for slot {slot}"
        asked = f"{len(payload)} bytes{where}, {max_tokens} tokens at {temperature:g}, top-p {top_p:g}"
        raise LocalProtocolError(f"the command line takes no exact prompt ({asked}), only typed lines")

    def encode_reset(self) -> bytes:
        """Forget the context; a TurnEnd says when it has."""
        self._begin(_Phase.RESETTING)
        self._stat = _EMPTY_STAT
        return RESET_LINE

    def encode_quit(self) -> bytes:
        """Leave; what the command line says on its way out is of no interest."""
        self._begin(_Phase.LEAVING)
        return QUIT_LINE

    def screen_tail(self) -> str:
        """Return the last of what was shown, without control sequences."""
        return _decode(CONTROL_SEQUENCE.sub(b"", self._shown))

    def _begin(self, phase: _Phase) -> None:
        if not self.idle:
            raise LocalProtocolError("nothing can be typed: no prompt on the screen")
        self._phase = phase

    def _step(self) -> ScreenReply | Pause:
        fresh = self._stream.take_rest()
        self._pending += fresh
        self._shown = (self._shown + fresh)[-MAX_SHOWN_BYTES:]
        if terminated := TERMINATED.search(self._pending):
            return self._quit(f"engine terminated: {_decode(terminated[1])}")
        event = self._STEPS[self._phase](self)
        return Pause.NEED_DATA if event is None else event

    def _end(self) -> ScreenReply | Closed:
        return Closed()

    def _read_start(self) -> ScreenReply | Pause | None:
        if ENGINE_READY in self._pending:
            raise self._fault("an engine's READY block where the prompt of its command line belongs")
        if found := PROMPT.match(self._pending):
            self._phase = _Phase.IDLE
            self._pending = self._pending[found.end() :]
            return Pause.AGAIN
        if self._stream.offset > self._limits.max_banner_bytes:
            raise self._fault(f"no prompt within {self._limits.max_banner_bytes} bytes")
        line, newline, rest = self._pending.partition(b"\n")
        # The upper edge of a box may be the first line of the prompt.
        edge = EDGE.search(line) and b"\n" not in rest and len(rest) < MAX_UNFINISHED_BYTES
        if not newline or edge:
            return None
        self._pending = rest
        return _read_banner(line) or Pause.AGAIN

    def _read_idle(self) -> ScreenReply | Pause | None:
        if INTERRUPTED.search(self._pending):
            return self._quit("interrupted")
        if self._pending.strip():
            raise self._fault("text on the screen while nothing was asked for")
        return None

    def _read_echo(self) -> ScreenReply | Pause | None:
        head = ANSWER_HEAD.search(self._pending)
        if head is None:
            if PROMPT.search(self._pending):
                raise self._fault("a line was typed, and the command line asks for the next one")
            return None
        read = b"".join(row[1] for row in BOX_ROW.finditer(self._pending[: head.end()]))
        # The box wraps at blanks, so it shows where words were lost and not how they were spaced.
        if read and read.split() != self._typed.split() and b"".join(read.split()) != _squeeze(self._typed):
            raise self._fault(f"the command line read another line than was typed: {_decode(read)!r}")
        self._pending = self._pending[head.end() :]
        self._phase = _Phase.ANSWERING
        return Pause.AGAIN

    def _read_answer(self) -> ScreenReply | Pause | None:
        pending = self._pending
        if found := FOOTER.match(pending):
            self._stat = _build_stat(found)
            self._phase = _Phase.ENDING
            self._pending = pending[found.end() :]
            return Pause.AGAIN
        if found := PROMPT.match(pending):
            return self._finish(found.end())
        if INTERRUPTED.match(pending):
            return self._quit("interrupted")
        if beside := next(filter(None, (pattern.match(pending) for pattern in BESIDE)), None):
            self._pending = pending[beside.end() :]
            return Pause.AGAIN
        if not pending or (_UNFINISHED.match(pending) and len(pending) <= MAX_UNFINISHED_BYTES):
            return None
        return self._read_text()

    def _read_text(self) -> ScreenReply | Pause | None:
        """Take text up to the next line end, which stands for itself and two blanks of indentation."""
        pending = self._pending
        if not self._indented:
            if len(pending) < len(INDENT) and INDENT.startswith(pending):
                return None
            if not pending.startswith(INDENT):
                raise self._fault("an answer that is not indented; is COLI_RAW set to 1?")
            self._pending, self._indented = pending[len(INDENT) :], True
            return Pause.AGAIN
        if plain := _PLAIN.match(pending):
            return self._take(plain.end(), Text(data=plain[0]))
        if pending.startswith(b"\n"):
            if not pending.startswith(b"\n" + INDENT):
                raise self._fault("a line of the answer that is not indented; is COLI_RAW set to 1?")
            return self._take(1 + len(INDENT), Text(data=b"\n"))
        return self._take(1, Text(data=pending[:1]))

    def _read_ending(self) -> ScreenReply | Pause | None:
        found = PROMPT.search(self._pending)
        if found is None:
            return None
        if AT_CAP.search(self._pending, 0, found.start()):
            self._stat = replace(self._stat, length_limited=True)
        return self._finish(found.end())

    def _read_reset(self) -> ScreenReply | Pause | None:
        found = PROMPT.search(self._pending)
        if found is None:
            return None
        if not CLEARED.search(self._pending, 0, found.end()):
            raise self._fault("the command line does not say that it cleared its memory")
        return self._finish(found.end())

    def _read_farewell(self) -> None:
        self._pending = b""

    def _finish(self, end: int) -> TurnEnd:
        self._phase = _Phase.IDLE
        self._pending = self._pending[end:]
        return TurnEnd(stat=self._stat, newline=True)

    def _take(self, end: int, event: ScreenReply) -> ScreenReply:
        self._pending = self._pending[end:]
        return event

    def _quit(self, reason: str) -> Quit:
        self._closed = True
        return Quit(reason=reason)

    def _fault(self, message: str) -> RemoteProtocolError:
        return RemoteProtocolError(message, offset=self._stream.offset, excerpt=self._pending[-64:])

    _STEPS: ClassVar = {
        _Phase.STARTING: _read_start,
        _Phase.IDLE: _read_idle,
        _Phase.ASKED: _read_echo,
        _Phase.ANSWERING: _read_answer,
        _Phase.ENDING: _read_ending,
        _Phase.RESETTING: _read_reset,
        _Phase.LEAVING: _read_farewell,
    }


_EMPTY_STAT = Stat(emitted_tokens=0, tokens_per_s=0.0, hit_percent=0.0, rss_gb=0.0, length_limited=False)


def _build_stat(found: re.Match[bytes]) -> Stat:
    return Stat(
        emitted_tokens=int(found[1]),
        tokens_per_s=float(found[2]),
        hit_percent=float(found[3]),
        rss_gb=float(found[4]),
        length_limited=False,
    )


def _read_banner(line: bytes) -> ScreenReply | None:
    if found := ATTACHED.search(line):
        return Attached(url=_decode(found[1]))
    if found := SAVED.search(line):
        return SavedConversation(tokens=int(found[1]))
    text = _decode(CONTROL_SEQUENCE.sub(b"", BESIDE[0].sub(b"", line))).strip()
    return Banner(line=text) if text else None


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _squeeze(text: bytes) -> bytes:
    return b"".join(text.split())
