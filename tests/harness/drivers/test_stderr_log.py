"""Stderr of an engine: what is copied, kept and understood, and the limits on all three."""

import io

from hypothesis import given
from hypothesis import strategies as st

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


def test_file_ends_at_its_limit_with_a_note() -> None:
    file = io.BytesIO()
    log = StderrLog(file, file_limit_bytes=10)
    for _ in range(3):
        log.feed(b"12345678")

    assert file.getvalue() == b"1234567812\n[coli-ab: the rest after 10 bytes is not kept]\n"


def test_file_just_below_its_limit_has_no_note() -> None:
    file = io.BytesIO()
    StderrLog(file, file_limit_bytes=10).feed(b"123456789")

    assert file.getvalue() == b"123456789"


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
