"""Who may use the engine now: a bounded queue in front of its slots."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from server.api_errors import queue_full, unavailable
from server.slots import Ids, Slots

# Weight of the newest turn in the estimate behind Retry-After.
TURN_TIME_WEIGHT = 0.2


class Grant:
    """The use of one slot. ``release`` gives it back; calling it twice does nothing."""

    def __init__(self, slot: int, give_back: Callable[["Grant"], None]) -> None:
        self.slot = slot
        self.started_at = time.monotonic()
        self._give_back: Callable[[Grant], None] | None = give_back

    def release(self) -> None:
        """Give the slot back."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self)


class _Waiter:
    def __init__(self, prompt: Ids) -> None:
        self.prompt = prompt
        self.granted: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()


class Admission:
    """First come, first served.

    A free slot goes to the request at the head; which slot, its prompt decides.
    """

    def __init__(self, slots: Slots, queue_limit: int) -> None:
        self._slots = slots
        self._queue_limit = queue_limit
        self._free = set(range(len(slots)))
        self._waiting: deque[_Waiter] = deque()
        self._turn_s = 1.0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        self.on_demand: Callable[[], None] = lambda: None

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Slots in use."""
        return len(self._slots) - len(self._free)

    async def acquire(self, prompt: Ids) -> Grant:
        """Wait for a slot. Raises ApiError when the queue is full or the server is shutting down."""
        if self.draining:
            raise unavailable("the server is shutting down", code="shutting_down")
        if self._free and not self._waiting:
            return self._grant(prompt)
        if len(self._waiting) >= self._queue_limit:
            raise queue_full(len(self._waiting), self.retry_after_s())
        waiter = _Waiter(prompt)
        self._waiting.append(waiter)
        self.on_demand()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    def acquire_idle(self) -> Grant | None:
        """Return a slot when nobody runs or waits, else None; for work that must not delay a request."""
        if self.draining or self._waiting or self.running:
            return None
        return self._grant(())

    async def idle(self) -> None:
        """Wait until nobody runs or waits."""
        await self._idle.wait()

    def drain(self) -> None:
        """Let what runs finish, and refuse all that waits or comes."""
        self.draining = True
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.granted.done():
                waiter.granted.set_exception(unavailable("the server is shutting down", code="shutting_down"))

    def retry_after_s(self) -> float:
        """Return about how long it takes until the queue has moved up by one."""
        return self._turn_s / len(self._slots)

    def _grant(self, prompt: Ids) -> Grant:
        slot = self._slots.choose(self._free, prompt)
        self._free.discard(slot)
        self._idle.clear()
        return Grant(slot, self._take_back)

    def _take_back(self, grant: Grant) -> None:
        self._turn_s += TURN_TIME_WEIGHT * (time.monotonic() - grant.started_at - self._turn_s)
        self._free.add(grant.slot)
        while self._waiting and self._free:
            waiter = self._waiting.popleft()
            if not waiter.granted.done():
                waiter.granted.set_result(self._grant(waiter.prompt))
        if not self.running:
            self._idle.set()

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.granted.done() and not waiter.granted.cancelled() and not waiter.granted.exception():
            waiter.granted.result().release()
