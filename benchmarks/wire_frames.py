"""Frames per second of serve mode's reader, beside a plain `readline` and `read(n)` loop on the same stream.

Run it as `python -m benchmarks.wire_frames`; it exits 1 when a ratio is below 0.5. Both sides get the same
pieces: from whole pipe buffers, as a busy engine fills them, down to one frame at a time, as a slow one does.
"""

import io
import sys
import time
from collections.abc import Callable
from itertools import chain, cycle, islice
from pathlib import Path

from engine_bindings.wire import Data, MuxClient, Ready

RECORDINGS = Path(__file__).parents[1] / "tests" / "recordings"
FRAMES = 100_000
ROUNDS = 7
TARGET_RATIO = 0.5
ONE_FRAME = 0
PIECE_BYTES = (65536, 4096, 512, ONE_FRAME)
READY_BLOCK = b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\nHWINFO 2 24.7 23.8 0 0.0 cpu|\n"


def recorded_frames(name: str) -> list[bytes]:
    """Take the DATA frames out of a recording, each as its bytes."""
    frames = []
    with (RECORDINGS / name).open("rb") as stream:
        while line := stream.readline():
            if line.startswith(b"DATA "):
                frames.append(line + stream.read(int(line.split()[2]) + 1))
    return frames


def build_pieces(piece_bytes: int, frames: int = FRAMES) -> list[bytes]:
    """Build a stream of so many frames of two interleaved runs, cut every `piece_bytes` or at its frames."""
    runs = [recorded_frames(f"d_mux_s1_d{depth}.out") for depth in (0, 3)]
    pieces = list(islice(cycle(chain.from_iterable(zip(*runs, strict=False))), frames))
    if piece_bytes == ONE_FRAME:
        return pieces
    stream = b"".join(pieces)
    return [stream[start : start + piece_bytes] for start in range(0, len(stream), piece_bytes)]


class Pieces(io.RawIOBase):
    """A raw stream that gives one piece for each read, as a pipe does."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer with the next piece."""
        piece = next(self._pieces, b"")
        buffer[: len(piece)] = piece
        return len(piece)


def read_plain(pieces: list[bytes]) -> int:
    """Run the loop to compare with: no checks, no state, no events. Returns the count of frames."""
    stream = io.BufferedReader(Pieces(pieces), 65536)
    readline, read = stream.readline, stream.read
    count = 0
    while line := readline():
        _, request_id, size = line.split()
        payload = read(int(size) + 1)[:-1]
        count += 1
    assert payload
    assert request_id
    return count


def open_client() -> MuxClient:
    """Open a client for which every id of the recordings runs."""
    client = MuxClient()
    client.receive_data(READY_BLOCK)
    assert isinstance(list(client.events())[-1], Ready)
    for request_id in range(1, 20):
        client.encode_submit(request_id=request_id, prompt=b"x", max_tokens=1)
        client.receive_data(b"ACCEPT %d 1\n" % request_id)
    list(client.events())
    return client


def read_events(client: MuxClient, pieces: list[bytes]) -> int:
    """Send the pieces through the reader, each drained as it comes. Returns the count of frames."""
    count = 0
    for piece in pieces:
        client.receive_data(piece)
        for event in client.events():
            count += type(event) is Data
    return count


def timed(read: Callable[[], int], expected: int) -> float:
    """Time one run, which has to see every frame, in seconds."""
    start = time.perf_counter()
    count = read()
    elapsed = time.perf_counter() - start
    assert count == expected
    return elapsed


def measure_ratio(piece_bytes: int) -> tuple[float, float]:
    """Measure frames per second of the plain loop and of the reader, best of interleaved rounds."""
    pieces = build_pieces(piece_bytes)
    plain, events = [], []
    for _ in range(ROUNDS):
        client = open_client()
        plain.append(timed(lambda: read_plain(pieces), FRAMES))
        events.append(timed(lambda client=client: read_events(client, pieces), FRAMES))  # type: ignore[misc]
    return FRAMES / min(plain), FRAMES / min(events)


def main() -> int:
    """Print the table."""
    print(f"{'pieces':>10}  {'plain loop':>12}  {'reader':>12}  ratio")
    worst = float("inf")
    for piece_bytes in PIECE_BYTES:
        plain, events = measure_ratio(piece_bytes)
        worst = min(worst, events / plain)
        name = f"{piece_bytes} B" if piece_bytes else "one frame"
        print(f"{name:>10}  {plain:>10.0f}/s  {events:>10.0f}/s  {events / plain:.2f}")
    return 0 if worst >= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
