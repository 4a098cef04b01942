"""Keeps an engine running: starts it, starts it again when it is lost, and says what state it is in."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from server.engine_link import EngineCommand, EngineLink, EngineLost, EngineTimeouts
from server.engine_turn import TurnFailed

State = Literal["loading", "ready", "restarting", "failed", "stopped"]
# An engine that cannot start five times in a row needs a person.
MAX_FAILED_STARTS = 5
FIRST_PAUSE_S = 0.25
LOG = logging.getLogger("coli_ab.server")


class EngineSupervisor:
    """Owns the engine process.

    ``command`` is asked before every start, so that a restart can use another depth.
    """

    def __init__(self, command: Callable[[], EngineCommand], timeouts: EngineTimeouts) -> None:
        self.state: State = "loading"
        self.restarts = 0
        self.last_failure: str | None = None
        self.failed: asyncio.Event = asyncio.Event()
        self.on_loss: Callable[[], None] = lambda: None
        self.before_restart: Callable[[], Awaitable[None]] = _nothing
        self._command = command
        self._timeouts = timeouts
        self._link: EngineLink | None = None
        self._change = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether there is an engine that takes turns; one that was lost this instant does not count."""
        return self.state == "ready" and self._link is not None and not self._link.lost.done()

    @property
    def extension(self) -> bool | None:
        """Whether the engine takes options per request; None while there is no engine."""
        return None if self._link is None else self._link.extension

    def start(self) -> None:
        """Begin to start the engine; returns at once."""
        self._task = asyncio.create_task(self._run())

    async def engine(self) -> EngineLink:
        """Wait for an engine that takes turns. Raises TurnFailed when there will be none."""
        async with self._change:
            await self._change.wait_for(lambda: self.ready or self.state in {"failed", "stopped"})
        if self._link is None or not self.ready:
            raise TurnFailed(self.last_failure or "it was stopped")
        return self._link

    async def stop(self) -> None:
        """End the engine and stop looking after it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        link, self._link = self._link, None
        await self._enter("stopped")
        if link is not None:
            await link.close()

    async def _run(self) -> None:
        failures, first = 0, True
        while failures < MAX_FAILED_STARTS:
            if not first:
                await self.before_restart()
            first = False
            try:
                self._link = await EngineLink.start(self._command(), self._timeouts)
            except EngineLost as error:
                failures += 1
                self._note_failure(f"it did not start: {error}")
                await asyncio.sleep(FIRST_PAUSE_S * 2**failures if failures < MAX_FAILED_STARTS else 0)
                continue
            failures = 0
            await self._enter("ready")
            await self._watch(self._link)
        await self._enter("failed")
        self.failed.set()

    async def _watch(self, link: EngineLink) -> None:
        reason = await asyncio.shield(link.lost)
        self._link = None
        self.restarts += 1
        self._note_failure(reason)
        await self._enter("restarting")
        self.on_loss()
        await link.kill()

    def _note_failure(self, reason: str) -> None:
        self.last_failure = reason
        LOG.error("the engine failed: %s", reason)

    async def _enter(self, state: State) -> None:
        async with self._change:
            self.state = state
            self._change.notify_all()


async def _nothing() -> None:
    pass
