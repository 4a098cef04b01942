"""A session in chat mode: exact prompts or typed lines, answers without frames."""

from collections.abc import Collection, Sequence

from engine_bindings.errors import EngineRefusedError
from engine_bindings.wire.chat_protocol import ChatClient
from engine_bindings.wire.cli_screen import CliClient
from engine_bindings.wire.events import Text, TurnEnd
from harness.drivers.answer import Answer
from harness.drivers.base import Transport, TurnRequest
from harness.drivers.stderr_log import StderrLog
from harness.drivers.stdio import Ending, OutputCallback, Reply, StdioSession, ignore_output
from harness.drivers.waits import Waits
from harness.plan import Timeouts


class ChatSession(StdioSession):
    """Chat mode: one turn at a time, one reply for each request, in order."""

    def __init__(
        self,
        transport: Transport,
        log: StderrLog,
        timeouts: Timeouts,
        *,
        on_output: OutputCallback = ignore_output,
        reported: Collection[str] = (),
    ) -> None:
        # No frame carries the forwards in chat mode: their line is printed after the end of the turn.
        reported = {*reported, "forwards"}
        super().__init__(transport, log, timeouts, on_output=on_output, reported=reported)
        self._client: ChatClient | CliClient = ChatClient()
        self._typed = False
        self._line_running = False

    def begin_conversation(self) -> None:
        """Reset the context when lines were typed into it; exact prompts name their whole context."""
        if not self._typed:
            return
        place = "reset between conversations"
        waits = Waits(self._timeouts, self._transport.now_ns, place=place)
        waits.begin("turn-timeout")
        self._transport.send(self._client.encode_reset())
        while not any(isinstance(event, TurnEnd) for event in self._receive(waits, place)[1]):
            pass
        self._typed = False

    def _encode(self, request: TurnRequest) -> bytes:
        self._line_running = request.line is not None
        if request.line is not None:
            self._typed = True
            return self._client.encode_line(request.line)
        return self._client.encode_prompt(
            request.prompt,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            slot=request.slot or None,
        )

    def _take(
        self, at_ns: int, events: Sequence[Reply], answer: Answer, request: TurnRequest
    ) -> Ending | None:
        answer.add_text(at_ns, b"".join(event.data for event in events if isinstance(event, Text)))
        for event in events:
            if isinstance(event, TurnEnd):
                return self._end_turn(at_ns, event, request)
        return None

    def _end_turn(self, at_ns: int, event: TurnEnd, request: TurnRequest) -> Ending:
        stat = event.stat
        if not self._line_running and not stat.prompt_tokens:
            if request.may_refuse:
                return Ending(done_ns=at_ns, stat=None, cut="refused")
            raise EngineRefusedError(
                f"{request.place}: the engine rejected the prompt (STAT with 0 prompt tokens)",
                hint="its last stderr lines may say why; the prompt may be longer than the context",
            )
        # Nothing says that the signal ended the turn; one that reached its cap ended by itself.
        asked = self._asked_to_end_ns is not None and request.cancel_after_tokens is not None
        cancelled = asked and not stat.length_limited
        return Ending(
            done_ns=at_ns,
            stat=stat,
            cut="cancelled" if cancelled else None,
            prompt_tokens=None if self._line_running else stat.prompt_tokens,
        )

    def _stop(self) -> None:
        self._transport.interrupt()

    def _cancel(self) -> None:
        self._transport.interrupt()
