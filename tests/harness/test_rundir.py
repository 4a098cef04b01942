"""The run directory: writing whole files, appending records, and reading what is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine_bindings.errors import RunDirectoryError, StorageError, UsageError
from harness.plan import Arm, CellSpec
from harness.rundir import RunDirectory, create_run_directory, read_run
from harness.transcript import CellRecord

SPEC = CellSpec(arm=Arm(path="chat", depth=3), scenario="quick", repetition=1)
RECORD = CellRecord(spec=SPEC, started_at="now", argv=("engine",))
REPOSITORY = Path(__file__).parents[2]


def test_directory_is_named_by_the_run_unless_it_is_given(tmp_path: Path) -> None:
    assert create_run_directory(None, run_id="x", runs=tmp_path / "runs").path == tmp_path / "runs/x"
    assert create_run_directory(tmp_path / "out", run_id="x").path == tmp_path / "out"


def test_empty_directory_may_be_used_and_another_not(tmp_path: Path) -> None:
    create_run_directory(tmp_path, run_id="x")
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="is not empty"):
        create_run_directory(tmp_path, run_id="x")


def test_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="cannot make the run directory"):
        create_run_directory(tmp_path / "file", run_id="x")


def test_text_files_end_in_a_newline_and_leave_no_part_behind(tmp_path: Path) -> None:
    RunDirectory(tmp_path).write_text("a/b.txt", "text")

    assert (tmp_path / "a/b.txt").read_text() == "text\n"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]


def test_records_are_appended_one_a_line(tmp_path: Path) -> None:
    record = CellRecord(spec=SPEC, started_at="now", argv=("engine",))
    RunDirectory(tmp_path).append_cell(record)
    RunDirectory(tmp_path).append_cell(record)

    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert [CellRecord.from_json(line) for line in lines] == [record, record]


def test_stderr_file_is_named_by_the_cell(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with directory.open_stderr(SPEC) as file:
        file.write(b"x")

    assert (tmp_path / directory.stderr_name(SPEC)).read_bytes() == b"x"
    assert directory.stderr_name(SPEC) == "stderr/chat-3.quick.1.txt"


def test_directory_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"plan\.json: No such file"):
        read_run(tmp_path)


def test_plan_that_is_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")

    with pytest.raises(RunDirectoryError, match=r"plan\.json"):
        read_run(tmp_path)


FILL = """
import resource, sys
from pathlib import Path
from engine_bindings.errors import StorageError
from harness.rundir import RunDirectory
from tests.harness.test_rundir import RECORD

resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
directory = RunDirectory(Path(sys.argv[1]))
try:
    while True:
        directory.append_cell(RECORD)
except StorageError as error:
    print(error.message)
"""


def test_a_record_that_does_not_fit_leaves_the_others_whole(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path)], stdout=subprocess.PIPE, check=True, cwd=REPOSITORY
    )

    assert ended.stdout.decode() == f"cannot write {tmp_path / 'cells.jsonl'}: File too large\n"
    *lines, rest = (tmp_path / "cells.jsonl").read_bytes().split(b"\n")
    assert rest == b""
    assert {CellRecord.from_json(line) for line in lines} == {RECORD}


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "stderr").touch()

    with pytest.raises(StorageError, match=r"stderr/chat-3\.quick\.1\.txt: File exists"):
        RunDirectory(tmp_path).open_stderr(SPEC)


def test_a_directory_that_vanished_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cells\.jsonl: No such file or directory"):
        RunDirectory(tmp_path / "gone").append_cell(RECORD)


def test_no_file_has_a_name_that_an_artifact_cannot_have() -> None:
    spec = CellSpec(arm=Arm(path="serve", depth=3, build="pr"), scenario="quick", repetition=1)
    assert RunDirectory(Path("run")).stderr_name(spec) == "stderr/pr.serve-3.quick.1.txt"
