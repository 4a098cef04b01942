"""Builds servers on a scripted engine, in this process, and speaks to them without sockets."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from server.app import build_app
from server.engine_link import EngineCommand
from server.service import Service, build_service, running
from server.settings import ServerSettings
from server.speculation import Decision

MODEL_DIR = Path(__file__).parents[2] / "engine_bindings" / "reference" / "checkpoint"
ENGINE = Path(__file__).with_name("scripted_engine.py")
MODEL = "checkpoint"
ON = Decision(enabled=True, depth=3, reason="certified by run test-run up to depth 3", run_id="test-run")
OFF = Decision(enabled=False, depth=0, reason="no certificate was given (--certificate RUN)")
# A test that waits for an event gives up after this; nothing here takes a hundredth of it.
LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that runs in this process."""

    service: Service
    app: Starlette
    client: httpx.AsyncClient
    log_file: Path

    def log(self) -> list[dict[str, Any]]:
        """What the engine was asked."""
        if not self.log_file.exists():
            return []
        return [json.loads(line) for line in self.log_file.read_text("utf-8").splitlines()]

    def submitted(self) -> list[dict[str, Any]]:
        """The turns that the engine was asked for."""
        return [entry for entry in self.log() if "prompt" in entry]

    async def chat(self, text: str = "Hello", **parameters: Any) -> httpx.Response:
        """Ask for an answer to one message."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **parameters}
        return await self.client.post("/v1/chat/completions", json=body)

    async def stream(self, text: str = "Hello", **parameters: Any) -> list[dict[str, Any]]:
        """Ask for a stream and return its chunks; it must end with [DONE]."""
        response = await self.chat(text, stream=True, **parameters)
        assert response.status_code == 200, response.text
        events = read_events(response.text)
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]


def read_events(text: str) -> list[str]:
    """Return the data of server-sent events."""
    blocks = [block for block in text.split("\n\n") if not block.startswith(":")]
    assert blocks[-1] == ""
    assert all(block.startswith("data: ") for block in blocks[:-1])
    return [block.removeprefix("data: ") for block in blocks[:-1]]


def write_script(directory: Path, **script: Any) -> Path:
    """Write an engine's script with the shipped tokenizer and a log."""
    values = {"tokenizer": str(MODEL_DIR / "tokenizer.json"), "log": str(directory / "engine.log"), **script}
    path = directory / "script.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def write_engine(directory: Path, **script: Any) -> Path:
    """Write an executable that is a scripted engine."""
    engine = directory / "engine"
    engine.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}" "{write_script(directory, **script)}"\n'
    )
    engine.chmod(0o755)
    return engine


def engine_command(script: Path, settings: ServerSettings) -> Callable[[int], EngineCommand]:
    """Return what starts the scripted engine at a depth."""

    def command(depth: int) -> EngineCommand:
        pins = {"DRAFT": str(depth), "KV_SLOTS": str(settings.kv_slots), "CTX": str(settings.context_tokens)}
        return EngineCommand(
            argv=(sys.executable, str(ENGINE), str(script)), environment={**os.environ, **pins}
        )

    return command


@asynccontextmanager
async def run_server(
    directory: Path,
    *,
    decision: Decision = ON,
    settings: dict[str, Any] | None = None,
    raise_faults: bool = True,
    limit_s: float = LIMIT_S,
    command: Callable[[int], EngineCommand] | None = None,
    check: Callable[[int], Decision] | None = None,
    **script: Any,
) -> AsyncIterator[Running]:
    """Run a server on a scripted engine, or on ``command``; it is loading when the block begins."""
    values = ServerSettings(**{"model_id": MODEL, "audit_dir": directory / "audit", **(settings or {})})
    service = build_service(
        values,
        model_dir=MODEL_DIR,
        decision=decision,
        command=command or engine_command(write_script(directory, **script), values),
        engine_digest="0" * 64,
        created=1,
        check=check,
    )
    app = build_app(service)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=raise_faults)
    async with (
        asyncio.timeout(limit_s),
        running(service),
        httpx.AsyncClient(transport=transport, base_url="http://server") as client,
    ):
        yield Running(service=service, app=app, client=client, log_file=directory / "engine.log")


class Call:
    """One request to an ASGI application whose client can go away in the middle."""

    def __init__(self, app: Starlette, path: str, body: dict[str, Any]) -> None:
        self.status: int | None = None
        self.body = b""
        self._app = app
        self._path = path
        self._body = json.dumps(body).encode()
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self._requested = False
        self.task = asyncio.create_task(self._run())

    def disconnect(self) -> None:
        """Go away."""
        self._gone.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what was received to fulfil a condition."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def _run(self) -> None:
        scope = {
            "type": "http", "method": "POST", "path": self._path, "raw_path": self._path.encode(),
            "query_string": b"", "headers": [(b"content-type", b"application/json")], "http_version": "1.1",
            "scheme": "http", "server": ("server", 80), "client": ("client", 1), "root_path": "",
        }  # fmt: skip
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._requested:
            self._requested = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")
        self._news.set()


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until a condition holds; the caller's time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.001)
