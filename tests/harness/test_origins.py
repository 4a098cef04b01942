"""Where an engine and a model come from, on trees and files made for the purpose."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.origins import read_cached_ratio, read_commit, read_storage


def git(directory: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", "-C", str(directory), *words],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "engine").write_text("one")
    git(tmp_path, "add", "engine")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_commit_of_a_clean_and_of_a_changed_tree(tree: Path) -> None:
    commit = read_commit(tree / "engine")
    assert commit is not None
    assert len(commit) == 12
    assert read_commit(tree) == commit
    (tree / "engine").write_text("two")
    assert read_commit(tree / "engine") == f"{commit} dirty"


def test_untracked_build_products_are_no_change(tree: Path) -> None:
    (tree / "built").write_text("x")
    commit = read_commit(tree / "built")
    assert commit is not None
    assert "dirty" not in commit


def test_the_tree_is_only_read(tree: Path) -> None:
    index = tree / ".git/index"
    before = index.read_bytes()
    os.utime(tree / "engine", (1, 1))
    assert read_commit(tree) is not None
    assert index.read_bytes() == before


def test_outside_a_tree_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_commit(tmp_path) is None


def test_storage_names_a_file_system(tmp_path: Path) -> None:
    told = read_storage(tmp_path)
    assert told is None or " on " in told


def test_cached_share_is_a_ratio_or_unknown(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 8192)
    ratio = read_cached_ratio(tmp_path)
    assert ratio is None or 0 <= ratio <= 1
    assert read_cached_ratio(tmp_path / "nothing") is None
