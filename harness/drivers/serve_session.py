"""A session in serve mode: framed tokens with request ids."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from engine_bindings.errors import EngineGarbageError, EngineRefusedError
from engine_bindings.printable import escape_control
from engine_bindings.wire.events import (
    BAD_REQUEST,
    CANCELLED,
    CONTEXT_EXCEEDED,
    NOT_FOUND,
    Accepted,
    Data,
    Done,
    Note,
    Refused,
    TurnProfile,
)
from engine_bindings.wire.mux_extension import (
    BAD_GRAMMAR,
    DEFAULTS,
    Options,
    encode_options,
    encode_probe,
    parse_token,
    read_probe,
)
from engine_bindings.wire.mux_protocol import MuxClient
from harness.drivers.answer import Answer
from harness.drivers.base import Transport, TurnRequest
from harness.drivers.stderr_log import StderrLog
from harness.drivers.stdio import Cut, Ending, OutputCallback, Reply, StdioSession, ignore_output
from harness.drivers.waits import Waits
from harness.grammar import Grammar
from harness.plan import Timeouts

# Chat mode begins its grammar behind the reasoning, if there is any; serve mode has to be asked to.
BINDING_OPTIONS = Options(constrain=True, constrain_after="think")


class ServeSession(StdioSession):
    """Serve mode with one request at a time.

    Every request carries ``grammar``; one that binds needs the protocol's extension. Logprobs need it too:
    the first request that asks for them finds out whether the engine has it, and gets none where it has not.
    """

    def __init__(
        self,
        transport: Transport,
        log: StderrLog,
        timeouts: Timeouts,
        *,
        on_output: OutputCallback = ignore_output,
        reported: Collection[str] = (),
        grammar: Grammar | None = None,
    ) -> None:
        super().__init__(transport, log, timeouts, on_output=on_output, reported=reported)
        self._client: MuxClient = MuxClient()
        self._grammar = b"" if grammar is None else grammar.text.encode("utf-8")
        self._options = BINDING_OPTIONS if grammar is not None and grammar.binds else DEFAULTS
        self._extended: bool | None = None
        self._logprob: float | None = None
        self._request_id = 0
        self._accepted_ns: int | None = None
        self._forwards: int | None = None
        self._prompt_tokens: int | None = None

    def begin_conversation(self) -> None:
        """Do nothing: every request names its whole context."""

    def _encode(self, request: TurnRequest) -> bytes:
        options = self._options
        if request.logprobs and self._has_extension(request.place):
            options = replace(options, detail=True)
        self._request_id += 1
        self._accepted_ns = self._forwards = self._prompt_tokens = self._logprob = None
        submit = self._client.encode_submit(
            request_id=self._request_id,
            slot=request.slot,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            grammar=self._grammar,
        )
        return submit if options == DEFAULTS else encode_options(self._request_id, options) + submit

    def _has_extension(self, place: str) -> bool:
        """Ask the engine once, with an option that none knows; one without the extension cannot read it."""
        if self._extended is not None:
            return self._extended
        self._request_id += 1
        waits = Waits(self._timeouts, self._transport.now_ns, place=place)
        waits.begin("first-output-timeout")
        self._transport.send(encode_probe(self._request_id))
        while self._extended is None:
            for event in self._receive(waits, place)[1]:
                if isinstance(event, Refused):
                    self._extended = read_probe(self._request_id, event)
        return self._extended

    def _take(
        self, at_ns: int, events: Sequence[Reply], answer: Answer, request: TurnRequest
    ) -> Ending | None:
        tokens = []
        ending = None
        for event in events:
            match event:
                case Data():
                    tokens.append(event.payload)
                    answer.logprobs.append(self._logprob)
                    self._logprob = None
                case Note(kind="TOKEN"):
                    self._logprob = _read_logprob(event, request.place)
                case Accepted():
                    self._accepted_ns = at_ns
                    self._prompt_tokens = event.prompt_tokens
                case TurnProfile():
                    self._forwards = event.profile.forwards
                case Refused():
                    ending = self._take_refusal(at_ns, event, request) or ending
                case Done():
                    ending = self._end_turn(at_ns, event)
                case _:
                    pass
        answer.add_tokens(at_ns, tokens)
        return ending

    def _take_refusal(self, at_ns: int, event: Refused, request: TurnRequest) -> Ending | None:
        if event.code == NOT_FOUND:
            return None  # a STOP or CANCEL that crossed with the end of its turn
        if event.code == CANCELLED and self._asked_to_end_ns is not None:
            return self._cut_turn(at_ns, "cancelled")
        if event.code == CONTEXT_EXCEEDED and request.may_refuse:
            return self._cut_turn(at_ns, "refused")
        if event.code == BAD_GRAMMAR and self._accepted_ns is not None:
            return self._cut_turn(at_ns, "broken-grammar")
        raise build_refusal(event, request.place)

    def _end_turn(self, at_ns: int, done: Done) -> Ending:
        return Ending(
            done_ns=at_ns,
            stat=done.stat,
            accepted_ns=self._accepted_ns,
            prompt_tokens=done.stat.prompt_tokens,
            forwards=self._forwards,
        )

    def _cut_turn(self, at_ns: int, cut: Cut) -> Ending:
        return Ending(
            done_ns=at_ns,
            stat=None,
            cut=cut,
            accepted_ns=self._accepted_ns,
            prompt_tokens=self._prompt_tokens,
        )

    def _stop(self) -> None:
        self._transport.send(self._client.encode_stop(self._request_id))

    def _cancel(self) -> None:
        self._transport.send(self._client.encode_cancel(self._request_id))


def _read_logprob(note: Note, place: str) -> float:
    try:
        logprob = parse_token(note.line).logprob
    except ValueError as error:
        raise EngineGarbageError(f"{place}: a TOKEN line that cannot be read: {error}") from error
    if not math.isfinite(logprob):
        raise EngineGarbageError(
            f"{place}: logprob {logprob} for a token that was chosen: {note.line[:80]!r}"
        )
    return logprob


def build_refusal(event: Refused, place: str) -> EngineRefusedError:
    """Return the error for a request that the engine refused."""
    answer = escape_control(" ".join((event.code, *event.arguments)))
    hint = _REFUSAL_HINTS.get(event.code, "its last stderr lines may say why")
    return EngineRefusedError(f"{place}: the engine refused it: ERROR {answer}", hint=hint)


_REFUSAL_HINTS = {
    CONTEXT_EXCEEDED: "the prompt is longer than the context; raise it with --context TOKENS",
    BAD_REQUEST: "the engine could not read the request, or takes no such values",
}
