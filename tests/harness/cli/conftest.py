"""A model directory, a scenario and engines for tests of the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.cli.cli_samples import SCENARIO, write_model
from tests.harness.drivers.fake_engine import write_fake


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "two-turns.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def compare_arguments(tmp_path: Path, model_dir: Path, scenario_file: Path) -> Callable[..., list[str]]:
    """Return the command line of a comparison on the fake engine that behaves in the given way."""

    def build(behaviour: str, *more: str) -> list[str]:
        engine = write_fake(tmp_path / behaviour, behaviour)
        out = tmp_path / "run"
        fixed = ["--engine", f"reference={engine}", "--model", str(model_dir), "--out", str(out)]
        return ["compare", *fixed, "--scenario", str(scenario_file), *more]

    return build
