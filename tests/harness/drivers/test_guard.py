"""The guard's list, and that it ends what is left on it."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.drivers.guard import ProcessGuard, end_strays, end_survivors, read_survivors


def test_groups_that_ended_are_off_the_list() -> None:
    lines = ["+ 10 /x/a b\n", "+ 11 /x/c\n", "+ 0 /x/d\n", "+ 0 /x/e f\n", "- 10\n", "- 99\n", "- 0 /x/d\n"]

    assert read_survivors(lines) == [(11, "/x/c"), (0, "/x/e f")]


def test_survivors_are_killed_and_their_directories_removed(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    directory.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )

    end_survivors([(process.pid, str(directory))])

    process.communicate()
    assert process.returncode == -9
    assert not directory.exists()


def test_guard_ends_what_was_not_released(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    directory.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )

    with ProcessGuard() as guard:
        guard.watch(process.pid, str(directory))

    process.communicate()
    assert process.returncode == -9
    assert not directory.exists()


def test_guard_leaves_alone_what_was_released(tmp_path: Path) -> None:
    with ProcessGuard() as guard:
        guard.watch(999_999_999, str(tmp_path))
        guard.release(999_999_999)

    assert tmp_path.exists()


def test_guard_that_was_killed_does_not_disturb_the_run() -> None:
    with ProcessGuard() as guard:
        guard._process.kill()
        guard._process.wait()
        guard.watch(999_999_999, "/nowhere")
        guard.release(999_999_999)


def test_a_directory_is_removed_although_nothing_runs_in_it_yet(tmp_path: Path) -> None:
    kept, dropped = tmp_path / "kept", tmp_path / "dropped"
    with ProcessGuard() as guard:
        guard.keep_directory(str(kept))
        guard.keep_directory(str(dropped))
        guard.drop_directory(str(dropped))
        kept.mkdir()
        dropped.mkdir()

    assert not kept.exists()
    assert dropped.exists()


STRAY = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(int(sys.argv[1]), b"x")
        sys.stdin.read()
    os._exit(0)
os.wait()
"""
# Nothing here takes a hundredth of it.
LIMIT_S = 60.0


@pytest.fixture
def stray(tmp_path: Path) -> Iterator[tuple[int, int, str]]:
    """Start an engine that ends and leaves a process behind which is in no group of its.

    Yields the engine's process, a pipe that ends with the process that was left, and the private directory.
    """
    reading, writing = os.pipe()
    directory = tmp_path / "private"
    directory.mkdir()
    engine = subprocess.Popen(
        [sys.executable, "-c", STRAY, str(writing)],
        stdin=subprocess.PIPE,
        pass_fds=[writing],
        env={**os.environ, "SNAP": str(directory)},
        start_new_session=True,
    )
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    engine.wait(LIMIT_S)
    yield engine.pid, reading, str(directory)
    engine.communicate()
    os.close(reading)


def has_ended(reading: int) -> bool:
    return bool(select.select([reading], [], [], LIMIT_S)[0]) and os.read(reading, 1) == b""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
@pytest.mark.parametrize("released", [True, False])
def test_what_left_its_group_is_ended_too(stray: tuple[int, int, str], released: bool) -> None:
    group, reading, directory = stray
    with ProcessGuard() as guard:
        guard.watch(group, directory)
        if released:
            guard.release(group)

    assert has_ended(reading)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
def test_a_process_of_another_cell_is_left_alone(stray: tuple[int, int, str]) -> None:
    _, reading, directory = stray
    end_strays(f"{directory}-2")
    end_strays(directory[:-1])

    assert select.select([reading], [], [], 0)[0] == []
