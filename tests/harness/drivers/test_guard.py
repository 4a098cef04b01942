"""The guard's list, and that it ends what is left on it."""

import subprocess
import sys
from pathlib import Path

from harness.drivers.guard import ProcessGuard, end_survivors, read_survivors


def test_groups_that_ended_are_off_the_list() -> None:
    lines = ["+ 10 /tmp/a b\n", "+ 11 /tmp/c\n", "- 10\n", "- 99\n"]

    assert read_survivors(lines) == {11: "/tmp/c"}  # noqa: S108


def test_survivors_are_killed_and_their_directories_removed(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    directory.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )

    end_survivors({process.pid: str(directory)})

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
