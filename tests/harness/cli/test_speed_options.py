"""``coli-ab compare`` with timed pairs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.rundir import read_run
from harness.schedule import digest_plan, is_timed
from tests.harness.cli.test_compare import read_cells

Arguments = Callable[..., list[str]]


def test_a_dry_run_says_what_the_plan_can_show(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(compare_arguments("healthy", "--performance", "--dry-run")) == 0
    text = capsys.readouterr().out
    assert "24 timed pairs of cells for 2 contrasts: speculation chat, speculation serve" in text
    assert "smallest slowdown that is shown 9 times of 10 where a cell varies by 2.4 %: decode tok/s " in text
    assert "plan sha256" in text
    assert "minutes  at most" in text
    assert "at most 0.7 % of runs of equal arms call anything different" in text


def test_timed_cells_run_behind_the_others_and_are_reported(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--pairs", "2", "--timed", "serve/3", "--alpha", "0.05", "--bound", "3", "--order-seed", "7")
    assert main(compare_arguments("healthy", *options)) == 0

    text = capsys.readouterr().out
    contents = read_run(tmp_path / "run")
    assert contents.plan.speed is not None
    assert contents.plan.speed.digest == digest_plan(contents.plan)
    assert (contents.plan.speed.alpha, contents.plan.speed.bound_percent) == (0.05, 3.0)
    timed = [spec for spec in contents.plan.cells if is_timed(contents.plan, spec)]
    assert len(timed) == 4
    assert [record.spec for record in contents.records if record.spec in timed] == timed
    assert "serve/0, serve/3" in text
    assert "need at least 8 pairs" in text
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["speed"]["digest"] == contents.plan.speed.digest


def test_without_a_speed_option_nothing_is_timed(compare_arguments: Arguments, tmp_path: Path) -> None:
    assert main(compare_arguments("healthy")) == 0
    assert read_run(tmp_path / "run").plan.speed is None
    assert len([cell for cell in read_cells(tmp_path / "run") if not cell["spec"]["probe"]]) == 8  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pairs", "0"), "0 is not from 1 to 1,000"),
        (("--alpha", "0.9"), "0.9 is not from 0.00001 to 0.5"),
        (("--bound", "-1"), "-1 is not from 0 to below 100"),
        (("--timed", "serve/9"), "no arm 'serve/9' whose speed can be judged"),
    ],
)
def test_bad_options_are_refused(
    compare_arguments: Arguments,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    try:
        status = main(compare_arguments("healthy", *options))
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "odd",
    [("--order-seed", "-1"), ("--order-seed", "9" * 30), ("--pairs", "1000000"), ("--pairs", "0")],
)
def test_a_number_out_of_range_is_named_before_anything_is_planned(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str], odd: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(compare_arguments("healthy", "--dry-run", *odd))
    assert ended.value.code == 2
    assert f"argument {odd[0]}: {odd[1]} is not from" in capsys.readouterr().err
