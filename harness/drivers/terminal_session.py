"""A session with the engine's command line on a terminal: lines are typed, the screen is read."""

from collections.abc import Collection

from engine_bindings.errors import EngineDiedError, EngineStartError
from engine_bindings.wire.cli_screen import CliClient
from engine_bindings.wire.events import Attached, Quit, SavedConversation
from harness.drivers.base import EngineStart, Transport
from harness.drivers.chat_session import ChatSession
from harness.drivers.stderr_log import StderrLog
from harness.drivers.stdio import TAIL_LINES, OutputCallback, Reply, ignore_output
from harness.drivers.waits import Waits
from harness.plan import Timeouts


class TerminalSession(ChatSession):
    """`coli chat`: chat mode behind a prompt. It shows text and token counts; other counts are on stderr."""

    _client: CliClient

    def __init__(
        self,
        transport: Transport,
        log: StderrLog,
        timeouts: Timeouts,
        *,
        on_output: OutputCallback = ignore_output,
        reported: Collection[str] = (),
    ) -> None:
        super().__init__(transport, log, timeouts, on_output=on_output, reported=reported)
        self._client = CliClient()
        self._saved_tokens: int | None = None

    def start(self) -> EngineStart:
        """Wait for the prompt. Nothing is typed before it is on the screen."""
        start = super().start()
        # The engine's own word comes first: it may leave alone what the command line found.
        resumed = start.kv_resumed_tokens or self._saved_tokens
        return EngineStart(protocol=start.protocol, banner=start.banner, kv_resumed_tokens=resumed)

    def end(self) -> int:
        """Leave the command line and wait for its exit."""
        self._transport.send(self._client.encode_quit())
        return super().end()

    def stderr_tail(self) -> tuple[str, ...]:
        """Return the last lines of the engine's stderr, and behind them what stands on the screen."""
        screen = [line.strip() for line in self._client.screen_tail().splitlines()]
        return (*super().stderr_tail(), *[line for line in screen if line])[-TAIL_LINES:]

    def _stop(self) -> None:
        """Let the turn go on to its end: an interrupt between two reads makes the command line quit."""
        # What was not asked must not count as a stop that is not heard.
        self._asked_to_end_ns = None

    def _receive(self, waits: Waits, place: str) -> tuple[int, list[Reply]]:
        at_ns, events = super()._receive(waits, place)
        for event in events:
            if isinstance(event, Attached):
                raise EngineStartError(
                    f"the command line attached to the server at {event.url}: that is another engine",
                    hint="end that server; --no-attach was given and had no effect",
                )
            if isinstance(event, Quit):
                message = f"{place}: the command line gave up: {event.reason}"
                raise EngineDiedError(message, hint="its last lines say why")
            if isinstance(event, SavedConversation):
                self._saved_tokens = event.tokens
        return at_ns, events
