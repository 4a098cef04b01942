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


class Keeper:
    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []

    def keep_directory(self, directory: str) -> None:
        self.heard.append((directory, Path(directory).exists()))

    drop_directory = keep_directory


def test_the_keeper_hears_of_the_directory_before_it_is_made_and_after_it_is_gone(tmp_path: Path) -> None:
    keeper = Keeper()
    with private_model_directory(tmp_path, keeper) as private:
        assert private.stat().st_mode & 0o777 == 0o700
        assert keeper.heard == [(str(private), False)]
    assert keeper.heard == 2 * [(str(private), False)]
