"""An OpenAI-compatible server in this process, which answers by a rule and can be made to do it wrongly."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(kw_only=True)
class Behaviour:
    """How the server answers.

    Attributes:
        drafts: drafts that it counts for each answer, all accepted; None: it has no counters.
        drops: the stream leaves out every token but the first of a step.
        changes: the answer to every prompt is another one.
        key: what it wants.
        models: what it lists.
    """

    drafts: int | None = None
    drops: bool = False
    changes: bool = False
    key: str | None = None
    models: tuple[str, ...] = ("toy",)
    generated: int = 0
    drafted: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def words(self, body: dict[str, Any]) -> list[str]:
        text = body["messages"][-1]["content"]
        seed = sum(map(ord, text)) + len(body["messages"]) + self.changes
        return [f"w{(seed * (i + 3)) % 97} " for i in range(body["max_tokens"])]


class Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if not self.may_ask():
            self.send(401, "application/json", b'{"error": {"message": "no key"}}')
        elif self.path == "/v1/models":
            models = [{"id": name, "owned_by": "toy"} for name in self.behaviour.models]
            self.send(200, "application/json", json.dumps({"data": models}).encode())
        elif self.path == "/metrics" and self.behaviour.drafts is not None:
            text = (
                f"toy:generation_tokens_total {self.behaviour.generated}\n"
                f"toy:spec_decode_num_draft_tokens_total {self.behaviour.drafted}\n"
                f"toy:spec_decode_num_accepted_tokens_total {self.behaviour.drafted}\n"
            )
            self.send(200, "text/plain", text.encode())
        else:
            self.send(404, "application/json", b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or not self.may_ask():
            self.send(404, "application/json", b"{}")
            return
        self.behaviour.bodies.append(body)
        words = self.behaviour.words(body)
        self.behaviour.generated += len(words)
        self.behaviour.drafted += self.behaviour.drafts or 0
        usage = {"prompt_tokens": 9, "completion_tokens": len(words)}
        if body["stream"]:
            self.send(200, "text/event-stream", stream(words, usage, drops=self.behaviour.drops))
            return
        message = {"role": "assistant", "content": "".join(words)}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "toy", "usage": usage}
        answer["choices"] = [{"index": 0, "message": message, "finish_reason": "length"}]
        self.send(200, "application/json", json.dumps(answer).encode())

    def may_ask(self) -> bool:
        return (
            self.behaviour.key is None or self.headers.get("Authorization") == f"Bearer {self.behaviour.key}"
        )

    def send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fake_server(behaviour: Behaviour, *, port: int = 0) -> Iterator[str]:
    """Serve on a port, or a free one; give the base address."""

    server = ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (Handler,), {"behaviour": behaviour}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stream(words: list[str], usage: dict[str, int], *, drops: bool) -> bytes:
    """Return a stream of steps of two tokens."""
    frame = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "toy"}
    events: list[dict[str, Any]] = [{**frame, "choices": [{"index": 0, "delta": {"role": "assistant"}}]}]
    for start in range(0, len(words), 2):
        step = words[start : start + (1 if drops else 2)]
        events.append({**frame, "choices": [{"index": 0, "delta": {"content": "".join(step)}}]})
    events.append({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    events.append({**frame, "choices": [], "usage": usage})
    return b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n"
