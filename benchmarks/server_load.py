"""What happens under load: many clients at once, each answer compared with its solo answer, and memory over
time.

    python -m benchmarks.server_load [--clients 200] [--queue 150] [--requests 10000]

Everything runs on the loopback against a scripted engine. First every question is asked alone; then all
clients ask at once, streamed and whole in turn, and each must get its own answer or a 429 with Retry-After.
Then so many requests are made, and the server's memory is read along the way.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.server_overhead import http_server, write_engine

WORDS = 20


class Answer(NamedTuple):
    """What a client got."""

    status: int
    retry_after: bool
    text: str


async def ask(port: int, question: str, *, stream: bool) -> Answer:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": WORDS,
        "stream": stream,
    }
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        "Connection: close",
        f"Content-Length: {len(payload)}",
    )
    writer.write("\r\n".join((*lines, "", "")).encode() + payload)
    raw = await reader.read()
    writer.close()
    return read_answer(raw, stream=stream)


def read_answer(raw: bytes, *, stream: bool) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status != 200:
        return Answer(status, b"retry-after" in head.lower(), "")
    if not stream:
        return Answer(status, False, json.loads(body)["choices"][0]["message"]["content"])
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    return Answer(status, False, "".join(delta.get("content", "") for delta in deltas))


async def crowd(port: int, clients: int) -> Counter[str]:
    """Return how many clients got their own answer, a clean 429, or anything else."""
    questions = [f"question {index}" for index in range(clients)]
    solo = [await ask(port, question, stream=False) for question in questions]
    together = await asyncio.gather(
        *(ask(port, question, stream=index % 2 == 0) for index, question in enumerate(questions))
    )
    kinds: Counter[str] = Counter()
    for alone, answer in zip(solo, together, strict=True):
        if answer.status == 200:
            kinds["own answer" if answer.text == alone.text else "WRONG ANSWER"] += 1
        else:
            kinds["429" if answer.status == 429 and answer.retry_after else f"STATUS {answer.status}"] += 1
    return kinds


async def many(port: int, pid: int, requests: int, at_once: int) -> list[float]:
    """Make requests and return the server's resident memory in MiB at ten points on the way."""
    memory = []
    for part in range(10):
        for _ in range(max(1, requests // 10 // at_once)):
            answers = await asyncio.gather(
                *(ask(port, f"part {part} client {index}", stream=index % 2 == 0) for index in range(at_once))
            )
            assert all(answer.status == 200 for answer in answers)
        memory.append(resident_mib(pid))
    return memory


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description="many clients at once, and memory over many requests")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--queue", type=int, default=150, help="the server's --queue")
    parser.add_argument("--requests", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        engine = write_engine(Path(name), 0, repeat=False)
        with http_server(engine, "--queue", str(arguments.queue)) as (port, pid):
            start = time.perf_counter()
            kinds = asyncio.run(crowd(port, arguments.clients))
            print(
                f"{arguments.clients} clients at once in {time.perf_counter() - start:.1f} s: {dict(kinds)}"
            )
            memory = asyncio.run(many(port, pid, arguments.requests, 50))
            shown = " ".join(f"{value:.1f}" for value in memory)
            print(f"resident MiB over {arguments.requests} requests: {shown}")


if __name__ == "__main__":
    main()
