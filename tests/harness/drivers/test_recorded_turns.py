"""The recordings of the real engine, played to the sessions that measure it: the counts must be theirs."""

import ast
import io
import re
from pathlib import Path

import pytest

from harness.drivers.base import TurnRequest
from harness.drivers.chat_session import ChatSession
from harness.drivers.scripted import Err, Out, ScriptedTransport
from harness.drivers.serve_session import ServeSession
from harness.drivers.stderr_log import StderrLog
from harness.plan import Timeouts
from harness.transcript import TurnRecord

RECORDINGS = Path(__file__).parents[2] / "recordings"
PIECE = re.compile(r" *([0-9.]+) (IN |OUT|ERR) (b['\"].*)")
CHAT_HEADER = re.compile(rb"\x02PROMPT ([0-9]+) ([0-9]+) 0 1\n")
SERVE_HEADER = re.compile(rb"SUBMIT [0-9]+ 0 ([0-9]+) ([0-9]+) 0 1\n")
Counts = list[tuple[int | None, ...]]


class RecordedTransport(ScriptedTransport):
    """Plays what the engine wrote after the first request only once that was sent, and so on."""

    def __init__(self, log: StderrLog, parts: list[list[Out | Err]]) -> None:
        super().__init__(log, parts[0])
        self._parts = parts[1:]

    def send(self, data: bytes) -> None:
        super().send(data)
        self._steps.extend(self._parts.pop(0))


def read_parts(name: str) -> list[list[Out | Err]]:
    """Return what the engine wrote between the requests, in the order of time."""
    parts: list[list[Out | Err]] = [[]]
    for line in (RECORDINGS / f"{name}.mix").read_text(encoding="utf-8").splitlines():
        found = PIECE.match(line)
        assert found, line
        at_ns, data = round(float(found[1]) * 1e9), ast.literal_eval(found[3])
        if found[2] == "OUT":
            parts[-1].append(Out(data=data, at_ns=at_ns))
        elif found[2] == "ERR":
            parts[-1].append(Err(data=data))
        else:
            parts.append([])
    return parts


def read_requests(name: str, header: re.Pattern[bytes], count: int) -> tuple[list[TurnRequest], bytes]:
    """Return the first requests of a recording, and the bytes in which they were sent."""
    data = (RECORDINGS / f"{name}.in").read_bytes()
    requests, position = [], 0
    for turn in range(count):
        found = header.match(data, position)
        assert found
        end = found.end() + int(found[1])
        requests.append(
            TurnRequest(
                conversation="c",
                turn=turn,
                prompt=data[found.end() : end],
                line=None,
                max_tokens=int(found[2]),
                temperature=0.0,
                top_p=1.0,
                stop=(),
            )
        )
        position = end + 1
    return requests, data[:position]


def play(name: str, count: int) -> list[TurnRecord]:
    """Run the first requests of a recording; they must be sent as they were."""
    served = name.startswith("d_")
    requests, sent = read_requests(name, SERVE_HEADER if served else CHAT_HEADER, count)
    log = StderrLog(io.BytesIO())
    transport = RecordedTransport(log, read_parts(name))
    session = ServeSession(transport, log, Timeouts()) if served else ChatSession(transport, log, Timeouts())
    session.start()
    records = [session.run_turn(request) for request in requests]
    assert transport.sent == sent
    return records


def read_counts(records: list[TurnRecord]) -> Counts:
    return [(r.emitted_tokens, r.prompt_tokens, r.cached_tokens, r.prefill_tokens) for r in records]


CHAT_COUNTS: Counts = [(16, 14, 0, 14), (6, 38, 30, 8), (6, 56, 44, 12), (11, 73, 62, 11), (11, 73, 73, 0)]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_chat_recording_gives_its_counts(depth: int) -> None:
    records = play(f"c_chat_api_d{depth}", 5)

    assert read_counts(records) == CHAT_COUNTS
    assert [record.finish for record in records] == ["length", "length", "stop", "stop", "stop"]
    assert records[0].text == b"3 4 5 6 7 8 9 10."


@pytest.mark.parametrize(
    ("depth", "forwards", "cached", "finishes"),
    [
        (0, [15, 5, 15, 15, 15], [0, 29, 43, 71, 83], ["length"] * 5),
        (1, [8, 3, 9, 9, 10], [0, 30, 44, 72, 83], ["stop"] * 5),
        (3, [7, 2, 7, 6, 7], [0, 30, 44, 72, 83], ["stop"] * 5),
    ],
)
def test_serve_recording_gives_its_counts(
    depth: int, forwards: list[int], cached: list[int], finishes: list[str]
) -> None:
    records = play(f"d_mux_s1_d{depth}", 5)

    assert [record.forwards for record in records] == forwards
    assert [record.cached_tokens for record in records] == cached
    assert [record.emitted_tokens for record in records] == [16, 6, 16, 16, 16]
    # With drafts the engine never says that a cap ended the turn.
    assert [record.finish for record in records] == finishes
    assert all(len(record.token_lengths or ()) == record.emitted_tokens for record in records)
