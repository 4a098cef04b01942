"""The reader's speed beside a plain loop's; skipped unless benchmarks are asked for (`--benchmark-only`)."""

from typing import Any

import pytest

from benchmarks.wire_frames import (
    FRAMES,
    ONE_FRAME,
    PIECE_BYTES,
    build_pieces,
    open_client,
    read_events,
    read_plain,
)

SIZES = {f"{size} bytes" if size != ONE_FRAME else "one frame": size for size in PIECE_BYTES}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", ["plain loop", "reader"])
def test_frames_per_second(benchmark: Any, side: str, size: str) -> None:
    pieces = build_pieces(SIZES[size])
    benchmark.group = f"{FRAMES} DATA frames in pieces of {size}"
    if side == "reader":
        count = benchmark.pedantic(read_events, setup=lambda: ((open_client(), pieces), {}), rounds=7)
    else:
        count = benchmark.pedantic(read_plain, args=(pieces,), rounds=7)
    assert count == FRAMES


@pytest.mark.parametrize("size", SIZES)
def test_both_sides_read_the_same_frames(size: str) -> None:
    pieces = build_pieces(SIZES[size], frames=500)
    assert read_plain(pieces) == read_events(open_client(), pieces) == 500
