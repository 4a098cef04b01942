"""The same requests through the official ``openai`` package, as its users send them.

What the package gives back is written as JSON again, so that one reader serves both ways. Its own retries,
timeouts and redirects are off, and proxies for this machine; the limits of the session hold.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from engine_bindings.served_facts import is_loopback
from harness.drivers.base import Arrival
from harness.drivers.http_transport import (
    ConnectionLostError,
    Exchange,
    Head,
    HttpCall,
    HttpxTransport,
    describe_error,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CHAT = "/chat/completions"
# The package refuses to start without a key; servers that want none take any.
NO_KEY = "none"
UNSENDABLE = "the openai package cannot send half of a surrogate pair, which an answer before this turn held"
STANDARD = frozenset(
    {"model", "messages", "max_tokens", "temperature", "top_p", "stop", "stream", "stream_options", "seed"}
)


def is_openai_installed() -> bool:
    """Say whether the package is there; it is an extra."""
    return find_spec("openai") is not None


class OpenAiClientTransport(HttpxTransport):
    """A server reached with the package for chat completions, and without it for everything else."""

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        # Imported here and not above: it takes about a second, which no other path should pay, and no turn of
        # this one.
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # noqa: PLC0415

        super().__init__(base_url, api_key=api_key)
        client = DefaultAsyncHttpxClient(
            follow_redirects=False, timeout=None, trust_env=not is_loopback(base_url)
        )
        self._openai = AsyncOpenAI(
            api_key=api_key or NO_KEY,
            base_url=self._base_url,
            max_retries=0,
            timeout=None,
            http_client=client,
        )

    @asynccontextmanager
    async def open(self, call: HttpCall) -> AsyncIterator[Exchange]:
        """Send a request; leaving the block closes what is left of its answer."""
        if call.path != CHAT:
            async with super().open(call) as exchange:
                yield exchange
            return
        client_exchange = OpenAiExchange(self._openai, call, self)
        try:
            yield client_exchange
        finally:
            await client_exchange.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._openai.close()
        await super().close()


class OpenAiExchange:
    """One chat completion through the package."""

    def __init__(self, client: "AsyncOpenAI", call: HttpCall, transport: HttpxTransport) -> None:
        self._client = client
        self._call = call
        self._transport = transport
        self._stream: Any = None
        self._items: AsyncIterator[bytes] | None = None

    async def read_head(self, deadline_ns: int) -> Head | None:
        """Send the request and return status and headers."""
        from openai import APIError, APIStatusError  # noqa: PLC0415

        standard = {name: value for name, value in self._call.body.items() if name in STANDARD}
        extra = {name: value for name, value in self._call.body.items() if name not in STANDARD}
        try:
            async with self._limit(deadline_ns):
                answer = await self._client.chat.completions.create(**standard, extra_body=extra or None)
        except TimeoutError:
            return None
        except APIStatusError as error:
            self._items = _give([error.response.content])
            return Head(status=error.status_code, headers=dict(error.response.headers))
        except APIError as error:
            raise ConnectionLostError(describe_error(error.__cause__ or error)) from error
        except UnicodeEncodeError as error:
            raise ConnectionLostError(UNSENDABLE) from error
        if self._call.streams:
            self._stream = answer
            self._items = self._read_chunks()
            return Head(status=answer.response.status_code, headers=dict(answer.response.headers))
        self._items = _give([_dump(answer)])
        return Head(status=200, headers={"content-type": "application/json"})

    async def receive(self, deadline_ns: int) -> Arrival | None:
        """Return the next chunk as an event of a stream, or None when the deadline passes first."""
        assert self._items is not None  # noqa: S101 - the head comes first
        try:
            async with self._limit(deadline_ns):
                data = await anext(self._items, b"")
        except TimeoutError:
            return None
        return Arrival(self._transport.now_ns(), data)

    async def close(self) -> None:
        """Close the answer; the server sees that nobody reads it any more."""
        if self._stream is not None:
            await self._stream.close()

    async def _read_chunks(self) -> AsyncIterator[bytes]:
        from openai import APIError  # noqa: PLC0415

        try:
            async for chunk in self._stream:
                yield b"data: " + _dump(chunk) + b"\n\n"
        except APIError as error:
            if error.body is None:
                raise ConnectionLostError(describe_error(error.__cause__ or error)) from error
            yield b"data: " + json.dumps({"error": error.body}).encode() + b"\n\n"
        except Exception as error:  # the package lets errors of its HTTP library and of JSON through
            raise ConnectionLostError(describe_error(error)) from error

    def _limit(self, deadline_ns: int) -> asyncio.Timeout:
        return asyncio.timeout(max(0, deadline_ns - self._transport.now_ns()) / 1e9)


async def _give(items: list[bytes]) -> AsyncIterator[bytes]:
    for item in items:
        yield item


def _dump(value: Any) -> bytes:
    # What was not sent stays out; what the package does not know stays in. JSON that is no object comes as it
    # is.
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="python", exclude_unset=True, warnings=False)
    return json.dumps(value).encode()
