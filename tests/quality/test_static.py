"""The checkers of the whole tree run with the tests, so that one command says whether a change is good."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECKS = {
    "mypy": [sys.executable, "-m", "mypy"],
    "ruff-check": [sys.executable, "-m", "ruff", "check", "."],
    "ruff-format": [sys.executable, "-m", "ruff", "format", "--check", "."],
    "import-contracts": [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())",
    ],
}


@pytest.mark.parametrize("name", CHECKS)
def test_checker_finds_nothing(name: str) -> None:
    result = subprocess.run(CHECKS[name], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
