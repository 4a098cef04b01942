"""Runs that build on earlier ones: going on after a crash, taking over cells, a recorded baseline."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.rundir import read_run, reopen_run_directory

Arguments = Callable[..., list[str]]


@pytest.fixture
def whole_run(compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A finished run on the healthy fake engine."""
    assert main(compare_arguments("healthy")) == 0
    capsys.readouterr()
    return tmp_path / "run"


def read_lines(run: Path) -> list[bytes]:
    return (run / "cells.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("kept", [0, 3, 7, 8, 9])
@pytest.mark.parametrize("torn", [b"", b'{"spec": {"arm"'])
def test_a_run_that_was_killed_goes_on_where_it_was(
    whole_run: Path, capsys: pytest.CaptureFixture[str], kept: int, torn: bytes
) -> None:
    lines = read_lines(whole_run)
    (whole_run / "cells.jsonl").write_bytes(b"".join(lines[:kept]) + torn)

    assert main(["compare", "--resume", str(whole_run)]) == 0

    captured = capsys.readouterr()
    assert captured.out.startswith("PASS")
    assert captured.err.count(" tokens in ") == len(lines) - kept
    again = read_lines(whole_run)
    assert again[:kept] == lines[:kept]
    assert [json.loads(line)["spec"] for line in again] == [json.loads(line)["spec"] for line in lines]


@pytest.mark.parametrize("kept", [8, 10], ids=["a cell", "a cell that asks for logprobs"])
def test_failed_cells_are_tried_again_and_the_first_attempt_stays(
    whole_run: Path, capsys: pytest.CaptureFixture[str], kept: int
) -> None:
    lines = read_lines(whole_run)[:kept]
    failed = json.loads(lines[-1]) | {"failure": {"code": "interrupted", "message": "m", "hint": "h"}}
    (whole_run / "cells.jsonl").write_bytes(b"".join(lines[:-1]) + json.dumps(failed).encode() + b"\n")

    assert main(["compare", "--resume", str(whole_run)]) == 0

    records = read_run(whole_run).records[kept - 1 : kept + 1]
    assert [(record.attempt, record.failure is None) for record in records] == [(0, False), (1, True)]
    assert "was repeated" in capsys.readouterr().out


@pytest.mark.parametrize("more", [("--depth", "2"), ("--scenario", "quick"), ("--budget", "10")])
def test_other_options_have_no_place_when_a_run_goes_on(
    whole_run: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    assert main(["compare", "--resume", str(whole_run), *more]) == 2
    assert f"{more[0]} " in capsys.readouterr().err


def test_changed_scenario_or_model_is_not_gone_on_with(
    whole_run: Path, scenario_file: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = scenario_file.read_text()
    scenario_file.write_text(text.replace("Again", "Once more"))
    assert main(["compare", "--resume", str(whole_run)]) == 2
    assert "changed since" in capsys.readouterr().err
    scenario_file.write_text(text)
    (model_dir / "config.json").write_text('{"other": 1}')
    assert main(["compare", "--resume", str(whole_run)]) == 2
    assert "model config changed" in capsys.readouterr().err


def test_broken_options_file_is_one_clear_message(
    whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (whole_run / "arguments.json").write_text("[]")
    assert main(["compare", "--resume", str(whole_run)]) == 2
    assert "not the options of a run" in capsys.readouterr().err
    assert main(["compare", "--resume", str(whole_run / "nothing")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "edit",
    [{"repetitions": "x"}, {"pairs": [1]}, {"tie_gap": True}, {"no_such": 1}, {"engine": "reference"}],
    ids=lambda edit: next(iter(edit)),
)
def test_edited_options_are_named(
    whole_run: Path, capsys: pytest.CaptureFixture[str], edit: dict[str, object]
) -> None:
    file = whole_run / "arguments.json"
    kept = json.loads(file.read_text())
    kept["options"] |= edit
    file.write_text(json.dumps(kept))
    assert main(["compare", "--resume", str(whole_run)]) == 2
    assert f"not the options of a run: ValueError: {next(iter(edit))}" in capsys.readouterr().err


def test_options_of_the_run_itself_may_be_given_again(whole_run: Path) -> None:
    file = whole_run / "arguments.json"
    kept = json.loads(file.read_text())
    (scenario,) = kept["options"]["scenario"]
    assert main(["compare", "--resume", str(whole_run), "--scenario", scenario]) == 0


def test_options_that_are_newer_than_the_run_have_their_defaults(whole_run: Path) -> None:
    file = whole_run / "arguments.json"
    kept = json.loads(file.read_text())
    del kept["options"]["order_seed"], kept["options"]["expert_bits"]
    file.write_text(json.dumps(kept))
    assert main(["compare", "--resume", str(whole_run)]) == 0


def test_a_run_of_another_machine_is_not_gone_on_with(
    whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = whole_run / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"cpu": "Another CPU", "cpu_count": 99}))
    assert main(["compare", "--resume", str(whole_run)]) == 2
    assert "begun on another machine, Another CPU, 99 CPUs" in capsys.readouterr().err


def test_a_run_that_is_being_written_is_left_alone(
    whole_run: Path, compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = b"".join(read_lines(whole_run)[:3]) + b"{"
    (whole_run / "cells.jsonl").write_bytes(torn)
    writer = reopen_run_directory(whole_run)
    assert main(["compare", "--resume", str(whole_run)]) == 2
    assert "another coli-ab is writing to the run directory" in capsys.readouterr().err
    assert main(compare_arguments("healthy")) == 2
    assert (whole_run / "cells.jsonl").read_bytes() == torn
    del writer
    assert main(["compare", "--resume", str(whole_run)]) == 0


def test_equal_cells_are_taken_over_without_their_times(
    whole_run: Path, compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy", "--reuse", str(whole_run), "--repetitions", "3", "--json")
    arguments[arguments.index("--out") + 1] = str(tmp_path / "second")

    assert main(arguments) == 0

    captured = capsys.readouterr()
    assert captured.err.count(" tokens in ") == 6  # with two cells that ask for logprobs
    records = read_run(tmp_path / "second").records
    assert [record.reused_from for record in records] == [str(whole_run)] * 8 + [""] * 6
    fresh = sum(turn.emitted_tokens or 0 for record in records[8:] for turn in record.turns)
    assert json.loads(captured.out)["comparison"]["tokens_decoded"] == fresh


def test_cells_with_other_settings_are_not_taken_over(
    whole_run: Path, compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy", "--reuse", str(whole_run), "--set", "CTX=64")
    arguments[arguments.index("--out") + 1] = str(tmp_path / "second")
    assert main(arguments) == 2
    assert "no cell of it is in this plan" in capsys.readouterr().err


def test_another_model_is_neither_baseline_nor_reused(
    whole_run: Path,
    compare_arguments: Arguments,
    model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (model_dir / "config.json").write_text('{"other": 1}')
    for option in ("--reuse", "--baseline"):
        arguments = compare_arguments("healthy", option, str(whole_run))
        arguments[arguments.index("--out") + 1] = str(tmp_path / "second")
        assert main(arguments) == 2
        assert "another model" in capsys.readouterr().err


def test_baseline_names_the_changed_token_of_a_later_build(
    whole_run: Path, compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments(
        "changes_a_token_with_drafts_in_chat_mode", "--baseline", str(whole_run), "--json"
    )
    arguments[arguments.index("--out") + 1] = str(tmp_path / "second")

    assert main(arguments) == 1

    report = json.loads(capsys.readouterr().out)
    differing = [c["contrast"]["name"] for c in report["comparison"]["contrasts"] if c["found"]]
    assert "build chat/3" in differing
    assert "build serve/3" not in differing
    assert any("engine" in text for text in report["changes"])


def test_two_builds_run_side_by_side(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy", "--json", "--repetitions", "1")
    engine = arguments[arguments.index("--engine") + 1].removeprefix("reference=")
    arguments[arguments.index("--engine") + 1] = f"main={engine}"

    assert main([*arguments, "--engine", f"pr=colibri={engine}", "--set", "pr:CTX=64"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert "main" in report["verdict"]["sentence"]
    assert report["changes"] == ["main to pr changes CTX not set to 64"]
    assert not (tmp_path / "run/certificate.json").exists()


def test_dry_run_of_two_builds_names_both(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy", "--dry-run", "--repetitions", "1")
    engine = arguments[arguments.index("--engine") + 1]
    arguments[arguments.index("--engine") + 1] = f"main={engine}"
    assert main([*arguments, "--engine", f"pr={engine}"]) == 0
    out = capsys.readouterr().out
    assert "engine   main: " in out
    assert "engine   pr: " in out
    assert "cells    8," in out
