"""What becomes of a run whose disk is full, whose directories are gone, or whose names no record can hold."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.rundir import RunDirectory, read_run

Arguments = Callable[..., list[str]]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")


def fill_disk_after(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk take the files of a run and so many records, and nothing more."""
    append, fsync = RunDirectory.append_cell, os.fsync
    left = [records]

    def count(directory: RunDirectory, record: object) -> None:
        if left[0] == 0:
            monkeypatch.setattr(os, "fsync", refuse)
        left[0] -= 1
        append(directory, record)  # type: ignore[arg-type]

    def refuse(descriptor: int) -> None:
        fsync(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "append_cell", count)


def test_a_disk_that_fills_ends_the_run_and_keeps_what_was_measured(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy")
    with pytest.MonkeyPatch.context() as patch:
        fill_disk_after(3, patch)
        assert main(arguments) == 4

    err = capsys.readouterr().err
    assert "cells.jsonl: No space left on device" in err
    assert f"coli-ab compare --resume {tmp_path / 'run'}" in err
    assert len(read_run(tmp_path / "run").records) == 3
    assert main(["compare", "--resume", str(tmp_path / "run")]) == 0


def test_a_report_that_cannot_be_written_is_no_bug_of_ours(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(compare_arguments("healthy")) == 0
    records = (tmp_path / "run/cells.jsonl").read_bytes()
    (tmp_path / "run/report.json").unlink()
    (tmp_path / "run/report.json").mkdir()

    assert main(["analyze", str(tmp_path / "run")]) == 4
    assert f"cannot write {tmp_path / 'run/report.json'}" in capsys.readouterr().err
    assert (tmp_path / "run/cells.jsonl").read_bytes() == records
    assert list((tmp_path / "run").glob("*.part")) == []


@pytest.mark.parametrize(
    "command",
    [
        ["history", "--db", "x" * 300, "list"],
        ["compare", "--model", "x" * 300],
        ["compare", "--out", "plain-file"],
        ["certificate", "show", "x" * 300],
        ["scenario", "import", "x" * 300],
        ["report", "a\udcff"],
        ["compare", "--out", "a\udcff"],
    ],
)
def test_a_path_that_cannot_be_is_one_clear_message(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain-file").touch()

    assert main(command) == 2
    assert "bug" not in capsys.readouterr().err


def test_an_engine_whose_path_no_record_can_hold_is_refused(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy")
    (tmp_path / "healthy").rename(tmp_path / "a\udcff")
    link = tmp_path / "b\udcff"
    link.symlink_to(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{link}{os.pathsep}{os.environ['PATH']}")
        (tmp_path / "a\udcff").rename(tmp_path / "healthy")
        arguments[arguments.index("--engine") + 1] = "reference=healthy"
        assert main(arguments) == 2

    assert "not UTF-8" in capsys.readouterr().err


def test_a_working_directory_that_is_gone_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert main(["compare"]) == 2
    assert "the working directory: No such file or directory" in capsys.readouterr().err


@needs_full
def test_a_result_that_nobody_can_keep_is_told(compare_arguments: Arguments, tmp_path: Path) -> None:
    assert main(compare_arguments("healthy")) == 0
    command = [sys.executable, "-m", "harness.cli", "report", str(tmp_path / "run")]
    program = "import sys; from harness.cli import main; sys.exit(main(sys.argv[1:]))"
    with FULL.open("wb") as full:
        ended = subprocess.run(
            [command[0], "-c", program, *command[3:]], stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert ended.returncode == 4
    assert ended.stderr.decode() == (
        "coli-ab: cannot write the result on stdout: No space left on device\n"
        "  make room, or send it elsewhere\n"
    )


def test_a_bug_is_told_where_no_file_can_be_made(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.cli.request.build_plan", lambda *a, **k: 1 / 0)
    monkeypatch.setattr("tempfile.mkstemp", refuse)

    assert main(compare_arguments("healthy")) == 70
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err
