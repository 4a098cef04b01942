"""Serve mode over stdio, both ends: requests with ids in, interleaved frames with ids out."""

import re
from collections.abc import Callable, Iterator
from typing import ClassVar

from .counts import ExpertHits, ExpertMap, Hardware, Profile, Stat, Tiers, parse_count
from .errors import LocalProtocolError, RemoteProtocolError
from .events import (
    Accepted,
    BadFrame,
    BadRequest,
    Banner,
    Cancel,
    Closed,
    Data,
    Done,
    MuxCommand,
    Note,
    OptionsLine,
    Protocol,
    Ready,
    Refused,
    Stop,
    Submit,
    TurnProfile,
)
from .handshake import KIND, READY, EngineReader
from .limits import DEFAULT_LIMITS, Limits
from .parameters import MAX_REQUEST_ID, format_sampling, parse_float, sampling_fault
from .reader import EventReader, Pause
from .requests import Move, Requests

NEWLINE = 0x0A
MAX_KNOWN_HEADERS = 4096


class MuxClient(EngineReader[Accepted | Data | TurnProfile | Done | Refused]):
    """Our end of an engine in serve mode.

    `encode_submit` opens a request; `events` yields its Accepted, Data, TurnProfile and Done or Refused.
    """

    protocol: ClassVar[Protocol] = "serve"

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(limits=limits)
        self._requests = Requests()
        self._known_headers: dict[bytes, tuple[int, int]] = {}

    @property
    def open_requests(self) -> tuple[int, ...]:
        """Ids that were submitted and have neither Done nor a final Refused yet."""
        return tuple(self._requests)

    def encode_submit(
        self,
        *,
        request_id: int,
        prompt: bytes,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        slot: int = 0,
        grammar: bytes = b"",
    ) -> bytes:
        """Encode a new request; no grammar field is written when there is no grammar.

        Raises:
            LocalProtocolError: a value that the engine would reject with id 0, or an id that is still open.
        """
        self._check_ready()
        fault = sampling_fault(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        fault = fault or self._submit_fault(request_id, slot, prompt, grammar)
        if fault:
            raise LocalProtocolError(fault)
        self._move(request_id, Move.SUBMIT)
        numbers = format_sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        header = f"SUBMIT {request_id} {slot} {len(prompt)} {numbers}"
        header += f" {len(grammar)}" if grammar else ""
        return header.encode() + b"\n" + prompt + grammar + b"\n"

    def encode_stop(self, request_id: int) -> bytes:
        """End an open request through its normal Done."""
        return self._control("STOP", request_id)

    def encode_cancel(self, request_id: int) -> bytes:
        """End an open request with a Refused of code CANCELLED."""
        return self._control("CANCEL", request_id)

    def _control(self, word: str, request_id: int) -> bytes:
        self._check_ready()
        self._move(request_id, Move.CONTROL)
        return f"{word} {request_id}\n".encode()

    def _move(self, request_id: int, move: Move) -> None:
        try:
            self._requests.apply(request_id, move)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from error

    def _submit_fault(self, request_id: int, slot: int, prompt: bytes, grammar: bytes) -> str | None:
        limits = self._limits
        if not 0 < request_id <= MAX_REQUEST_ID:
            return f"request id {request_id} is not between 1 and {MAX_REQUEST_ID}"
        if slot < 0:
            return f"slot {slot} is negative"
        if len(prompt) > limits.max_payload_bytes:
            return f"a prompt of {len(prompt)} bytes, at most {limits.max_payload_bytes} are allowed"
        if len(grammar) > limits.max_grammar_bytes:
            return f"a grammar of {len(grammar)} bytes, at most {limits.max_grammar_bytes} are allowed"
        if b"\0" in prompt:
            return "a prompt cannot hold a NUL byte"
        return None

    def events(
        self,
    ) -> Iterator[Accepted | Data | TurnProfile | Done | Refused | Banner | Note | Ready | Closed]:
        """Yield every event that is complete now; see `EventReader.events`.

        Nearly all frames are DATA, and nearly all their headers were seen before: those are taken here at the
        price of one lookup. Everything else goes the long way through `_step`, which decides what is right.
        """
        stream = self._stream
        known_headers = self._known_headers
        while True:
            data = stream.data
            line_end = data.find(b"\n", stream.cursor)
            header = known_headers.get(data[stream.cursor : line_end])
            if header is not None and line_end >= 0:
                request_id, payload_bytes = header
                start = line_end + 1
                end = start + payload_bytes
                if end < len(data) and data[end] == NEWLINE:
                    stream.cursor = end + 1
                    # What Data(...) does, without the price of its Python-level constructor.
                    yield tuple.__new__(Data, (request_id, data[start:end]))
                    continue
            elif stream.cursor == len(data) and not self._ended and self._error is None:
                return
            event = self._next_event()
            if event is None:
                return
            yield event

    def _reply_step(self) -> Accepted | Data | TurnProfile | Done | Refused | Note | Pause:
        line = self._take_line()
        if line is None:
            return Pause.NEED_DATA
        kind = self._kind_of(line)
        read = self._KINDS.get(kind)
        if read is None:
            return Note(kind=kind.decode(), line=line.decode("utf-8", "replace"))
        return self._parse(lambda line: read(self, line), line)

    def _read_accept(self, line: bytes) -> Accepted:
        _, request_id, prompt_tokens = _split(line, 3)
        event = Accepted(request_id=_parse_id(request_id), prompt_tokens=parse_count(prompt_tokens))
        self._requests.apply(event.request_id, Move.ACCEPT)
        return event

    def _read_data(self, line: bytes) -> Data | Pause:
        fields = _split(line, 3)
        request_id, payload_bytes = _parse_id(fields[1]), parse_count(fields[2])
        if payload_bytes > self._limits.max_data_bytes:
            limit = self._limits.max_data_bytes
            raise ValueError(f"a DATA payload of {payload_bytes} bytes, at most {limit} are allowed")
        self._requests.apply(request_id, Move.DATA)
        if len(self._known_headers) >= MAX_KNOWN_HEADERS:
            self._known_headers.clear()
        self._known_headers[line] = request_id, payload_bytes
        stream = self._stream
        framed = stream.take(payload_bytes + 1)
        if framed is None:
            # The frame is read as a whole once it is here, so there is no state "inside a payload".
            stream.give_back(len(line) + 1, until=len(line) + 1 + payload_bytes + 1)
            return Pause.NEED_DATA
        if framed[-1] != NEWLINE:
            offset = stream.offset - 1
            raise RemoteProtocolError("no newline after a DATA payload", offset=offset, excerpt=framed[-1:])
        return Data(request_id, framed[:-1])

    def _read_profile(self, line: bytes) -> TurnProfile:
        return TurnProfile(profile=Profile.parse(line))

    def _read_done(self, line: bytes) -> Done:
        _, request_id, stat = _split(line, 3, last_takes_rest=True)
        event = Done(request_id=_parse_id(request_id), stat=Stat.parse(stat))
        self._requests.apply(event.request_id, Move.DONE)
        self._known_headers.clear()
        return event

    def _read_error(self, line: bytes) -> Refused:
        _, request_id, rest = _split(line, 3, last_takes_rest=True)
        code, *arguments = rest.split(b" ")
        if KIND.fullmatch(code) is None:
            raise ValueError("an ERROR line needs a code")
        event = Refused(
            request_id=parse_count(request_id),
            code=code.decode(),
            arguments=tuple(argument.decode("utf-8", "replace") for argument in arguments),
        )
        self._requests.apply_error(event.request_id, event.code)
        self._known_headers.clear()
        return event

    def _reply_end(self) -> Closed:
        if self._stream:
            raise self._stream.error("truncated: the stream ended inside a frame")
        if self._requests:
            names = ", ".join(str(request_id) for request_id in self._requests)
            raise self._stream.error(f"truncated: the stream ended with requests open ({names})")
        return Closed()

    _KINDS: ClassVar[
        dict[bytes, Callable[["MuxClient", bytes], Accepted | Data | Done | Pause | Refused | TurnProfile]]
    ] = {
        b"ACCEPT": _read_accept,
        b"DATA": _read_data,
        b"PROF": _read_profile,
        b"DONE": _read_done,
        b"ERROR": _read_error,
    }


def _split(line: bytes, count: int, *, last_takes_rest: bool = False) -> list[bytes]:
    fields = line.split(b" ", count - 1 if last_takes_rest else -1)
    if len(fields) != count:
        raise ValueError(f"{len(fields)} fields where {count} are expected")
    return fields


def _parse_id(field: bytes) -> int:
    request_id = parse_count(field)
    if not 0 < request_id <= MAX_REQUEST_ID:
        raise ValueError(f"request id {request_id} is not between 1 and {MAX_REQUEST_ID}")
    return request_id


_CONTROL = re.compile(rb"(?P<word>STOP|CANCEL) +(?P<id>[0-9]{1,20})\s*")
_SUBMIT = re.compile(
    rb"SUBMIT +(?P<id>[0-9]{1,20}) +(?P<slot>[+-]?[0-9]{1,10}) +(?P<bytes>[0-9]{1,20})"
    rb" +(?P<max>[+-]?[0-9]{1,10}) +(?P<temperature>\S+) +(?P<top_p>\S+)(?: +(?P<gbytes>[0-9]{1,20}))?\s*"
)


class MuxServer(EventReader[MuxCommand]):
    """An engine's end of serve mode: commands out of `events`, frames by `encode_*`.

    It takes what the real engine takes: a header that cannot be read does not consume its payload, a payload
    with no newline after it ends the input, and so does one that is cut off; a line cut off by the end of
    input still counts. A request opens with its ACCEPT; then the table in `requests` holds for all frames.
    With `extension` OPTIONS lines are commands too, else they are unreadable as for the real engine.
    """

    def __init__(self, *, slots: int = 1, extension: bool = False, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(limits=limits)
        self._slots = slots
        self._extension = extension
        self._ready = False
        self._requests = Requests()
        self._submit: Submit | None = None
        self._sizes = (0, 0)
        self._input_over = False

    def encode_ready(self, stat: Stat, *, hardware: Hardware, tiers: Tiers, expert_map: ExpertMap) -> bytes:
        """Write the READY block; `stat` has the short form."""
        if self._ready:
            raise LocalProtocolError("READY was written already")
        self._ready = True
        return READY + b"\n" + stat.to_line() + b"\n" + self.encode_state(hardware, tiers, expert_map)

    def encode_state(
        self, hardware: Hardware, tiers: Tiers, expert_map: ExpertMap, hits: ExpertHits | None = None
    ) -> bytes:
        """Write the lines about machine and experts that precede PROF; no HITS before anything was routed."""
        lines = (hardware, tiers, expert_map, hits)
        return b"".join(line.to_line() + b"\n" for line in lines if line is not None)

    def encode_accept(self, request_id: int, prompt_tokens: int) -> bytes:
        """Say that the request is valid and prefill starts."""
        self._move(request_id, Move.SUBMIT)
        self._move(request_id, Move.ACCEPT)
        return f"ACCEPT {request_id} {prompt_tokens}\n".encode()

    def encode_data(self, request_id: int, payload: bytes) -> bytes:
        """Write one token."""
        self._move(request_id, Move.DATA)
        return b"DATA %d %d\n%b\n" % (request_id, len(payload), payload)

    def encode_profile(self, profile: Profile) -> bytes:
        """Say where the time went, just before the Done it belongs to."""
        return profile.to_line() + b"\n"

    def encode_done(self, request_id: int, stat: Stat) -> bytes:
        """End a request that ran; `stat` has the long form."""
        self._move(request_id, Move.DONE)
        return b"DONE %d %b\n" % (request_id, stat.to_line())

    def encode_error(self, request_id: int, code: str, *arguments: int | str) -> bytes:
        """Write an ERROR line; it ends the request unless it is a remark about one that runs."""
        self._check_ready()
        self._requests.apply_error(request_id, code)
        return (" ".join(str(part) for part in ("ERROR", request_id, code, *arguments)) + "\n").encode()

    def _move(self, request_id: int, move: Move) -> None:
        self._check_ready()
        try:
            self._requests.apply(request_id, move)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from error

    def _check_ready(self) -> None:
        if not self._ready:
            raise LocalProtocolError("READY was not written yet")

    def _step(self) -> MuxCommand | Pause:
        if self._input_over:
            return Closed()
        if self._submit is not None:
            return self._read_payload(self._submit)
        line = self._take_line()
        if line is None:
            return Pause.NEED_DATA
        return self._read_command(line)

    def _end(self) -> MuxCommand | Pause:
        rest = self._stream.take_rest()
        return self._read_command(rest) if rest and self._submit is None else Closed()

    def _read_command(self, line: bytes) -> MuxCommand | Pause:
        try:
            if line.startswith((b"STOP ", b"CANCEL ")):
                return _parse_control(line)
            if self._extension and line.startswith(b"OPTIONS "):
                return OptionsLine(line=line.decode("utf-8", "replace"))
            self._submit, self._sizes = self._parse_header(line)
        except ValueError as error:
            return BadRequest(request_id=0, reason=str(error))
        return Pause.AGAIN

    def _parse_header(self, line: bytes) -> tuple[Submit, tuple[int, int]]:
        match = _SUBMIT.fullmatch(line)
        if match is None:
            raise ValueError(
                "neither STOP, CANCEL nor SUBMIT id slot bytes max_tokens temperature top_p [gbytes]"
            )
        submit = Submit(
            request_id=_parse_id(match["id"]),
            slot=int(match["slot"]),
            prompt=b"",
            grammar=b"",
            max_tokens=int(match["max"]),
            temperature=parse_float(match["temperature"]),
            top_p=parse_float(match["top_p"]),
        )
        sizes = int(match["bytes"]), int(match["gbytes"] or 0)
        fault = self._header_fault(submit, sizes)
        if fault:
            raise ValueError(fault)
        return submit, sizes

    def _header_fault(self, submit: Submit, sizes: tuple[int, int]) -> str | None:
        if sizes[0] > self._limits.max_payload_bytes:
            return f"a prompt of {sizes[0]} bytes, at most {self._limits.max_payload_bytes} are allowed"
        if sizes[1] > self._limits.max_grammar_bytes:
            return f"a grammar of {sizes[1]} bytes, at most {self._limits.max_grammar_bytes} are allowed"
        if submit.slot < 0:
            return f"slot {submit.slot} is negative"
        return sampling_fault(
            max_tokens=submit.max_tokens, temperature=submit.temperature, top_p=submit.top_p
        )

    def _read_payload(self, header: Submit) -> Submit | BadRequest | BadFrame | Pause:
        prompt_bytes, grammar_bytes = self._sizes
        framed = self._stream.take(prompt_bytes + grammar_bytes + 1)
        if framed is None:
            return Pause.NEED_DATA
        self._submit = None
        request_id = header.request_id
        if framed[-1] != NEWLINE:
            self._input_over = True
            return BadFrame(request_id=request_id)
        prompt = framed[:prompt_bytes]
        if header.slot >= self._slots:
            return BadRequest(request_id=request_id, reason=f"slot {header.slot} is not below {self._slots}")
        if b"\0" in prompt:
            return BadRequest(request_id=request_id, reason="the prompt holds a NUL byte")
        return Submit(
            request_id=request_id,
            slot=header.slot,
            prompt=prompt,
            grammar=framed[prompt_bytes:-1],
            max_tokens=header.max_tokens,
            temperature=header.temperature,
            top_p=header.top_p,
        )


def _parse_control(line: bytes) -> Stop | Cancel:
    match = _CONTROL.fullmatch(line)
    if match is None:
        raise ValueError("STOP and CANCEL take one request id")
    request_id = _parse_id(match["id"])
    return Stop(request_id=request_id) if match["word"] == b"STOP" else Cancel(request_id=request_id)
