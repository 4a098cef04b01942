"""What is left when a run is interrupted or killed: its records, and no process of the engine."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from harness.cli import main
from harness.cli.scenario_files import load_scenario
from harness.rundir import read_run

REPOSITORY = Path(__file__).parents[3]
# Tests that run in the background of a shell inherit an ignored SIGINT; a terminal gives the usual one.
PROGRAM = """
import signal, sys
from harness.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
# Nothing here takes a hundredth of it; a run that does not end fails the test instead of holding it up.
LIMIT_S = 120.0


@dataclass
class HungRun:
    """A comparison whose third cell hangs. ``pipe`` reaches its end when that cell's engine is gone."""

    harness: "subprocess.Popen[bytes]"
    engine_pid: int
    pipe: IO[str]
    out: Path


@contextmanager
def start_hanging(
    directory: Path, *argv: str, program: tuple[str, ...] = ("-c", PROGRAM)
) -> Iterator[HungRun]:
    """Start the command line and return once an engine of it hangs; its run is in ``directory``."""
    path = directory / "hang.pipe"
    os.mkfifo(path)
    harness = subprocess.Popen(
        [sys.executable, *program, *argv],
        env={**os.environ, "HANG_PIPE": str(path), "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        with path.open() as pipe:
            yield HungRun(harness, int(pipe.readline()), pipe, directory / "run")
    finally:
        harness.kill()
        harness.communicate()


@pytest.fixture
def hung_run(tmp_path: Path, compare_arguments: Callable[..., list[str]]) -> Iterator[HungRun]:
    with start_hanging(tmp_path, *compare_arguments("hangs_in_serve_mode")) as run:
        yield run


def test_ctrl_c_ends_the_engine_and_reports_what_was_measured(hung_run: HungRun) -> None:
    hung_run.harness.send_signal(signal.SIGINT)
    out, _ = hung_run.harness.communicate(timeout=LIMIT_S)

    assert hung_run.harness.returncode == 130
    assert hung_run.pipe.read() == ""
    records = read_run(hung_run.out).records
    assert [record.failure and record.failure.code for record in records] == [None, None, "interrupted"]
    assert out.decode().startswith("INCONCLUSIVE: 6 of 8 cells were not measured")
    assert (hung_run.out / "report.txt").read_bytes() == out


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGTERM)])
def test_a_job_that_is_cancelled_reports_what_was_measured(
    tmp_path: Path, compare_arguments: Callable[..., list[str]], signals: tuple[signal.Signals, ...]
) -> None:
    arguments = compare_arguments("hangs_in_serve_mode")
    with start_hanging(tmp_path, *arguments, program=("-m", "harness")) as run:
        for number in signals:
            run.harness.send_signal(number)
        out, _ = run.harness.communicate(timeout=LIMIT_S)

    assert run.harness.returncode == 130
    assert out.decode().startswith("INCONCLUSIVE: 6 of 8 cells were not measured")
    assert (run.out / "report.txt").read_bytes() == out


def test_killed_harness_leaves_readable_records_and_no_engine(hung_run: HungRun) -> None:
    hung_run.harness.kill()

    # Blocks until nobody holds the other end: the engine was ended although it does not read its input.
    assert hung_run.pipe.read() == ""
    contents = read_run(hung_run.out)
    assert [record.failure for record in contents.records] == [None, None]
    assert contents.notes == ("6 of 8 cells were not run",)


@pytest.fixture
def hung_search(tmp_path: Path, compare_arguments: Callable[..., list[str]]) -> Iterator[HungRun]:
    """Return a search that has found a case, and whose engines hang in the next one."""
    assert main(compare_arguments("changes_a_token_and_hangs_at_a_cap_of_three", "--repetitions", "1")) == 1
    with start_hanging(tmp_path, "minimize", str(tmp_path / "run")) as run:
        yield run


def test_ctrl_c_ends_a_search_with_the_best_case_so_far(hung_search: HungRun) -> None:
    hung_search.harness.send_signal(signal.SIGINT)
    out, _ = hung_search.harness.communicate(timeout=LIMIT_S)

    assert hung_search.harness.returncode == 130
    hung_search.pipe.read()
    assert b"1 turn, at most 8 tokens for each arm" in out
    assert load_scenario(hung_search.out / "minimal-path-on.toml").scenario.worst_case_tokens == 8


def test_a_killed_search_leaves_the_best_case_so_far_and_no_engine(hung_search: HungRun) -> None:
    hung_search.harness.kill()

    hung_search.pipe.read()
    assert load_scenario(hung_search.out / "minimal-path-on.toml").scenario.worst_case_tokens == 8
    assert not list(hung_search.out.glob("*.part"))


EARLY = """
import sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "pydantic":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from harness.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_while_the_tool_is_loaded_is_quiet() -> None:
    ended = subprocess.run([sys.executable, "-c", EARLY], cwd=REPOSITORY, capture_output=True, check=False)

    assert (ended.returncode, ended.stderr) == (130, b"coli-ab: interrupted\n")
