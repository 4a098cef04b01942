"""``coli-ab minimize`` in this process, on engines written for the purpose."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli import main
from harness.cli.pair_bench import PairBench
from harness.cli.results import compare_records
from harness.cli.scenario_files import load_scenario
from harness.failing import Failing
from harness.minimize import Case
from harness.two_sample import TwoSample

Arguments = Callable[..., list[str]]
FAULTY = "changes_a_token_with_drafts_in_chat_mode"


@pytest.fixture
def failed_run(compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(compare_arguments(FAULTY)) == 1
    capsys.readouterr()
    return tmp_path / "run"


def test_the_smallest_case_is_written_and_shown_by_the_command(
    failed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["minimize", str(failed_run)]) == 0

    captured = capsys.readouterr()
    out = failed_run / "minimal-path-on.toml"
    scenario = load_scenario(out).scenario
    assert (scenario.name, scenario.turn_count, scenario.worst_case_tokens) == ("minimal-two-turns", 1, 1)
    assert "[1 runs, " in captured.err
    assert f"scenario file: {out}" in captured.out
    command = captured.out.split("to see it:")[1].split()
    assert command[:2] == ["coli-ab", "compare"]
    assert main([*command[1:], "--out", str(failed_run.parent / "again")]) == 1
    assert capsys.readouterr().out.startswith("FAIL: ")


def test_another_failing_contrast_can_be_named(failed_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = failed_run / "mine.toml"
    assert main(["minimize", str(failed_run), "--pair", "chat/0=chat/3", "--out", str(out)]) == 0
    assert "speculation chat fails" in load_scenario(out).scenario.title

    assert main(["minimize", str(failed_run), "--pair", "path off"]) == 2
    assert "those that fail: 'path on', 'speculation chat'" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [["--max-runs", "1"], ["--budget", "1"]])
def test_a_limit_ends_the_search_with_the_best_so_far(
    failed_run: Path, capsys: pytest.CaptureFixture[str], limit: list[str]
) -> None:
    assert main(["minimize", str(failed_run), *limit]) == 0

    captured = capsys.readouterr()
    assert "the limit is reached" in captured.err
    assert "found in 1 runs" in captured.out
    assert (failed_run / "minimal-path-on.toml").exists()


def test_an_interruption_keeps_the_best_so_far(
    failed_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = PairBench.try_case

    def interrupted(bench: PairBench, case: Case) -> Failing | None:
        if bench.runs:
            raise KeyboardInterrupt
        return honest(bench, case)

    monkeypatch.setattr(PairBench, "try_case", interrupted)
    assert main(["minimize", str(failed_run)]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert load_scenario(failed_run / "minimal-path-on.toml").scenario.turn_count >= 1


def test_a_cell_that_dies_is_shrunk_too(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(compare_arguments("dies_in_serve_mode", "--repetitions", "1")) == 4
    assert main(["minimize", str(tmp_path / "run")]) == 0
    assert "engine-died" in capsys.readouterr().out
    assert load_scenario(tmp_path / "run/minimal-failed-serve-0.toml").scenario.turn_count == 1


def test_a_run_in_which_nothing_fails_is_refused(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(compare_arguments("healthy"))
    assert main(["minimize", str(tmp_path / "run")]) == 2
    assert "no contrast of this run fails" in capsys.readouterr().err


def test_a_distribution_that_differs_has_no_smaller_case(
    compare_arguments: Arguments,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main(compare_arguments("healthy", "--repetitions", "1"))
    test = TwoSample(pairs=120, outcomes=9, statistic=60.0, p_value=0.0001, differs=True)
    row = SimpleNamespace(test=test)
    honest = compare_records
    monkeypatch.setattr(
        "harness.cli.minimize.compare_records",
        lambda plan, records: replace(honest(plan, records), distributions=(row,)),
    )
    assert main(["minimize", str(tmp_path / "run")]) == 2
    assert "it shows in many draws and in no single answer" in capsys.readouterr().err


def test_a_failure_that_does_not_show_again_is_said_and_nothing_written(
    failed_run: Path, compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = failed_run.parent / FAULTY
    engine.write_text(engine.read_text().replace(FAULTY, "healthy"))

    assert main(["minimize", str(failed_run)]) == 3
    captured = capsys.readouterr()
    assert "did not show again" in captured.out
    assert "the engine is not the one of the run any more" in captured.err
    assert not list(failed_run.glob("minimal-*"))


def test_a_smaller_case_that_fails_in_another_class_is_not_taken(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = "changes_a_token_or_ends_early_with_drafts_in_chat_mode"
    assert main(compare_arguments(engine, "--repetitions", "1")) == 1
    assert capsys.readouterr().out.startswith("FAIL: state")

    assert main(["minimize", str(tmp_path / "run")]) == 0
    scenario = load_scenario(tmp_path / "run/minimal-path-on.toml").scenario
    assert (scenario.turn_count, scenario.worst_case_tokens) == (1, 8)


def test_a_fault_that_another_build_shows_is_shrunk_on_both(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (compare_arguments(engine)[2] for engine in ("healthy", FAULTY))
    arguments = compare_arguments("healthy", "--repetitions", "1", "--set", "bad:EXTRA=x")
    arguments[1:3] = ["--engine", f"good={good}", "--engine", f"bad={bad}"]
    assert main(arguments) == 1
    capsys.readouterr()

    assert main(["minimize", str(tmp_path / "run"), "--pair", "build bad:chat/3"]) == 0
    command = capsys.readouterr().out.split("to see it:")[1].split()
    assert f"good={good}" in command
    assert f"bad={bad}" in command
    # The setting makes no difference, so it is gone.
    assert not any("EXTRA" in word for word in command)
    assert main([*command[1:], "--out", str(tmp_path / "again")]) == 1


def test_a_recorded_baseline_cannot_be_asked_again(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(compare_arguments("healthy", "--repetitions", "1"))
    (tmp_path / "run").rename(tmp_path / "before")
    arguments = compare_arguments(FAULTY, "--repetitions", "1", "--baseline", str(tmp_path / "before"))
    assert main(arguments) == 1
    capsys.readouterr()

    assert main(["minimize", str(tmp_path / "run"), "--pair", "build chat/3"]) == 2
    assert "the baseline is a recorded run" in capsys.readouterr().err
    assert main(["minimize", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run/minimal-path-on.toml").exists()
