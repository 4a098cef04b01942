"""A pass is sealed, anything else is not, and a certificate holds for exactly what was compared."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main


@pytest.fixture
def passed(
    compare_arguments: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> tuple[Path, list[str]]:
    """Return the directory of a run that passed, and the options that name its engine and model."""
    arguments = compare_arguments("healthy")
    assert main(arguments) == 0
    assert "certificate: " in capsys.readouterr().err
    at = {name: arguments[arguments.index(name) + 1] for name in ("--out", "--engine", "--model")}
    return Path(at["--out"]), ["--engine", at["--engine"], "--model", at["--model"]]


def test_a_pass_verifies(passed: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    run, subject = passed
    assert main(["certificate", "verify", str(run), *subject]) == 0
    assert capsys.readouterr().out == "valid\n"


@pytest.mark.parametrize("verdict", ['{"status": "fail"}', "[]", None])
def test_a_run_that_is_no_pass_bears_no_certificate(
    passed: tuple[Path, list[str]], verdict: str | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, subject = passed
    if verdict is None:
        (run / "verdict.json").unlink()
    else:
        (run / "verdict.json").write_text(verdict)
    for path in (run, run / "certificate.json"):
        assert main(["certificate", "verify", str(path), *subject]) == 1
        assert "verdict" in capsys.readouterr().out

    copy = tmp_path / "elsewhere.json"
    copy.write_bytes((run / "certificate.json").read_bytes())
    assert main(["certificate", "verify", str(copy), *subject]) == 0


def test_show_names_the_run(passed: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = passed
    assert main(["certificate", "show", str(run)]) == 0
    assert run.name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (["--depth", "4"], "depth"),
        (["--kv-slots", "2"], "kv_slots"),
        (["--set", "SPEC_PIN=0"], "settings.SPEC_PIN"),
    ],
)
def test_another_start_does_not_verify(
    passed: tuple[Path, list[str]], change: list[str], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, subject = passed
    assert main(["certificate", "verify", str(run), *subject, *change]) == 1
    assert field in capsys.readouterr().out


def test_one_byte_of_the_engine_changes_everything(
    passed: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, subject = passed
    engine = Path(subject[1].removeprefix("reference="))
    engine.write_bytes(engine.read_bytes() + b"\n")
    assert main(["certificate", "verify", str(run), *subject]) == 1
    assert "engine_digest" in capsys.readouterr().out


def test_a_run_that_fails_has_no_certificate(compare_arguments: Callable[..., list[str]]) -> None:
    arguments = compare_arguments("dies_mid_turn")
    assert main(arguments) == 4
    assert not (Path(arguments[arguments.index("--out") + 1]) / "certificate.json").exists()
