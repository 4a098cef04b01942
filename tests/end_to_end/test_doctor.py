"""The doctor on the embedded engine: no complaint of it, and the right one of each fault and wrapper."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from tests.end_to_end.comparisons import WriteWrapper
from tests.end_to_end.test_spoilt_engine import ALWAYS_CHAT, ALWAYS_DRAFTS, NO_DRAFTS

# Saves contexts in one directory for all its starts, whatever it is told.
SAVES_CONTEXTS = """
kept = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kept")
os.makedirs(kept, exist_ok=True)
for name in os.listdir(os.environ["SNAP"]):
    if not os.path.lexists(os.path.join(kept, name)):
        os.symlink(os.path.realpath(os.path.join(os.environ["SNAP"], name)), os.path.join(kept, name))
os.environ.update(SNAP=kept, KVSAVE="1")
os.execv(ENGINE[0], ENGINE)
"""

LOWERS_CAPS = """
os.environ["NGEN"] = "5"
os.execv(ENGINE[0], ENGINE)
"""

ENDS_AT_ONCE = """
sys.exit("no model that fits into memory")
"""


def diagnose(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--json", *options])
    return status, json.loads(capsys.readouterr().out)


def list_problems(diagnosis: dict[str, Any]) -> set[tuple[str, str]]:
    complaints = [(row["path"], row["complaint"]) for row in diagnosis["rows"] if row["complaint"]]
    assert all(complaint["remedy"] for _, complaint in complaints)
    return {(path, complaint["name"]) for path, complaint in complaints if complaint["effect"] == "problem"}


def test_healthy_engine_is_as_claimed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, diagnosis = diagnose(capsys, "--out", str(tmp_path / "run"))

    assert (status, list_problems(diagnosis)) == (0, set())
    seen = {(row["path"], row["capability"]): row["seen"] for row in diagnosis["rows"]}
    for path in ("chat", "serve"):
        for capability in (
            "drafts at depth 3",
            "no drafts at depth 0",
            "cap honoured",
            "seed repeats",
            "margins",
        ):
            assert seen[path, capability] == "yes", capability
        assert seen[path, "grammar"] == "enforced"
        assert seen[path, "overlong prompt"] == "refused"
    assert (seen["chat", "token boundaries"], seen["serve", "token boundaries"]) == ("no", "yes")
    assert (seen["chat", "logprobs"], seen["serve", "logprobs"]) == ("no", "yes")
    assert seen["chat", "cap above NGEN honoured"] == "clamped"
    assert seen["chat and serve", "same stop tokens at depth 3"] == "yes"
    assert len((tmp_path / "run" / "cells.jsonl").read_text().splitlines()) == diagnosis["starts"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("REF_DEFECT=banner-lies", {("chat", "nothing-drafted"), ("serve", "nothing-drafted")}),
        ("REF_DEFECT=off-switch-partial", {("chat", "drafts-at-depth-0"), ("serve", "drafts-at-depth-0")}),
        ("REF_DEFECT=random-head", {("chat", "head-accepts-nothing"), ("serve", "head-accepts-nothing")}),
        ("REF_DEFECT=wrong-protocol", {("serve", "wrong-protocol")}),
        ("REF_DEFECT=stop-set-per-path", {("chat and serve", "stop-sets-differ")}),
        (
            "REF_DEFECT=finish-reason-at-admission",
            {("serve", "finish-reason"), ("chat and serve", "finish-reason")},
        ),
        (
            "REF_DEFECT=state-carried-between-arms",
            {("chat", "state-left-behind"), ("serve", "state-left-behind")},
        ),
        ("DRAFT=0", {("chat", "nothing-drafted"), ("serve", "nothing-drafted")}),
    ],
)
def test_fault_is_named(
    capsys: pytest.CaptureFixture[str], setting: str, expected: set[tuple[str, str]]
) -> None:
    status, diagnosis = diagnose(capsys, "--brief", "--set", setting)

    assert (status, list_problems(diagnosis)) == (1, expected)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (NO_DRAFTS, {("chat", "nothing-drafted"), ("serve", "nothing-drafted")}),
        (ALWAYS_DRAFTS, {("chat", "drafts-at-depth-0"), ("serve", "drafts-at-depth-0")}),
        (ALWAYS_CHAT, {("serve", "wrong-protocol")}),
        (LOWERS_CAPS, {("chat", "cap-clamped")}),
        (SAVES_CONTEXTS, {("chat", "saved-state"), ("serve", "saved-state")}),
    ],
    ids=["no drafts", "always drafts", "always chat", "lowers caps", "saves contexts"],
)
def test_engine_behind_a_wrapper_is_named(
    capsys: pytest.CaptureFixture[str],
    write_wrapper: WriteWrapper,
    code: str,
    expected: set[tuple[str, str]],
) -> None:
    status, diagnosis = diagnose(capsys, "--brief", "--engine", write_wrapper(code))

    assert (status, list_problems(diagnosis)) == (1, expected)


def test_guard_that_pauses_drafts_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("REF_DEFECT=random-head", "COLI_MTP_GUARD_PCT=70", "COLI_MTP_GUARD_WINDOW=8")
    options = [word for setting in settings for word in ("--set", setting)]
    status, diagnosis = diagnose(capsys, "--brief", *options)

    assert status == 1
    assert {("chat", "drafts-paused"), ("serve", "drafts-paused")} <= list_problems(diagnosis)


def test_engine_that_cannot_start_has_a_status_of_its_own(
    capsys: pytest.CaptureFixture[str], write_wrapper: WriteWrapper
) -> None:
    status, diagnosis = diagnose(capsys, "--engine", write_wrapper(ENDS_AT_ONCE))

    assert status == 4
    assert list_problems(diagnosis) == {("chat", "engine-start"), ("serve", "engine-start")}
    assert "no model that fits into memory" in diagnosis["rows"][0]["evidence"]


def test_llamacpp_is_as_claimed(capsys: pytest.CaptureFixture[str], shipped_gguf: Path) -> None:
    status, diagnosis = diagnose(capsys, "--engine", "llamacpp", "--model", str(shipped_gguf))

    assert (status, list_problems(diagnosis)) == (0, set())
    rows = {(row["path"], row["capability"]): (row["claimed"], row["seen"]) for row in diagnosis["rows"]}
    assert (
        rows["completion", "drafts at depth 3"]
        == rows["chat-completions", "drafts at depth 3"]
        == ("yes", "yes")
    )
    # Nothing is claimed that is not so and passes without a word.
    assert rows["completion", "margins"] == ("yes", "yes")
    assert ("yes", "no") not in rows.values()


def test_several_engines_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--engine", "a=reference", "--engine", "b=reference"]) == 2
    assert "looks at one engine, and 2 are named" in capsys.readouterr().err
