"""The index of runs: what is kept, what makes a series, and files that are none."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine_bindings.errors import RunDirectoryError, UsageError
from harness.history import Entry, list_figures, open_history
from tests.harness.run_builders import make_plan, report_run, run_healthy


def entry(run_id: str = "a1", series: str = "s", **changes: object) -> Entry:
    plain = Entry(
        run_id=run_id,
        started_at=f"2026-01-01T00:00:0{len(run_id)}",
        path=f"/runs/{run_id}",
        series=series,
        status="pass",
        verdict_class="identical",
        sentence="PASS: all of it",
        engine="reference",
        engine_digest="0" * 64,
        engine_commit="abc123",
        model="9a64",
        machine="a machine",
        depth=3,
        scenarios="quick",
        tokens_decoded=10,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep/history.sqlite"


def test_run_comes_back_with_its_figures(file: Path) -> None:
    with open_history(file, create=True) as history:
        assert history.add_run(entry(), {("serve/3", "ttft_ms"): 2.5})
    with open_history(file) as history:
        assert history.list_runs() == [entry()]
        (figure,) = history.list_figures("s", "ttft_ms")
    assert (figure.arm, figure.value, figure.engine_commit) == ("serve/3", 2.5, "abc123")


def test_run_that_is_read_again_replaces_what_was_known(file: Path) -> None:
    with open_history(file, create=True) as history:
        history.add_run(entry(), {("serve/3", "ttft_ms"): 2.5, ("serve/3", "forwards"): 9})
        history.set_baseline("a1")
        assert not history.add_run(entry(status="fail"), {("serve/3", "forwards"): 8})
        assert [(f.metric, f.value) for f in history.list_figures("s")] == [("forwards", 8)]
        (known,) = history.list_runs()
    assert (known.status, known.is_baseline) == ("fail", True)


def test_series_has_one_baseline(file: Path) -> None:
    with open_history(file, create=True) as history:
        for run_id, series in (("a1", "s"), ("a2", "s"), ("b1", "t")):
            history.add_run(entry(run_id, series), {})
            history.set_baseline(run_id)
        assert [e.run_id for e in history.list_runs() if e.is_baseline] == ["a2", "b1"]


def test_run_is_found_by_the_beginning_of_its_id(file: Path) -> None:
    with open_history(file, create=True) as history:
        history.add_run(entry("a1"), {})
        history.add_run(entry("a2"), {})
        assert history.find_run("a2").run_id == "a2"
        with pytest.raises(UsageError, match="2 runs begin with 'a'"):
            history.find_run("a")
        with pytest.raises(UsageError, match="no run 'x'"):
            history.find_run("x")


def test_no_history_and_no_history_file_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no history"), open_history(tmp_path / "none.sqlite"):
        pass
    (tmp_path / "text").write_text("not a database, but long enough to be read as one" * 40)
    with pytest.raises(RunDirectoryError, match="not a database"), open_history(tmp_path / "text"):
        pass


def test_history_of_another_version_is_refused(file: Path) -> None:
    with open_history(file, create=True) as history:
        history._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(RunDirectoryError, match="version 99"), open_history(file):
        pass


def test_figures_of_a_report_leave_out_what_was_not_reported():
    plan = make_plan()
    figures = list_figures(report_run(plan, run_healthy(plan)))
    assert figures["serve/3", "tokens_per_forward"] == 4.0
    assert figures["chat/0", "forwards"] > 0
    assert ("chat/0", "acceptance_rate") not in figures
