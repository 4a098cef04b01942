"""ARCHITECTURE.md names every module in the row of its folder, and nothing that is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine_bindings", "harness", "reports", "scenarios", "server")
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROWS = {
    folder: set(re.findall(r"`(\w+)`", modules))
    for folder, modules in re.findall(r"^\| `([\w/]+)/` \|.*\|(.*)\|$", TEXT, flags=re.MULTILINE)
}


def find_modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def find_folders() -> list[str]:
    folders = {
        path.parent.relative_to(ROOT).as_posix() for p in PACKAGES for path in (ROOT / p).rglob("*.py")
    }
    return sorted(folders)


@pytest.mark.parametrize("folder", find_folders())
def test_a_row_names_exactly_the_modules_of_its_folder(folder: str) -> None:
    assert ROWS.get(folder, set()) == find_modules(ROOT / folder)


def test_every_row_is_a_folder() -> None:
    assert set(ROWS) <= set(find_folders())


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w/]+\.(?:py|toml)|[\w/]+/)`", TEXT))))
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_it_stays_one_page() -> None:
    assert len(TEXT.splitlines()) <= 60
