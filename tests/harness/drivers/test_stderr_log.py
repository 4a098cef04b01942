"""Stderr of an engine: what is copied, kept and understood, and the limits on all three."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.errors import StorageError
from engine_bindings.wire.stderr_lines import PrefixReuse
from harness.drivers import stderr_log
from harness.drivers.stderr_log import StderrLog

LINE = b"[API] KV slot 0 prefix 30/38 token, prefill 8\n"


@given(st.lists(st.integers(1, 40), max_size=10))
def test_events_do_not_depend_on_how_the_bytes_were_cut(sizes: list[int]) -> None:
    text = b"noise\n" + LINE + b"\xff\xfe\n" + LINE
    log = StderrLog(io.BytesIO())
    for size in sizes:
        log.feed(text[:size])
        text = text[size:]
    log.feed(text)

    expected = PrefixReuse(slot=0, cached_tokens=30, prompt_tokens=38, prefill_tokens=8)
    assert log.take_events() == (expected, expected)
    assert log.take_events() == ()


def test_line_without_its_end_is_not_an_event_yet() -> None:
    log = StderrLog(io.BytesIO())
    log.feed(LINE[:-1])
    assert log.take_events() == ()
    log.feed(b"\n")
    assert len(log.take_events()) == 1


def test_a_remark_of_ours_does_not_break_the_line_that_the_engine_has_begun() -> None:
    file = io.BytesIO()
    log = StderrLog(file)
    log.feed(LINE[:20])
    log.add_remark("[http] GET /models: 200")
    log.feed(LINE[20:])

    assert len(log.take_events()) == 1
    assert file.getvalue() == LINE[:20] + b"\n[http] GET /models: 200\n" + LINE[20:]
    assert log.tail_lines(3) == (LINE[:20].decode(), "[http] GET /models: 200", LINE[20:-1].decode())


def write(*pieces: bytes, limit: int) -> bytes:
    file = io.BytesIO()
    log = StderrLog(file, file_limit_bytes=limit)
    for piece in pieces:
        log.feed(piece)
    log.close()
    return file.getvalue()


@given(st.lists(st.binary(min_size=1, max_size=7), max_size=8))
def test_file_up_to_its_limit_is_whole(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)

    assert write(*pieces, limit=max(1, len(whole))) == whole


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (9, b"abcdefghi"),
        (10, b"abcdefghij"),
        (11, b"abcde\n[coli-ab: 1 bytes left out here]\nghijk"),
        (26, b"abcde\n[coli-ab: 16 bytes left out here]\nvwxyz"),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 26])
def test_file_over_its_limit_keeps_both_ends_and_says_what_is_missing(
    size: int, expected: bytes, step: int
) -> None:
    text = b"abcdefghijklmnopqrstuvwxyz"[:size]
    pieces = [text[start : start + step] for start in range(0, size, step)]

    assert write(*pieces, limit=10) == expected


def test_what_a_crash_of_ours_leaves_is_the_beginning() -> None:
    file = io.BytesIO()
    StderrLog(file, file_limit_bytes=10).feed(b"abcdefghijklmn")

    assert file.getvalue() == b"abcde"


def test_limits_of_the_file_leave_room_for_both_ends() -> None:
    assert 0 < stderr_log.FILE_TAIL_BYTES < stderr_log.FILE_LIMIT_BYTES // 2


def test_tail_keeps_the_end_and_nothing_more() -> None:
    log = StderrLog(io.BytesIO())
    log.feed(b"first\n" + b"x" * stderr_log.TAIL_LIMIT_BYTES + b"\nlast\n")

    assert log.tail_lines(1) == ("last",)
    assert "first" not in log.tail_lines(10)
    assert sum(map(len, log.tail_lines(10))) <= stderr_log.TAIL_LIMIT_BYTES


def test_endless_line_does_not_hide_the_next_one() -> None:
    log = StderrLog(io.BytesIO())
    for _ in range(100):
        log.feed(b"x" * stderr_log.LINE_LIMIT_BYTES)
    log.feed(b"\n" + LINE)

    assert len(log.take_events()) == 1


def test_events_that_nobody_takes_are_bounded() -> None:
    log = StderrLog(io.BytesIO())
    log.feed(LINE * (stderr_log.EVENT_LIMIT + 5))

    assert len(log.take_events()) == stderr_log.EVENT_LIMIT


def test_a_file_that_takes_nothing_is_said_once() -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    log = StderrLog(Full())
    with pytest.raises(StorageError, match="No space left on device"):
        log.feed(LINE)
    log.feed(LINE)
    log.close()
    assert len(log.take_events()) == 1
