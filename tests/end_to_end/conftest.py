"""Comparisons on the embedded engine: the engine itself, or a wrapper around it that spoils one thing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.comparisons import Compare, WriteWrapper

REPOSITORY = Path(__file__).parents[2]
ENGINE = [sys.executable, "-m", "engine_bindings.reference.host"]

SCENARIO = """
schema = 1
name = "short"
title = "Short answers"
description = "Two conversations, the first of two turns."

[defaults]
max_tokens = 24

[[conversation]]
id = "talk"
class = "chat"

[[conversation.turn]]
user = "Tell me about the river"

[[conversation.turn]]
user = "Tell me more"

[[conversation]]
id = "list"
class = "lists"

[[conversation.turn]]
user = "List three animals"
"""


@pytest.fixture(scope="session")
def scenario_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "short.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture(scope="session")
def compare(scenario_file: Path) -> Compare:
    """Return a function that runs ``coli-ab compare`` in a process of its own."""

    def run(
        out: Path, *more: str, scenario: Path = scenario_file, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        program = "import sys; from harness.cli import main; sys.exit(main(sys.argv[1:]))"
        arguments = ["compare", "--scenario", str(scenario), "--out", str(out), *more]
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def write_wrapper(tmp_path: Path) -> WriteWrapper:
    """Return a function that writes an executable of Python code and gives its ``--engine`` value.

    The code finds the command of the embedded engine as ``ENGINE``.
    """

    def write(code: str) -> str:
        path = tmp_path / "wrapper"
        path.write_text(
            f"#!{sys.executable}\nimport os, signal, subprocess, sys\nENGINE = {ENGINE!r}\n{code}"
        )
        path.chmod(0o755)
        return f"reference={path}"

    return write
