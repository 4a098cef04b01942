"""A session in serve mode: framed tokens with request ids."""

from collections.abc import Sequence
from typing import Literal

from engine_bindings.errors import EngineRefusedError
from engine_bindings.wire.events import (
    BAD_REQUEST,
    CANCELLED,
    CONTEXT_EXCEEDED,
    NOT_FOUND,
    Accepted,
    Data,
    Done,
    Refused,
    TurnProfile,
)
from engine_bindings.wire.mux_extension import Options, encode_options
from engine_bindings.wire.mux_protocol import MuxClient
from harness.drivers.answer import Answer
from harness.drivers.base import Transport, TurnRequest
from harness.drivers.stderr_log import StderrLog
from harness.drivers.stdio import Ending, OutputCallback, Reply, StdioSession, ignore_output
from harness.grammar import Grammar
from harness.plan import Timeouts

# Chat mode begins its grammar behind the reasoning, if there is any; serve mode has to be asked to.
BINDING_OPTIONS = Options(constrain=True, constrain_after="think")


class ServeSession(StdioSession):
    """Serve mode with one request at a time.

    Every request carries ``grammar``; one that binds needs the protocol's extension.
    """

    def __init__(
        self,
        transport: Transport,
        log: StderrLog,
        timeouts: Timeouts,
        *,
        on_output: OutputCallback = ignore_output,
        grammar: Grammar | None = None,
    ) -> None:
        super().__init__(transport, log, timeouts, on_output=on_output)
        self._client: MuxClient = MuxClient()
        self._grammar = b"" if grammar is None else grammar.text.encode("utf-8")
        self._options = BINDING_OPTIONS if grammar is not None and grammar.binds else None
        self._request_id = 0
        self._accepted_ns: int | None = None
        self._forwards: int | None = None
        self._prompt_tokens: int | None = None

    def begin_conversation(self) -> None:
        """Do nothing: every request names its whole context."""

    def _encode(self, request: TurnRequest) -> bytes:
        self._request_id += 1
        self._accepted_ns = self._forwards = self._prompt_tokens = None
        submit = self._client.encode_submit(
            request_id=self._request_id,
            slot=request.slot,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            grammar=self._grammar,
        )
        return submit if self._options is None else encode_options(self._request_id, self._options) + submit

    def _take(
        self, at_ns: int, events: Sequence[Reply], answer: Answer, request: TurnRequest
    ) -> Ending | None:
        tokens = []
        ending = None
        for event in events:
            match event:
                case Data():
                    tokens.append(event.payload)
                case Accepted():
                    self._accepted_ns = at_ns
                    self._prompt_tokens = event.prompt_tokens
                case TurnProfile():
                    self._forwards = event.profile.forwards
                case Refused(code=code) if code == NOT_FOUND:
                    pass  # a STOP or CANCEL that crossed with the end of its turn
                case Refused(code=code) if code == CANCELLED and self._asked_to_end:
                    ending = self._cut_turn(at_ns, "cancelled")
                case Refused(code=code) if code == CONTEXT_EXCEEDED and request.may_refuse:
                    ending = self._cut_turn(at_ns, "refused")
                case Refused():
                    raise build_refusal(event, request.place)
                case Done():
                    ending = self._end_turn(at_ns, event)
                case _:
                    pass
        answer.add_tokens(at_ns, tokens)
        return ending

    def _end_turn(self, at_ns: int, done: Done) -> Ending:
        return Ending(
            done_ns=at_ns,
            stat=done.stat,
            accepted_ns=self._accepted_ns,
            prompt_tokens=done.stat.prompt_tokens,
            forwards=self._forwards,
        )

    def _cut_turn(self, at_ns: int, cut: Literal["cancelled", "refused"]) -> Ending:
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


def build_refusal(event: Refused, place: str) -> EngineRefusedError:
    """Return the error for a request that the engine refused."""
    answer = " ".join((event.code, *event.arguments))
    hint = _REFUSAL_HINTS.get(event.code, "its last stderr lines may say why")
    return EngineRefusedError(f"{place}: the engine refused it: ERROR {answer}", hint=hint)


_REFUSAL_HINTS = {
    CONTEXT_EXCEEDED: "the prompt is longer than the context; raise it with --context TOKENS",
    BAD_REQUEST: "the engine could not read the request, or takes no such values",
}
