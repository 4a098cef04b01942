"""The private model directory of an engine, and what it says where it cannot be made."""

import tempfile
from pathlib import Path

import pytest

from engine_bindings.errors import EngineStartError
from engine_bindings.model_directory import private_model_directory


def test_a_temporary_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    with (
        pytest.raises(EngineStartError, match=r"No such file or directory: .*gone"),
        private_model_directory(tmp_path),
    ):
        pass


def test_a_model_that_vanished_is_named_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    with (
        pytest.raises(EngineStartError, match="cannot link the files"),
        private_model_directory(tmp_path / "gone"),
    ):
        pass
    assert list(temporary.iterdir()) == []
