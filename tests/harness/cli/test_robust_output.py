"""A run goes on, and keeps its verdict, whatever becomes of the streams that it reports on."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main

Arguments = Callable[..., list[str]]


class FullDisk(io.TextIOBase):
    """A stream that takes nothing."""

    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_stderr_that_takes_nothing_changes_nothing(
    compare_arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    assert main(compare_arguments("healthy")) == 0


def test_a_stream_that_is_closed_changes_nothing(
    compare_arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(compare_arguments("healthy")) == 0
    sys.stdout.close()


def test_an_encoding_that_cannot_show_the_report_gets_escapes(
    compare_arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(page, encoding="latin-1"))
    assert main(compare_arguments("healthy")) == 0
    sys.stdout.flush()
    assert page.getvalue().startswith(b"PASS: ")


def test_a_run_that_is_no_pass_any_more_loses_its_certificate(
    compare_arguments: Arguments, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert main(compare_arguments("healthy")) == 0
    assert (run / "certificate.json").exists()
    records = (run / "cells.jsonl").read_text().splitlines(keepends=True)
    (run / "cells.jsonl").write_text("".join(records[:-1]))

    assert main(["analyze", str(run)]) == 3
    assert not (run / "certificate.json").exists()


def test_an_engine_that_changed_during_the_run_gets_no_certificate(
    compare_arguments: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.runner import Runner

    arguments = compare_arguments("healthy")
    engine = Path(arguments[arguments.index("--engine") + 1].removeprefix("reference="))
    run_plan = Runner.run_plan

    def run_and_change(runner: Runner, *rest: object) -> object:
        yield from run_plan(runner, *rest)
        engine.write_bytes(engine.read_bytes() + b"\n")

    monkeypatch.setattr(Runner, "run_plan", run_and_change)
    assert main(arguments) == 0
    assert not (tmp_path / "run" / "certificate.json").exists()


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("coli-ab ")
