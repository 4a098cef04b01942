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


def change_engine(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    """Let something happen to the engine's file once all cells of the plan have run."""
    from harness.runner import Runner

    engine = Path(arguments[arguments.index("--engine") + 1].removeprefix("reference="))
    run_plan = Runner.run_plan

    def run_and_change(runner: Runner, *more: object, **options: object) -> object:
        yield from run_plan(runner, *more, **options)  # type: ignore[arg-type]
        change(engine)

    monkeypatch.setattr(Runner, "run_plan", run_and_change)


def test_an_engine_that_changed_during_the_run_makes_it_invalid(
    compare_arguments: Arguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = compare_arguments("healthy")
    change_engine(arguments, monkeypatch, lambda engine: engine.write_bytes(engine.read_bytes() + b"\n"))

    assert main(arguments) == 4
    said = capsys.readouterr().out
    assert said.startswith("INVALID: the cells are not of one engine and model: engine changed while the run")
    assert not (tmp_path / "run" / "certificate.json").exists()
    assert main(["analyze", str(tmp_path / "run")]) == 4
    assert capsys.readouterr().out == said


def test_an_engine_that_was_put_back_does_not_heal_its_run(
    compare_arguments: Arguments, tmp_path: Path
) -> None:
    arguments = compare_arguments("healthy")
    engine = Path(arguments[arguments.index("--engine") + 1].removeprefix("reference="))
    whole = engine.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        change_engine(arguments, patch, lambda engine: engine.write_bytes(whole + b"\n"))
        assert main(arguments) == 4

    engine.write_bytes(whole)
    assert main(["compare", "--resume", str(tmp_path / "run")]) == 4


def test_an_engine_that_is_gone_at_the_end_is_named(
    compare_arguments: Arguments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy")
    change_engine(arguments, monkeypatch, Path.unlink)

    assert main(arguments) == 4
    assert "cannot read the engine" in capsys.readouterr().out.splitlines()[0]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("coli-ab ")
