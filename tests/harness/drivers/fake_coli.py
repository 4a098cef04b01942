"""Builds of an engine whose command line and gateway are scripts, which behave or misbehave in one way each.

``write_build(directory, "name")`` makes a build whose ``coli`` behaves like the function of that name. What
it writes are the literal bytes of a recorded screen.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

GRAY, TEAL, YELLOW, RESET = "\x1b[38;5;238m", "\x1b[38;5;37m\x1b[1m", "\x1b[38;5;179m", "\x1b[0m"
EDGE = f"  {GRAY}╭────╮{RESET}\n"
ROW = f"  {GRAY}│{RESET} {TEAL}›{RESET} "
CLEAR = "\r\x1b[K"
SPINNER = f"\r  {TEAL}⠋{RESET} thinking… 0s\x1b[K"
API = "[API] KV slot 0 prefix 3/12 token, prefill 9\n"
FORWARDS = (
    "[PROF] decode forwards: {} | latency p50 1.0 ms | p90 1.0 ms | p99 1.0 ms | max 1.0 ms"
    " | 1.00 tok/forward\n"
)


def write_build(directory: Path, behaviour: str) -> Path:
    """Write a build and return its directory."""
    directory.mkdir(parents=True)
    here = str(Path(__file__).parent)
    (directory / "coli").write_text(
        f"import sys\nsys.path.insert(0, {here!r})\nimport fake_coli\nfake_coli.{behaviour}()\n"
    )
    (directory / "openai_server.py").write_text("")
    (directory / "version.py").write_text('__version__ = "1.2.3"\n')
    engine = directory / "colibri"
    engine.write_text('#!/bin/sh\necho "engine $*" >&2\necho "[MTP] active: x (draft=$DRAFT)" >&2\n')
    engine.chmod(0o755)
    return directory


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def start_engine() -> None:
    """Start the engine as the front ends do: with the size of the expert cache alone."""
    subprocess.run([os.environ["COLI_ENGINE"], "0"], check=True)


def write_stderr(text: str) -> None:
    """Write what the engine would, where the harness keeps it."""
    with open(os.environ["COLI_AB_STDERR"], "w") as pipe:
        pipe.write(text)


def read_line() -> str:
    line = input(EDGE + ROW)
    bottom = f"  {GRAY}╰────╯{RESET}\n"
    show(f"\x1b[1A\x1b[0J{ROW}{line}   {GRAY}│{RESET}\n{bottom}")
    return line


def begin_answer() -> None:
    show(f"\n  {TEAL}◆ colibri{RESET}\n{SPINNER}{CLEAR}  ")


def end_answer(tokens: int, note: str = "") -> None:
    counts = f"└─ {tokens} tok · 12.50 tok/s · hit 80% · RSS 0.1 GB · 2s"
    show(f"\n  {CLEAR}\r  {GRAY}{counts}{RESET}\n{note}\n")


def say_goodbye() -> None:
    show(f"  {TEAL}goodbye{RESET} — the hummingbird returns to its nest\n\n")


def run_chat(*, tokens: int = 4, note: str = "") -> None:
    show("\n  colibri v1.2.3\n")
    start_engine()
    while (line := read_line()) != ":q":
        if line == ":reset":
            show(f"  {TEAL}✦ memory cleared{RESET}\n\n")
            continue
        begin_answer()
        show(f"you said {line}\n  and no more")
        write_stderr(FORWARDS.format(2))
        end_answer(tokens, note)
    say_goodbye()


def healthy() -> None:
    run_chat()


def reaches_its_cap() -> None:
    run_chat(note=f"  {YELLOW}…stopped at --ngen (4); type :more to continue the response{RESET}\n")


def says_how_it_was_called() -> None:
    names = ("COLI_RAW", "COLI_MODEL", "DRAFT", "SERVE", "NGEN", "TERM")
    show(f"  called with {sys.argv[1:]}\n")
    show("".join(f"  {name} is {os.environ.get(name)}\n" for name in names))
    show(f"  model files {sorted(os.listdir(os.environ['COLI_MODEL']))}\n")
    healthy()


def attaches_to_a_server() -> None:
    show(f"  {TEAL}✦ attached{RESET} \x1b[2mto http://127.0.0.1:8000 · model m\n")
    read_line()


def resumes_a_saved_conversation() -> None:
    show(f"  {YELLOW}↺ resuming a saved conversation: 670 tokens, last written 2d ago{RESET}\n")
    healthy()


def is_not_built() -> None:
    show(f"{YELLOW}colibri engine is not built.{RESET} Run: make -C c colibri\n")
    raise SystemExit(1)


def never_asks() -> None:
    show("  waking the giant\n")
    time.sleep(3600)


def hangs_mid_turn() -> None:
    read_line()
    begin_answer()
    show("one")
    time.sleep(3600)


def hangs_before_output() -> None:
    read_line()
    show(f"\n  {TEAL}◆ colibri{RESET}\n")
    while True:
        show(SPINNER)
        time.sleep(0.05)


def loses_its_engine() -> None:
    read_line()
    begin_answer()
    show(f"one{CLEAR}\n  {YELLOW}[engine terminated: killed by SIGKILL]{RESET}\n")
    say_goodbye()


def dies_mid_turn() -> None:
    read_line()
    begin_answer()
    show("one")
    os.kill(os.getpid(), signal.SIGKILL)


def reads_another_line() -> None:
    input(EDGE + ROW)
    show(f"{ROW}something else   {GRAY}│{RESET}\n  {GRAY}╰────╯{RESET}\n")
    begin_answer()
    time.sleep(3600)


def renders_markdown() -> None:
    read_line()
    show(f"\n  {TEAL}◆ colibri{RESET}\n{SPINNER}{CLEAR}no indent")
    time.sleep(3600)


def never_stops_talking() -> None:
    read_line()
    begin_answer()
    while True:
        show("one ")


def talks_until_it_is_interrupted() -> None:
    read_line()
    begin_answer()
    try:
        while True:
            show("one ")
            time.sleep(0.01)
    except KeyboardInterrupt:
        show(f"\n  {YELLOW}⏹ stopping… (Ctrl-C again to quit){RESET}\n")
    end_answer(9, f"  {YELLOW}⏹ interrupted; type :more to continue the response{RESET}\n")
    while read_line() != ":q":
        pass


def quits_when_it_is_interrupted() -> None:
    read_line()
    begin_answer()
    try:
        while True:
            show("one ")
            time.sleep(0.01)
    except KeyboardInterrupt:
        show(f"\n  {GRAY}interrupted{RESET}\n")
    say_goodbye()


def is_the_engine_itself() -> None:
    show("== engine ==\n\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\n")
    time.sleep(3600)


def does_not_leave() -> None:
    read_line()
    begin_answer()
    show("one")
    end_answer(1)
    while True:
        read_line()


def leaves_with_an_error() -> None:
    healthy()
    raise SystemExit(7)


def starts_a_child() -> None:
    """Start a child in the same group, say its pid and go on."""
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    write_stderr(f"child {child}\n")
    hangs_mid_turn()


# The gateway: `coli serve`.


class _Gateway(http.server.BaseHTTPRequestHandler):
    turns: ClassVar[list[dict[str, object]]] = []
    profiled = True
    completion_tokens = 2

    def do_GET(self) -> None:
        if self.path == "/profile" and self.profiled:
            self.reply({"seq": len(self.turns), "turns": self.turns})
        elif self.path == "/v1/models":
            self.reply({"data": [{"id": "coli-ab"}]})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sys.stderr.write(f"asked {json.dumps(body, sort_keys=True)}\n" + API + FORWARDS.format(77))
        sys.stderr.flush()
        self.turns.append({"completion_tokens": self.completion_tokens, "forwards": 1})
        usage = {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}
        chunks: list[dict[str, object]] = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"index": 0, "delta": {"content": "one"}}]},
            {"choices": [{"index": 0, "delta": {"content": " two"}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def reply(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def serve(handler: type[_Gateway] = _Gateway) -> None:
    start_engine()
    sys.stderr.write(f"called with {sys.argv[1:]} on {sorted(os.listdir(os.environ['COLI_MODEL']))}\n")
    (Path(os.environ["COLI_MODEL"]) / ".coli_usage").write_text("state")
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()


def serves_without_a_profile() -> None:
    _Gateway.profiled = False
    serve()


def profiles_another_turn() -> None:
    _Gateway.completion_tokens = 5
    serve()


def gateway_ends_at_once() -> None:
    sys.stderr.write("Address already in use\n")
    raise SystemExit(3)


def answers_with_a_web_page() -> None:
    class WebPage(_Gateway):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html></html>")

    serve(WebPage)
