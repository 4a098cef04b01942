"""Requests and answers over HTTP, as the session sees them, and the same over httpx."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from engine_bindings.served_facts import is_loopback
from harness.drivers.base import Arrival

# Servers close idle connections after 5 s, the default of the most common one. A connection that is dropped
# by us before that is never found closed by a request, which is not sent again.
IDLE_CONNECTION_S = 2.0


class ConnectionLostError(Exception):
    """The connection could not be made, or broke before the answer was complete; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One request.

    Attributes:
        method: GET or POST.
        path: behind the base address, for example ``/chat/completions``; one that begins with ``//`` counts
            from
            the root of the server, for example ``//metrics``.
        body: of a POST, sent as JSON.
        streams: server-sent events are asked for.
    """

    method: str
    path: str
    body: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status and headers of an answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def content_type(self) -> str:
        """The media type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Exchange(Protocol):
    """One request that was sent, and its answer as it arrives."""

    async def read_head(self, deadline_ns: int) -> Head | None:
        """Return status and headers, or None when the deadline passes first. Raises ConnectionLostError."""

    async def receive(self, deadline_ns: int) -> Arrival | None:
        """Return the next bytes of the body, none at its end; None when the deadline passes first.

        Raises:
            ConnectionLostError: the answer broke off.
        """


class HttpTransport(Protocol):
    """One server. Times are nanoseconds of one monotonic clock."""

    def open(self, call: HttpCall) -> AbstractAsyncContextManager[Exchange]:
        """Send a request; leaving the block closes what is left of its answer."""

    async def pause(self, seconds: float) -> None:
        """Let time pass."""

    async def close(self) -> None:
        """Close all connections."""

    def now_ns(self) -> int:
        """Read the clock."""


class HttpxTransport:
    """A server reached with httpx.

    The key goes into a header of every request and nowhere else. Nothing is retried, no redirect is followed,
    and the answer is asked for without compression, which would hold pieces back.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._origin = read_origin(base_url)
        headers = {"Accept-Encoding": "identity"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=None,  # noqa: S113 - the session's own limits hold
            limits=httpx.Limits(keepalive_expiry=IDLE_CONNECTION_S),
            # This machine is reached without a proxy, and certificates take a while to load.
            trust_env=not is_loopback(base_url),
            verify=base_url.startswith("https:"),
        )
        self._start_ns = time.monotonic_ns()

    @asynccontextmanager
    async def open(self, call: HttpCall) -> AsyncIterator[Exchange]:
        """Send a request; leaving the block closes what is left of its answer."""
        request = self._client.build_request(
            call.method,
            self._origin + call.path[1:] if call.path.startswith("//") else self._base_url + call.path,
            content=encode_body(call.body) if call.method == "POST" else None,
            headers={"Content-Type": "application/json"} if call.method == "POST" else None,
        )
        exchange = HttpxExchange(self._client, request, self.now_ns)
        try:
            yield exchange
        finally:
            await exchange.close()

    async def pause(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def now_ns(self) -> int:
        """Return the time since the transport was made."""
        return time.monotonic_ns() - self._start_ns


class HttpxExchange:
    """One request of an :class:`HttpxTransport`."""

    def __init__(self, client: httpx.AsyncClient, request: httpx.Request, now_ns: "NowNs") -> None:
        self._client = client
        self._request = request
        self._now_ns = now_ns
        self._response: httpx.Response | None = None
        self._body: AsyncIterator[bytes] | None = None

    async def read_head(self, deadline_ns: int) -> Head | None:
        """Send the request and return status and headers, or None when the deadline passes first."""
        try:
            async with self._limit(deadline_ns):
                self._response = await self._client.send(self._request, stream=True)
        except TimeoutError:
            return None
        except httpx.HTTPError as error:
            raise ConnectionLostError(describe_error(error)) from error
        self._body = self._response.aiter_bytes()
        return Head(status=self._response.status_code, headers=dict(self._response.headers))

    async def receive(self, deadline_ns: int) -> Arrival | None:
        """Return the next bytes of the body, or None when the deadline passes first."""
        assert self._body is not None  # noqa: S101 - the head comes first
        try:
            async with self._limit(deadline_ns):
                data = await anext(self._body, b"")
        except TimeoutError:
            return None
        except httpx.HTTPError as error:
            raise ConnectionLostError(describe_error(error)) from error
        return Arrival(self._now_ns(), data)

    async def close(self) -> None:
        """Close the answer; the server sees that nobody reads it any more."""
        if self._response is not None:
            await self._response.aclose()

    def _limit(self, deadline_ns: int) -> asyncio.Timeout:
        return asyncio.timeout(max(0, deadline_ns - self._now_ns()) / 1e9)


class NowNs(Protocol):
    """Reads a monotonic clock in nanoseconds."""

    def __call__(self) -> int:
        """Return the time."""


def read_origin(base_url: str) -> str:
    """Return scheme, host and port of an address.

    >>> read_origin("http://127.0.0.1:8000/v1")
    'http://127.0.0.1:8000'
    """
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}"


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON; half surrogate pairs, which are no text, stay escaped."""
    return json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode()


def describe_error(error: BaseException) -> str:
    """Return what went wrong in one line, whatever the library calls it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]
