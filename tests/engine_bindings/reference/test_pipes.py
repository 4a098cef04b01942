"""Reading without blocking, writing whole, and flags that signals set."""

import os
import signal
from collections.abc import Iterator

import pytest

from engine_bindings.reference.pipes import Input, Output, Signals, StopFlags


@pytest.fixture
def signals() -> Iterator[Signals]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    found = Signals()
    found.install()
    yield found
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    found.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_nothing_there_is_none_and_data_is_data(signals: Signals, pipe: tuple[int, int]) -> None:
    source = Input(pipe[0], signals)
    assert source.read(wait=False) is None
    os.write(pipe[1], b"abc")
    assert source.read(wait=False) == b"abc"
    os.write(pipe[1], b"de")
    assert source.read(wait=True) == b"de"


def test_the_end_is_empty_bytes(signals: Signals) -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    assert Input(read_end, signals).read(wait=True) == b""
    os.close(read_end)


@pytest.mark.parametrize(("number", "terminated"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_signal_ends_a_wait_and_sets_its_flags(
    signals: Signals, pipe: tuple[int, int], number: int, terminated: bool
) -> None:
    os.kill(os.getpid(), number)
    assert Input(pipe[0], signals).read(wait=True) is None
    assert signals.terminated is terminated
    assert signals.take_interrupt()
    assert not signals.take_interrupt()


def test_a_signal_does_not_hide_data_from_a_running_turn(signals: Signals, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x")
    os.kill(os.getpid(), signal.SIGINT)
    assert Input(pipe[0], signals).read(wait=False) == b"x"


def test_output_is_written_whole_when_the_pipe_takes_it_in_parts(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    sizes = iter([2, 1, 100])
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: next(sizes)]))
    Output(pipe[1]).write(b"abcdef")
    assert os.read(pipe[0], 100) == b"abcdef"


def test_flags_start_down() -> None:
    flags = StopFlags()
    assert (flags.interrupted, flags.terminated, flags.take_interrupt()) == (False, False, False)
