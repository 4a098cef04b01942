import asyncio
from typing import Any

import pytest
import uvicorn

from server.stalled_clients import build_protocol
from tests.server.server_builders import LIMIT_S, until

pytestmark = pytest.mark.anyio
CHUNK = b"x" * (1 << 24)


async def test_a_client_that_never_reads_is_cut_off() -> None:
    sent = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, True, False):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": more})
        sent.set()

    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", http=build_protocol(0.05))
    server = uvicorn.Server(config)
    async with asyncio.timeout(LIMIT_S):
        # The transport reads no further than twice this limit.
        task = asyncio.create_task(server._serve())
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=16)
        writer.write(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")
        await sent.wait()
        server.should_exit = True
        await task
        writer.close()
