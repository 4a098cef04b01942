"""The index of runs: what is kept, what makes a series, and files that are none."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine_bindings.errors import RunDirectoryError, UsageError
from harness.history import Entry, list_figures, open_history
from harness.plan import Arm
from tests.harness.run_builders import make_plan, report_run, run_healthy

ARM = Arm(path="serve", depth=3)
COMMITS = {"": "abc123"}


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
        assert history.add_run(entry(), {(ARM, "ttft_ms"): 2.5}, COMMITS)
    with open_history(file) as history:
        assert history.list_runs() == [entry()]
        (figure,) = history.list_figures("s", "ttft_ms")
    assert (figure.arm, figure.value, figure.engine_commit) == ("serve/3", 2.5, "abc123")


def test_run_that_is_read_again_replaces_what_was_known(file: Path) -> None:
    with open_history(file, create=True) as history:
        history.add_run(entry(), {(ARM, "ttft_ms"): 2.5, (ARM, "forwards"): 9}, {})
        history.set_baseline("a1")
        assert not history.add_run(entry(status="fail"), {(ARM, "forwards"): 8}, {})
        assert [(f.metric, f.value) for f in history.list_figures("s")] == [("forwards", 8)]
        (known,) = history.list_runs()
    assert (known.status, known.is_baseline) == ("fail", True)


def test_series_has_one_baseline(file: Path) -> None:
    with open_history(file, create=True) as history:
        for run_id, series in (("a1", "s"), ("a2", "s"), ("b1", "t")):
            history.add_run(entry(run_id, series), {}, {})
            history.set_baseline(run_id)
        assert [e.run_id for e in history.list_runs() if e.is_baseline] == ["a2", "b1"]


def test_run_is_found_by_the_beginning_of_its_id(file: Path) -> None:
    with open_history(file, create=True) as history:
        history.add_run(entry("a1"), {}, {})
        history.add_run(entry("a2"), {}, {})
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
    records = run_healthy(plan)
    figures = list_figures(report_run(plan, records), records)
    assert figures[ARM, "tokens_per_forward"] == 4.0
    assert figures[Arm(path="chat", depth=0), "forwards"] > 0
    assert (Arm(path="chat", depth=0), "acceptance_rate") not in figures


def test_counts_do_not_know_how_often_a_run_repeated_its_cells():
    figures = []
    for repetitions in (1, 3):
        plan = make_plan(repetitions=repetitions)
        records = run_healthy(plan)
        figures.append(list_figures(report_run(plan, records), records))
    assert [f[ARM, "forwards"] for f in figures] == [figures[0][ARM, "forwards"]] * 2
    assert [f[ARM, "emitted_tokens"] for f in figures] == [figures[0][ARM, "emitted_tokens"]] * 2


def test_an_arm_that_was_cut_off_has_no_counts():
    plan = make_plan()
    records = [record for record in run_healthy(plan) if record.spec.arm != ARM]
    figures = list_figures(report_run(plan, records), records)
    assert (ARM, "forwards") not in figures


def test_figures_of_two_builds_have_their_own_commits(file: Path) -> None:
    arms = (Arm(path="serve", depth=3, build="main"), Arm(path="serve", depth=3, build="pr"))
    with open_history(file, create=True) as history:
        history.add_run(entry(), {(arm, "forwards"): 8 for arm in arms}, {"main": "aaa", "pr": "bbb"})
        assert [(f.arm, f.engine_commit) for f in history.list_figures("s")] == [
            ("main:serve/3", "aaa"),
            ("pr:serve/3", "bbb"),
        ]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("UPDATE figures SET value = 'abc'", "'abc' as forwards of serve/3 in a1"),
        ("UPDATE figures SET value = 9e999", "inf as forwards of serve/3 in a1"),
        ("ALTER TABLE runs DROP COLUMN sentence", "differs in sentence"),
    ],
)
def test_an_edited_history_is_refused(file: Path, edit: str, said: str) -> None:
    with open_history(file, create=True) as history:
        history.add_run(entry(), {(ARM, "forwards"): 8}, {})
        history._connection.execute(edit)
        history._connection.commit()
    with pytest.raises(RunDirectoryError, match=said), open_history(file) as history:
        history.list_figures("s")


def test_a_locked_history_is_to_be_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_history(file, create=True):
        pass
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path: connect(path, timeout=0))
    with closing(connect(file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RunDirectoryError, match="locked") as refused, open_history(file) as history:
            history.list_runs()
    assert "try again" in refused.value.hint
