"""The doctor on the embedded engine: no complaint of it, and the right one for each seeded fault."""

import json

import pytest

from harness.cli import main


def test_healthy_engine_is_as_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nothing is wrong")
    assert "prints margins" in out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("REF_DEFECT=banner-lies",), "no sign of drafts"),
        (("REF_DEFECT=off-switch-partial",), "drafts with speculation off"),
        (("REF_DEFECT=wrong-protocol",), "wrong protocol"),
        (("REF_DEFECT=random-head",), "a head guesses better"),
        (("REF_DEFECT=finish-reason-at-admission",), "finish_reason"),
        (("REF_DEFECT=state-carried-between-arms",), ".coli_kv"),
        (("DRAFT=0",), "no sign of drafts"),
    ],
)
def test_fault_is_named(capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], words: str) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    assert main(["doctor", "--json", *options]) == 1
    complaints = json.loads(capsys.readouterr().out)["complaints"]
    assert any(words in item["problem"] for item in complaints)
    assert all(item["remedy"] for item in complaints)


def test_several_engines_are_refused_and_none_is_looked_at_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--engine", "a=reference", "--engine", "b=reference"]) == 2
    assert "looks at one engine" in capsys.readouterr().err
