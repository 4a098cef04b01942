"""One turn of the engine as the server sees it: accepted, tokens, an outcome or a failure."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import NamedTuple

from engine_bindings.wire import Profile, Stat
from engine_bindings.wire.mux_extension import Options, Speculation, TokenDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """What is submitted; ``options`` is None for an engine without the extension."""

    prompt: bytes
    max_tokens: int
    temperature: float
    top_p: float
    slot: int
    grammar: bytes
    options: Options | None


class Token(NamedTuple):
    """One token: its bytes, when they were read, and what the extension says of it."""

    payload: bytes
    at_ns: int
    detail: TokenDetail | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """How a turn ended, in the engine's own counts."""

    stat: Stat
    profile: Profile | None
    speculation: Speculation | None


class TurnFailed(Exception):  # noqa: N818 - the name says what happened, as events do
    """The engine broke, or was given up, while the turn was open."""


class TurnRefused(Exception):  # noqa: N818
    """The engine answered with an ERROR line."""

    def __init__(self, code: str, arguments: tuple[str, ...]) -> None:
        super().__init__(" ".join((code, *arguments)))
        self.code = code
        self.arguments = arguments


class EngineTurn:
    """An open turn. The link fills it; one task reads it.

    ``on_end`` is called once, whatever the end: only then is the slot free.
    """

    def __init__(self, request_id: int, *, control: Callable[[str, int], None], sent_ns: int) -> None:
        self.request_id = request_id
        self.sent_ns = sent_ns
        self.accepted_ns: int | None = None
        self.prompt_tokens: int | None = None
        self.outcome: TurnOutcome | None = None
        self.has_output = False
        self._control = control
        self._failure: Exception | None = None
        self._ended = False
        self._tokens: list[Token] = []
        self._news = asyncio.Event()
        self._on_end: list[Callable[[], None]] = []

    @property
    def ended(self) -> bool:
        """True when nothing more will come."""
        return self._ended

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back when the turn has ended; at once when it has already."""
        if self._ended:
            callback()
        else:
            self._on_end.append(callback)

    async def accepted(self) -> int:
        """Wait for the engine to accept the prompt and return its tokens. Raises TurnRefused, TurnFailed."""
        while self.prompt_tokens is None and not self._ended:
            await self._wait()
        self._raise_failure()
        return self.prompt_tokens or 0

    async def batches(self) -> AsyncGenerator[list[Token], None]:
        """Yield the tokens that have arrived since the last time, until the turn ends.

        Raises:
            TurnFailed: the engine broke; all tokens before were yielded.
            TurnRefused: the engine ended the turn with an error.
        """
        while True:
            if self._tokens:
                tokens, self._tokens = self._tokens, []
                yield tokens
            elif self._ended:
                self._raise_failure()
                return
            else:
                await self._wait()

    def stop(self) -> None:
        """Ask the engine to end the turn through its normal Done."""
        self._ask("stop")

    def cancel(self) -> None:
        """Ask the engine to drop the turn."""
        self._ask("cancel")

    def _ask(self, word: str) -> None:
        if not self._ended:
            self._control(word, self.request_id)

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The link's side.

    def accept(self, prompt_tokens: int, at_ns: int) -> None:
        """Note that the prompt is valid and prefill starts."""
        self.prompt_tokens, self.accepted_ns = prompt_tokens, at_ns
        self._news.set()

    def add(self, token: Token) -> None:
        """Add a token."""
        self.has_output = True
        self._tokens.append(token)
        self._news.set()

    def end(self, outcome: TurnOutcome | None, failure: Exception | None = None) -> None:
        """End the turn with an outcome, or with a failure; only the first end counts."""
        if self._ended:
            return
        self._ended, self.outcome, self._failure = True, outcome, failure
        self._news.set()
        for callback in self._on_end:
            callback()
