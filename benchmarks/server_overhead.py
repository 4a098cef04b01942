"""What HTTP costs: tokens per second and time to the first token through the server, against the bare pipe.

A scripted engine answers at a fixed speed. The same turn is taken alternately over its pipe and over HTTP
(loopback, streamed, one event per token), so that a drift of the machine hits both. Prints the medians and
their ratio.

    python benchmarks/server_overhead.py [--speed 2000] [--tokens 1000] [--rounds 7]
"""

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MODEL_DIR = ROOT / "engine_bindings" / "reference" / "checkpoint"
ENGINE = ROOT / "tests" / "server" / "scripted_engine.py"
PROMPT = "[gMASK]<sop><|user|>go<|assistant|><think></think>"


class Measured(NamedTuple):
    """One answer: time to its first output, and its decode rate after it."""

    first_ms: float
    tokens_per_s: float


def write_engine(directory: Path, speed: int, *, repeat: bool = True) -> Path:
    """Write an engine that repeats a few words up to the cap, or one whose answer depends on the prompt."""
    script = directory / "script.json"
    replies = [{"match": "", "text": "one two three four five ", "repeat": True}] if repeat else []
    script.write_text(
        json.dumps(
            {"tokenizer": str(MODEL_DIR / "tokenizer.json"), "tokens_per_s": speed, "replies": replies}
        )
    )
    engine = directory / "engine"
    engine.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ENGINE}" "{script}"\n')
    engine.chmod(0o755)
    return engine


@contextlib.contextmanager
def pipe_engine(engine: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    assert process.stdin is not None
    seen = b""
    while b"TIERS" not in seen:
        seen += os.read(process.stdout.fileno(), 1 << 16)
    yield process
    process.stdin.close()
    process.wait()


@contextlib.contextmanager
def http_server(engine: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run a server; yield its port and its process id."""
    command = [sys.executable, "-m", "server", "--engine", f"reference={engine}", "--model", str(MODEL_DIR)]
    process = subprocess.Popen(
        [*command, "--model-id", "m", "--port", "0", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield int(process.stdout.readline().rpartition(":")[2]), process.pid
    process.terminate()
    process.wait()


def time_pipe(process: subprocess.Popen[bytes], request_id: int, tokens: int) -> Measured:
    assert process.stdin is not None
    assert process.stdout is not None
    prompt = PROMPT.encode()
    start = time.perf_counter()
    options = f"OPTIONS {request_id} detail=1\n".encode()
    process.stdin.write(
        options + f"SUBMIT {request_id} 0 {len(prompt)} {tokens} 0 1\n".encode() + prompt + b"\n"
    )
    first, seen = 0.0, b""
    while b"DONE" not in seen:
        seen = seen[-16:] + os.read(process.stdout.fileno(), 1 << 16)
        if not first and b"DATA" in seen:
            first = time.perf_counter()
    return _measured(start, first, time.perf_counter(), tokens)


def time_http(connection: http.client.HTTPConnection, tokens: int) -> Measured:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": True}
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    first, events = 0.0, 0
    while data := response.read1(1 << 16):
        first = first or time.perf_counter()
        events += data.count(b"data: ")
    # One event for each token, one with the finish reason, and [DONE].
    assert events == tokens + 2, events
    return _measured(start, first, time.perf_counter(), tokens)


def _measured(start: float, first: float, end: float, tokens: int) -> Measured:
    return Measured(1000 * (first - start), (tokens - 1) / (end - first))


def measure(speed: int, tokens: int, rounds: int) -> tuple[list[Measured], list[Measured]]:
    with tempfile.TemporaryDirectory() as name:
        engine = write_engine(Path(name), speed)
        with pipe_engine(engine) as process, http_server(engine) as (port, _):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            time_http(connection, tokens)
            time_pipe(process, 1, tokens)
            pairs = [
                (time_pipe(process, 2 + index, tokens), time_http(connection, tokens))
                for index in range(rounds)
            ]
            connection.close()
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description="HTTP against pipe, same engine, same run")
    parser.add_argument(
        "--speed", type=int, default=2000, help="tokens per second of the engine, 0 for no limit"
    )
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    pipe, served = measure(arguments.speed, arguments.tokens, arguments.rounds)
    rates = [statistics.median(one.tokens_per_s for one in side) for side in (pipe, served)]
    firsts = [statistics.median(one.first_ms for one in side) for side in (pipe, served)]
    print(f"tokens/s   pipe {rates[0]:8.1f}   http {rates[1]:8.1f}   ratio {rates[1] / rates[0]:.3f}")
    print(f"TTFT ms    pipe {firsts[0]:8.2f}   http {firsts[1]:8.2f}   added {firsts[1] - firsts[0]:.2f}")


if __name__ == "__main__":
    main()
