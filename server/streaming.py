"""Sending an answer, whole or as a stream, and giving up the moment the client is gone.

The status is sent only when the engine has taken the prompt, so everything that can be refused is refused
with a proper status, also for a stream.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from server.answer_format import DONE, AnswerFormat, encode_event
from server.api_errors import ApiError, internal_error, timed_out
from server.job import JobEvent

LOG = logging.getLogger("coli_ab.server")
Events = AsyncGenerator[list[JobEvent], None]
# Proxies give up on a silent connection after 30 s or 60 s.
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": waiting for the engine\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class AnswerResponse(Response):
    """Base of both: runs the job while it watches the client and the clock."""

    def __init__(
        self, events: Events, form: AnswerFormat, *, timeout_s: float, on_error: Callable[[ApiError], None]
    ) -> None:
        super().__init__()
        self._events = events
        self._form = form
        self._timeout_s = timeout_s
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; return when all was sent or the client has gone."""
        await while_connected(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    def _as_error(self, error: Exception) -> ApiError:
        if isinstance(error, TimeoutError):
            error = timed_out(self._timeout_s)
        if not isinstance(error, ApiError):
            LOG.error("unexpected error", exc_info=error)
            error = internal_error()
        self._on_error(error)
        return error


class WholeAnswer(AnswerResponse):
    """One JSON object."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: Response
        try:
            async with asyncio.timeout(self._timeout_s), aclosing(self._events) as batches:
                events = [event async for batch in batches for event in batch]
            response = JSONResponse(self._form.whole(events))
        except Exception as error:  # a client gets an error object for every fault
            response = self._as_error(error).response()
        await response(scope, receive, send)


class StreamedAnswer(AnswerResponse):
    """Server-sent events. An error after the first event is an event too, and then no `[DONE]` follows.

    A comment keeps the connection open while the engine reads a long prompt.
    """

    _keeper: asyncio.Task[None] | None = None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Unbounded, but for the answer's own length: a client that does not read must not hold the slot.
        unsent: asyncio.Queue[list[JobEvent] | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(unsent))
        try:
            while (batch := await unsent.get()) is not None:
                if self._keeper is None:
                    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                    self._keeper = asyncio.create_task(_keep_alive(send))
                await _send_body(send, self._encode(batch))
            await reader
            last = [encode_event(chunk) for chunk in self._form.last_chunks()]
            await self._end(send, b"".join([*last, DONE]))
        except Exception as error:  # a client gets an error event for every fault
            failure = self._as_error(error)
            if self._keeper is None:
                await failure.response()(scope, receive, send)
            else:
                await self._end(send, encode_event(failure.body()))
        finally:
            if self._keeper is not None:
                self._keeper.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, unsent: asyncio.Queue[list[JobEvent] | None]) -> None:
        """Read the job as fast as the engine is, whatever the client does; None marks its end."""
        try:
            async with asyncio.timeout(self._timeout_s), aclosing(self._events) as batches:
                async for batch in batches:
                    unsent.put_nowait(batch)
        finally:
            unsent.put_nowait(None)

    async def _end(self, send: Send, body: bytes) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        await _send_body(send, body, more=False)

    def _encode(self, batch: list[JobEvent]) -> bytes:
        return b"".join(encode_event(chunk) for event in batch for chunk in self._form.chunks(event))


async def while_connected(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Run ``work`` to its end, or cancel it when the client disconnects; both are a normal return."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _keep_alive(send: Send) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_S)
        await _send_body(send, KEEP_ALIVE)


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
