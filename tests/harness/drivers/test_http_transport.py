"""The two ways over a real socket: a server in this process that writes exactly the bytes of the test."""

import asyncio
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.drivers.base import Arrival
from harness.drivers.http_transport import ConnectionLostError, Head, HttpCall, HttpTransport, HttpxTransport
from harness.drivers.openai_client import OpenAiClientTransport

LATER_NS = 60_000_000_000
BODY = {"model": "m", "messages": [], "stream": True, "top_k": 1}
CALL = HttpCall(method="POST", path="/chat/completions", body=BODY, streams=True)
KINDS = [HttpxTransport, OpenAiClientTransport]


class RawServer:
    """Answers each connection with the same bytes, and keeps what it was sent."""

    def __init__(self, answer: bytes, *, hangs: bool = False) -> None:
        self.requests: list[bytes] = []
        self.gone = threading.Event()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                outer.requests.append(read_request(self.request))
                self.request.sendall(answer)
                if hangs:
                    self.request.settimeout(60)
                    if not self.request.recv(1):
                        outer.gone.set()

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"


def read_request(connection: Any) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def raw_server(answer: bytes, *, hangs: bool = False) -> Iterator[RawServer]:
    server = RawServer(answer, hangs=hangs)
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.server.shutdown()
        server.server.server_close()
        thread.join()


def http(
    body: bytes, *, status: str = "200 OK", kind: str = "text/event-stream", length: int | None = None
) -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def sse(*values: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


DONE = b"data: [DONE]\n\n"


def exchange(
    kind: Callable[..., HttpTransport],
    url: str,
    *,
    call: HttpCall = CALL,
    limit: int = 99,
    key: str | None = None,
) -> tuple[Head | None, bytes]:
    """Make one call and return its head and at most ``limit`` pieces of its body."""

    async def run() -> tuple[Head | None, bytes]:
        transport = kind(url, api_key=key)
        try:
            async with transport.open(call) as opened:
                head = await opened.read_head(transport.now_ns() + LATER_NS)
                body = b""
                for _ in range(limit):
                    arrival = await opened.receive(transport.now_ns() + LATER_NS)
                    assert isinstance(arrival, Arrival)
                    if not arrival.data:
                        break
                    body += arrival.data
                return head, body
        finally:
            await transport.close()

    return asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_arrives_with_what_was_sent(kind: Callable[..., HttpTransport]) -> None:
    sent = sse(chunk(content="é", reasoning_content="Hm", token_ids=[1]), chunk("stop"))
    with raw_server(http(sent + DONE)) as server:
        head, body = exchange(kind, server.url, key="sk-secret")
        (request,) = server.requests

    assert head is not None
    assert (head.status, head.content_type) == (200, "text/event-stream")
    values = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line[6:] not in ("", "[DONE]")]
    assert [value["choices"][0]["delta"] for value in values] == [
        {"content": "é", "reasoning_content": "Hm", "token_ids": [1]},
        {},
    ]
    told, _, raw = request.partition(b"\r\n\r\n")
    assert told.startswith(b"POST /v1/chat/completions HTTP/1.1")
    assert b"authorization: bearer sk-secret" in told.lower()
    assert json.loads(raw) == BODY


def test_the_answer_is_asked_for_without_compression_and_proxies() -> None:
    with raw_server(http(DONE)) as server:
        exchange(HttpxTransport, server.url)
        assert b"accept-encoding: identity" in server.requests[0].lower()


def test_a_path_from_the_root() -> None:
    with raw_server(http(b"x_total 1\n", kind="text/plain")) as server:
        head, body = exchange(HttpxTransport, server.url, call=HttpCall(method="GET", path="//metrics"))
        assert server.requests[0].startswith(b"GET /metrics HTTP/1.1")

    assert head is not None
    assert body == b"x_total 1\n"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_status_has_its_body(kind: Callable[..., HttpTransport]) -> None:
    body = b'{"error": {"message": "no", "code": "bad"}}'
    with raw_server(http(body, status="400 Bad Request", kind="application/json")) as server:
        head, got = exchange(kind, server.url)
        assert len(server.requests) == 1

    assert head is not None
    assert head.status == 400
    assert got == body


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_retried(kind: Callable[..., HttpTransport]) -> None:
    with raw_server(http(b"busy", status="503 Busy", kind="text/plain")) as server:
        head, _ = exchange(kind, server.url)
        assert len(server.requests) == 1

    assert head is not None
    assert head.status == 503


@pytest.mark.parametrize("kind", KINDS)
def test_no_redirect_is_followed(kind: Callable[..., HttpTransport]) -> None:
    with raw_server(http(sse(chunk(content="a")))) as other:
        answer = http(b"", status=f"307 Moved\r\nLocation: {other.url}/chat/completions")
        with raw_server(answer) as server:
            head, _ = exchange(kind, server.url)
        assert not other.requests

    assert head is not None
    assert (head.status, head.headers["location"]) == (307, f"{other.url}/chat/completions")


@pytest.mark.parametrize("kind", KINDS)
def test_this_machine_is_reached_without_a_proxy(
    kind: Callable[..., HttpTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    with raw_server(b"") as proxy, raw_server(http(DONE)) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        exchange(kind, server.url)
        assert (len(proxy.requests), len(server.requests)) == (0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_of_content_is_told(kind: Callable[..., HttpTransport]) -> None:
    with raw_server(http(b"<html>", kind="text/html")) as server:
        head, _ = exchange(kind, server.url)

    assert head is not None
    assert head.content_type == "text/html"


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_breaks_off(kind: Callable[..., HttpTransport]) -> None:
    part = sse(chunk(content="a"))
    with raw_server(http(part, length=len(part) + 50)) as server, pytest.raises(ConnectionLostError):
        exchange(kind, server.url)


@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_at_all(kind: Callable[..., HttpTransport]) -> None:
    with raw_server(b"") as server, pytest.raises(ConnectionLostError):
        exchange(kind, server.url)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_listens(kind: Callable[..., HttpTransport]) -> None:
    with raw_server(b"") as server:
        url = server.url
    with pytest.raises(ConnectionLostError):
        exchange(kind, url)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_leaves_is_seen(kind: Callable[..., HttpTransport]) -> None:
    part = sse(chunk(content="a"))
    with raw_server(http(part, length=len(part) + 50), hangs=True) as server:
        _, body = exchange(kind, server.url, limit=1)
        assert b'"a"' in body
        assert server.gone.wait(60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", [b"", http(b"", length=50)])
def test_a_limit_that_has_passed_ends_the_wait(kind: Callable[..., HttpTransport], answer: bytes) -> None:
    async def run(url: str) -> list[object]:
        transport = kind(url)
        try:
            async with transport.open(CALL) as opened:
                if not answer:
                    return [await opened.read_head(transport.now_ns() - 1)]
                head = await opened.read_head(transport.now_ns() + LATER_NS)
                return [head and None, await opened.receive(transport.now_ns() - 1)]
        finally:
            await transport.close()

    with raw_server(answer, hangs=True) as server:
        assert set(asyncio.run(run(server.url))) == {None}


def test_an_error_inside_the_packages_stream_is_an_error_event() -> None:
    stream = sse(chunk(content="a"), {"error": {"message": "boom", "code": "x"}})
    with raw_server(http(stream)) as server:
        _, body = exchange(OpenAiClientTransport, server.url)

    assert body.endswith(sse({"error": {"message": "boom", "code": "x"}}))


def test_json_that_is_no_object_comes_through_the_package_as_it_is() -> None:
    with raw_server(http(b'event: error\ndata: "boom"\n\n')) as server:
        _, body = exchange(OpenAiClientTransport, server.url)

    assert body == b'data: "boom"\n\n'


def test_text_that_the_package_cannot_send_is_named() -> None:
    messages = [{"role": "assistant", "content": "\ud83d"}]
    call = HttpCall(
        method="POST", path="/chat/completions", body={**BODY, "messages": messages}, streams=True
    )
    with raw_server(b"") as server, pytest.raises(ConnectionLostError, match="half of a surrogate pair"):
        exchange(OpenAiClientTransport, server.url, call=call)


def test_a_stream_that_the_package_cannot_read() -> None:
    with raw_server(http(b"data: {]\n\n")) as server, pytest.raises(ConnectionLostError):
        exchange(OpenAiClientTransport, server.url)


def test_a_whole_answer_through_the_package() -> None:
    message = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    call = HttpCall(method="POST", path="/chat/completions", body={**BODY, "stream": False})
    with raw_server(http(json.dumps(answer).encode(), kind="application/json")) as server:
        head, body = exchange(OpenAiClientTransport, server.url, call=call)

    assert head is not None
    assert head.content_type == "application/json"
    assert json.loads(body) == answer
