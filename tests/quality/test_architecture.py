"""ARCHITECTURE.md names every module once, and nothing that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine_bindings", "harness", "reports", "scenarios", "server")


def listed_paths() -> list[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([\w/.]+)` \|", text, flags=re.MULTILINE)


def module_paths() -> set[str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    modules = {path.relative_to(ROOT).as_posix() for path in paths}
    return {path for path in modules if not path.endswith("__init__.py")}


def test_every_listed_path_exists() -> None:
    assert [path for path in listed_paths() if not (ROOT / path).exists()] == []


def test_every_module_is_listed_once() -> None:
    listed = [path for path in listed_paths() if path.endswith(".py")]
    assert sorted(listed) == sorted(set(listed))
    assert module_paths() - set(listed) == set()


def test_it_stays_one_page() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
