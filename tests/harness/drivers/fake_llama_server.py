"""A stand-in for ``llama-server``: takes its flags and plays one behaviour of a server, good or bad."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

PIECE = {"content": "ab", "stop": False, "tokens_predicted": 1}
END = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 1, "tokens_evaluated": 3}
TIMINGS = {"cache_n": 1, "prompt_n": 2, "predicted_per_second": 10.0}
LONG_PROMPT = {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}}


def write_server(path: Path, behaviour: str) -> Path:
    """Write an executable that plays ``behaviour``."""
    root = Path(__file__).parents[3]
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        f"from tests.harness.drivers.fake_llama_server import serve\nserve({behaviour!r})\n"
    )
    path.chmod(0o755)
    return path


class Handler(BaseHTTPRequestHandler):
    """Answers as the behaviour says."""

    behaviour = ""
    asked = 0

    def do_GET(self) -> None:
        """Answer /health and /metrics."""
        Handler.asked += 1
        if self.path == "/metrics":
            self._reply(404, "text/plain", b"")
        elif self.behaviour == "loads" or (self.behaviour == "slow start" and Handler.asked < 3):
            self._reply(503, "application/json", b'{"error": {"message": "Loading model"}}')
        else:
            self._reply(200, "application/json", b'{"status": "ok"}')

    def do_POST(self) -> None:
        """Answer a turn."""
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.behaviour == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.behaviour == "too long":
            self._reply(400, "application/json", json.dumps(LONG_PROMPT).encode())
        elif self.behaviour == "hangs":
            signal.pause()
        else:
            events = [PIECE, {**END, "timings": TIMINGS}]
            body = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in events)
            self._reply(200, "text/event-stream", body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(behaviour: str) -> None:
    """Run until a signal ends the process."""
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    sys.stderr.write(f"model {Path(flags['--model']).read_bytes()!r}\n")
    sys.stderr.flush()
    if behaviour == "cannot load":
        sys.exit("error: unknown model architecture")
    if behaviour == "will not end":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Handler.behaviour = behaviour
    HTTPServer(("127.0.0.1", int(flags["--port"])), Handler).serve_forever()
