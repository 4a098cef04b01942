"""The selfcheck on the embedded engine: it passes on a few defects, and can fail."""

import json
from pathlib import Path

import pytest

from harness.cli import main, selfcheck, selfcheck_gate
from harness.rundir import read_run
from harness.selfcheck.declared import DeclaredDefect

DEFECTS = ("keep-rejected-kv", "cached-tokens-zero", "draft-row-missing", "wrong-protocol", "kernel-switch")

FINE = ("named", "explained", "unavailable")


def check(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, object]]:
    status = main(["selfcheck", "--fast", "--json", *more])
    return status, json.loads(capsys.readouterr().out)


def test_each_defect_is_named_and_the_healthy_engine_gives_no_alarm(capsys: pytest.CaptureFixture[str]):
    status, matrix = check(capsys, "--defect", *DEFECTS, "--healthy", "2")

    rows = {row["name"]: row for row in matrix["rows"]}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "keep-rejected-kv": "named",
        "cached-tokens-zero": "named",
        "draft-row-missing": "named",
        "wrong-protocol": "named",
        "kernel-switch": "explained",
    }
    assert rows["draft-row-missing"]["given"]["against"] == "baseline"
    assert [run["given"]["verdict_class"] for run in matrix["healthy"]] == ["identical"] * 2
    assert status == 0


def test_a_defect_that_is_called_otherwise_than_expected_fails_the_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def list_others() -> tuple[DeclaredDefect, ...]:
        return tuple(defect.model_copy(update={"verdict": "grammar"}) for defect in listed)

    listed = selfcheck.list_defects()
    monkeypatch.setattr(selfcheck, "list_defects", list_others)
    out = tmp_path / "kept"
    status, matrix = check(capsys, "--defect", "cached-tokens-zero", "--out", str(out))

    assert [row["outcome"] for row in matrix["rows"]] == ["misnamed"]
    assert status == 1
    assert read_run(out / "cached-tokens-zero").records
    assert "counters" in (out / "cached-tokens-zero" / "report.txt").read_text()


def test_a_defect_that_is_not_there_is_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(selfcheck_gate, "DEFECT_SETTING", "REF_UNHEARD")
    status, matrix = check(capsys, "--defect", "keep-rejected-kv")

    assert [row["outcome"] for row in matrix["rows"]] == ["missed"]
    assert status == 1


def test_a_run_that_breaks_off_is_missed_with_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(selfcheck_gate.GateBench, "run", fail)
    status, matrix = check(capsys, "--defect", "keep-rejected-kv")

    assert [(row["outcome"], row["error"]) for row in matrix["rows"]] == [
        ("missed", "OSError: no space left")
    ]
    assert status == 1


def test_the_fast_form_names_every_defect_and_accuses_no_control(capsys: pytest.CaptureFixture[str]):
    status, matrix = check(capsys)

    wrong = [(row["name"], row["outcome"]) for row in matrix["rows"] if row["outcome"] not in FINE]
    assert wrong == []
    assert {run["given"]["verdict_class"] for run in matrix["healthy"]} == {"identical"}
    assert status == 0
