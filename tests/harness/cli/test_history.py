"""``coli-ab history`` and ``compare --bisect`` on runs of the fake engine."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from harness.cli import main

Arguments = Callable[..., list[str]]


@pytest.fixture
def two_runs(
    compare_arguments: Arguments,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The directories of two runs, in the index of the working directory."""
    monkeypatch.chdir(tmp_path)
    runs = []
    for name in ("one", "two"):
        arguments = compare_arguments("healthy", "--repetitions", "1")
        arguments[arguments.index("--out") + 1] = name
        assert main(arguments) == 0
        runs.append(name)
    assert main(["history", "add", *runs]) == 0
    capsys.readouterr()
    return runs


@pytest.mark.usefixtures("two_runs")
def test_equal_settings_are_one_series(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "list"]) == 0
    out = capsys.readouterr().out
    assert out.count("series ") == 1
    assert out.count(" pass ") == 2


def test_a_run_that_cannot_be_read_keeps_no_other_out(
    two_runs: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / two_runs[0] / "report.json").unlink()
    assert main(["history", "--db", "new.sqlite", "add", "new.sqlite", "nothing", *two_runs]) == 2
    err = capsys.readouterr().err
    assert "left out: " in err
    assert "2 of 3 runs are not in the index" in err
    assert err.count("added: ") == 1


@pytest.mark.usefixtures("two_runs")
def test_trend_and_export_give_every_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["history", "trend", "forwards", "--arm", "serve/3"]) == 0
    assert "forwards of serve/3" in capsys.readouterr().out
    for name in ("figures.csv", "figures.parquet"):
        assert main(["history", "export", name]) == 0
    csv = pd.read_csv(tmp_path / "figures.csv")
    assert len(set(csv["run_id"])) == 2
    assert len(pd.read_parquet(tmp_path / "figures.parquet")) == len(csv)


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trend", "speed"), "no run has the figure 'speed'"),
        (("show", "x"), "no run 'x'"),
        (("export", "figures.xlsx"), "neither .csv nor .parquet"),
        (("--db", "none.sqlite", "list"), "no history"),
        (("add", "nothing"), "No such file"),
        (("trend", "forwards", "--series", "x"), "in the series 'x'"),
    ],
)
def test_what_is_not_there_is_one_clear_message(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["history", *words]) == 2
    assert said in capsys.readouterr().err


def test_baseline_is_taken_from_the_history(
    two_runs: list[str], compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy", "--repetitions", "1", "--baseline", "history")
    arguments[arguments.index("--out") + 1] = "three"
    assert main(arguments) == 2
    assert "history baseline ID" in capsys.readouterr().err
    assert main(["history", "list"]) == 0
    run_id = next(line.split()[0] for line in capsys.readouterr().out.splitlines() if " pass " in line)
    assert main(["history", "baseline", run_id]) == 0
    assert main(arguments) == 0
    assert "baseline:serve/3" in capsys.readouterr().out
    assert len(two_runs) == 2
    # The run is of the series of its baseline, and goes on with it even if the history has another one.
    assert main(["history", "add", "three"]) == 0
    assert main(["history", "list"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("series ") == 1
    other = [line.split()[0] for line in listed.splitlines() if " pass " in line][-1]
    assert main(["history", "baseline", other]) == 0
    assert main(["compare", "--resume", "three"]) == 0


def test_baseline_of_other_settings_is_not_taken(
    two_runs: list[str], compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "list"]) == 0
    run_id = next(line.split()[0] for line in capsys.readouterr().out.splitlines() if " pass " in line)
    assert main(["history", "baseline", run_id]) == 0
    arguments = compare_arguments("healthy", "--dry-run", "--baseline", "history")
    assert main([*arguments, "--set", "CTX=64"]) == 2
    assert "no baseline of this machine, model, depth 3, settings" in capsys.readouterr().err
    assert main([*arguments, "--repetitions", "1"]) == 0
    assert two_runs


def test_baseline_of_a_history_that_is_not_there(
    compare_arguments: Arguments,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(compare_arguments("healthy", "--baseline", "history")) == 2
    assert "there is no history at 'runs/history.sqlite'" in capsys.readouterr().err


@pytest.mark.usefixtures("two_runs")
def test_a_directory_that_is_not_there_is_no_id_of_the_history(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = compare_arguments("healthy", "--baseline", "no/such/run")
    arguments[arguments.index("--out") + 1] = "three"
    assert main(arguments) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("behaviour", "more", "status"),
    [
        ("healthy", (), 0),
        ("changes_a_token_with_drafts_in_chat_mode", (), 1),
        ("healthy", ("--scenario", "no-such"), 125),
        ("exits_at_once", (), 125),
    ],
)
def test_bisect_knows_good_bad_and_cannot_tell(
    compare_arguments: Arguments, behaviour: str, more: tuple[str, ...], status: int
) -> None:
    assert main(compare_arguments(behaviour, "--bisect", *more)) == status


@pytest.mark.parametrize("more", [("--depht", "3"), ("--pairs", "0"), ("--depth", "x")])
def test_bisect_skips_a_commit_when_the_command_line_is_wrong(
    compare_arguments: Arguments, more: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(compare_arguments("healthy", "--bisect", *more))
    assert ended.value.code == 125


def test_bisect_takes_a_dry_run_for_no_verdict(compare_arguments: Arguments) -> None:
    assert main(compare_arguments("healthy", "--bisect", "--dry-run")) == 125


@pytest.mark.parametrize("bound", ["nan", "-5", "100"])
def test_a_bound_that_is_none_is_refused(bound: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["history", "trend", "--bound", bound])
    assert ended.value.code == 2
