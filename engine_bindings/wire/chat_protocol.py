"""Chat mode over stdio, both ends: lines and exact prompts in, unframed text up to a sentinel and STAT out.

Replies carry no id: there is one reply for each frame, in order, so both ends count what is outstanding.
"""

import re
from collections import deque
from enum import Enum, auto
from typing import ClassVar

from .counts import Stat, Tiers, parse_count
from .errors import LocalProtocolError
from .events import (
    BadPrompt,
    ChatCommand,
    Closed,
    Line,
    More,
    Prompt,
    Protocol,
    Reset,
    Text,
    TurnEnd,
)
from .handshake import READY, EngineReader
from .limits import DEFAULT_LIMITS, Limits
from .parameters import format_sampling, parse_float, sampling_fault
from .reader import EventReader, Pause

CONTROL = b"\x02"
END = b"\x01\x01END\x01\x01\n"
NEWLINE_END = b"\n" + END
RESET_LINE = b"\x02RESET"
MORE_LINE = b"\x02MORE"
PROMPT_PREFIX = b"\x02PROMPT "


class ReplyKind(Enum):
    """What a reply answers. The engine writes one newline of its own before END after lines and MORE."""

    LINE = auto()
    MORE = auto()
    PROMPT = auto()
    RESET = auto()
    EMPTY_LINE = auto()

    @property
    def ends_with_newline(self) -> bool:
        """True when one newline before END belongs to the protocol and not to the text."""
        return self in {ReplyKind.LINE, ReplyKind.MORE}


class ChatClient(EngineReader[Text | TurnEnd]):
    """Our end of an engine in chat mode.

    `encode_*` returns the bytes to send and counts on one reply; `events` yields Text and TurnEnd for it.
    """

    protocol: ClassVar[Protocol] = "chat"

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(limits=limits)
        self._outstanding: deque[ReplyKind] = deque()
        self._ended_with_newline: bool | None = None

    @property
    def outstanding_replies(self) -> int:
        """Frames sent whose TurnEnd has not been yielded yet."""
        return len(self._outstanding)

    def encode_line(self, text: bytes) -> bytes:
        """Encode an interactive line; an empty one gets an empty reply.

        Raises:
            LocalProtocolError: the text holds a newline or NUL, starts like a command, or is too long.
        """
        if b"\n" in text or b"\0" in text:
            raise LocalProtocolError("an interactive line cannot hold a newline or a NUL byte")
        if text.startswith(CONTROL):
            raise LocalProtocolError("an interactive line cannot start with the byte 0x02 of commands")
        if len(text) > self._limits.max_chat_line_bytes:
            limit = self._limits.max_chat_line_bytes
            raise LocalProtocolError(f"an interactive line of {len(text)} bytes, at most {limit} are allowed")
        return self._send(ReplyKind.LINE if text else ReplyKind.EMPTY_LINE, text + b"\n")

    def encode_prompt(
        self,
        payload: bytes,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        slot: int | None = None,
    ) -> bytes:
        """Encode an exact prompt; without a slot the engine takes slot 0.

        Raises:
            LocalProtocolError: the engine would reject a value, and then read the payload as lines.
        """
        fault = sampling_fault(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        if fault:
            raise LocalProtocolError(fault)
        if len(payload) > self._limits.max_payload_bytes:
            limit = self._limits.max_payload_bytes
            raise LocalProtocolError(f"a prompt of {len(payload)} bytes, at most {limit} are allowed")
        if b"\0" in payload:
            raise LocalProtocolError("a prompt cannot hold a NUL byte")
        if slot is not None and slot < 0:
            raise LocalProtocolError(f"slot {slot} is negative")
        numbers = format_sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        header = f"{len(payload)} {numbers}" + ("" if slot is None else f" {slot}")
        return self._send(ReplyKind.PROMPT, PROMPT_PREFIX + header.encode() + b"\n" + payload + b"\n")

    def encode_reset(self) -> bytes:
        """Forget the context."""
        return self._send(ReplyKind.RESET, RESET_LINE + b"\n")

    def encode_more(self) -> bytes:
        """Continue the last answer."""
        return self._send(ReplyKind.MORE, MORE_LINE + b"\n")

    def _send(self, kind: ReplyKind, frame: bytes) -> bytes:
        self._check_ready()
        self._outstanding.append(kind)
        return frame

    def _reply_step(self) -> Text | TurnEnd | Pause:
        if self._ended_with_newline is None:
            return self._read_text()
        return self._read_turn_stat(newline=self._ended_with_newline)

    def _read_text(self) -> Text | Pause:
        stream = self._stream
        if not stream:
            return Pause.NEED_DATA
        if not self._outstanding:
            raise stream.error("text while no reply is outstanding")
        newline_is_ours = self._outstanding[0].ends_with_newline
        rest = stream.take_rest()
        end = rest.find(END)
        if end >= 0:
            newline = newline_is_ours and rest.startswith(b"\n", max(0, end - 1), end)
            self._ended_with_newline = newline
            stream.give_back(len(rest) - end - len(END))
            text = rest[: end - newline]
            return Text(data=text) if text else Pause.AGAIN
        held_bytes = _held_back(rest, NEWLINE_END if newline_is_ours else END)
        stream.give_back(held_bytes)
        text = rest[: len(rest) - held_bytes]
        return Text(data=text) if text else Pause.NEED_DATA

    def _read_turn_stat(self, *, newline: bool) -> TurnEnd | Pause:
        line = self._take_line()
        if line is None:
            return Pause.NEED_DATA
        stat = self._parse(Stat.parse, line)
        self._outstanding.popleft()
        self._ended_with_newline = None
        return TurnEnd(stat=stat, newline=newline)

    def _reply_end(self) -> Closed:
        if self._outstanding:
            raise self._stream.error(
                f"truncated: the stream ended with {len(self._outstanding)} replies outstanding"
            )
        return Closed()


def _held_back(text: bytes, terminator: bytes) -> int:
    """How many last bytes of text could still become the terminator, with or without its leading newline."""
    longest = min(len(text), len(terminator) - 1)
    for count in range(longest, 0, -1):
        tail = text[-count:]
        if terminator.startswith(tail) or END.startswith(tail):
            return count
    return 0


_PROMPT_HEADER = re.compile(
    rb"\x02PROMPT +(?P<bytes>[0-9]{1,20}) +(?P<max>[+-]?[0-9]{1,10}) +(?P<temperature>\S+) +(?P<top_p>\S+)"
    rb"(?: +(?P<slot>[+-]?[0-9]{1,10}))?"
)


class ChatServer(EventReader[ChatCommand]):
    """An engine's end of chat mode: commands out of `events`, replies by `encode_*`.

    It takes what the real engine takes: a PROMPT with a bad header does not consume its payload, a missing
    newline after a payload is forgiven, a line cut off by the end of input still counts, and a payload that
    is cut off ends the input silently.
    """

    def __init__(self, *, slots: int = 1, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(limits=limits)
        self._slots = slots
        self._ready = False
        self._outstanding = 0
        self._header = b""
        self._prompt: Prompt | None = None
        self._payload_bytes = 0

    def encode_ready(self, stat: Stat, tiers: Tiers) -> bytes:
        """Write the READY block; `stat` has the short form."""
        if self._ready:
            raise LocalProtocolError("READY was written already")
        self._ready = True
        return READY + b"\n" + stat.to_line() + b"\n" + tiers.to_line() + b"\n"

    def encode_text(self, data: bytes) -> bytes:
        """Write a piece of the running reply, as it is."""
        self._check_outstanding()
        return data

    def encode_turn_end(self, stat: Stat, *, newline: bool) -> bytes:
        """End the oldest outstanding reply; `newline` after lines and MORE that had a context."""
        self._check_outstanding()
        self._outstanding -= 1
        return (NEWLINE_END if newline else END) + stat.to_line() + b"\n"

    def _check_outstanding(self) -> None:
        if not self._ready or not self._outstanding:
            raise LocalProtocolError("there is no command to reply to")

    def _step(self) -> ChatCommand | Pause:
        if self._prompt is not None:
            return self._read_payload(self._prompt)
        line = self._take_line()
        if line is None:
            return Pause.NEED_DATA
        return self._read_command(line)

    def _read_command(self, line: bytes) -> ChatCommand | Pause:
        if line.startswith(PROMPT_PREFIX):
            return self._read_header(line)
        self._outstanding += 1
        if line == RESET_LINE:
            return Reset()
        if line == MORE_LINE:
            return More()
        return Line(text=line)

    def _read_header(self, line: bytes) -> BadPrompt | Pause:
        try:
            self._prompt, self._payload_bytes = self._parse_header(line)
        except ValueError as error:
            self._outstanding += 1
            return BadPrompt(line=line, reason=str(error))
        self._header = line
        return Pause.AGAIN

    def _parse_header(self, line: bytes) -> tuple[Prompt, int]:
        match = _PROMPT_HEADER.match(line)
        if match is None:
            raise ValueError("the header is not: bytes max_tokens temperature top_p [slot]")
        payload_bytes = parse_count(match["bytes"])
        if payload_bytes > self._limits.max_payload_bytes:
            raise ValueError(f"{payload_bytes} bytes are more than {self._limits.max_payload_bytes}")
        prompt = Prompt(
            payload=b"",
            max_tokens=int(match["max"]),
            temperature=parse_float(match["temperature"]),
            top_p=parse_float(match["top_p"]),
            slot=int(match["slot"] or 0),
        )
        fault = sampling_fault(
            max_tokens=prompt.max_tokens, temperature=prompt.temperature, top_p=prompt.top_p
        )
        if fault:
            raise ValueError(fault)
        if not 0 <= prompt.slot < self._slots:
            raise ValueError(f"slot {prompt.slot} is not below {self._slots}")
        return prompt, payload_bytes

    def _read_payload(self, prompt: Prompt) -> Prompt | BadPrompt | Pause:
        # The byte after the payload has to be there too, or the end: only then it shows if it is the newline.
        framed = self._stream.take(self._payload_bytes + 1)
        if framed is None:
            return Pause.NEED_DATA
        if not framed.endswith(b"\n"):
            self._stream.give_back(1)
        return self._finish_prompt(prompt, framed[: self._payload_bytes])

    def _finish_prompt(self, prompt: Prompt, payload: bytes) -> Prompt | BadPrompt:
        self._prompt = None
        self._outstanding += 1
        if b"\0" in payload:
            return BadPrompt(line=self._header, reason="the payload holds a NUL byte")
        return Prompt(
            payload=payload,
            max_tokens=prompt.max_tokens,
            temperature=prompt.temperature,
            top_p=prompt.top_p,
            slot=prompt.slot,
        )

    def _end(self) -> ChatCommand | Pause:
        rest = self._stream.take_rest()
        if self._prompt is not None:
            complete = len(rest) == self._payload_bytes
            return self._finish_prompt(self._prompt, rest) if complete else Closed()
        return self._read_command(rest) if rest else Closed()
