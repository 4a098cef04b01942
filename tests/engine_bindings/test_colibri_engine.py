"""The colibri binding: what a build must hold, what an arm is started with, and what is claimed of it."""

from pathlib import Path

import pytest

from engine_bindings.binding import ArmSettings
from engine_bindings.colibri_build import find_build
from engine_bindings.colibri_engine import build_colibri_engine
from engine_bindings.errors import UsageError
from engine_bindings.registry import find_binding


def write_program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A source tree with a binary, a command line and a gateway."""
    write_program(tmp_path / "c/colibri")
    write_program(tmp_path / "c/coli", "#!/usr/bin/env python3\nimport runpy  # tools/coli_cli.py\n")
    (tmp_path / "c/tools").mkdir()
    (tmp_path / "c/tools/coli_cli.py").write_text("")
    (tmp_path / "c/openai_server.py").write_text("")
    (tmp_path / "c/version.py").write_text('__version__ = "1.6.2"\n')
    return tmp_path


def test_source_tree_holds_engine_command_line_and_gateway(build: Path) -> None:
    found = find_build(str(build))
    assert found.engine == build / "c/colibri"
    assert found.cli == build / "c/coli"
    assert found.version == "1.6.2"
    assert found.missing == ()


def test_binary_alone_offers_the_two_stdio_paths_and_says_why_no_others(build: Path) -> None:
    engine = build_colibri_engine(str(build / "c/colibri"))
    assert engine.capabilities.paths == ("chat", "serve")
    assert [path for path, _ in engine.build.missing] == ["cli", "gateway"]
    assert "name the directory" in engine.build.missing[0][1]


def test_command_line_without_its_module_is_missing(build: Path) -> None:
    (build / "c/tools/coli_cli.py").unlink()
    assert [path for path, _ in find_build(str(build)).missing] == ["cli", "gateway"]


@pytest.mark.parametrize(
    ("place", "words"),
    [(None, "no build named"), ("/no/such", "no executable file"), ("", "no engine binary")],
)
def test_what_is_no_build_is_a_clear_error(tmp_path: Path, place: str | None, words: str) -> None:
    location = str(tmp_path) if place == "" else place
    with pytest.raises(UsageError, match=words):
        find_build(location)


def test_widths_are_arguments_and_pins_that_can_be_set(build: Path) -> None:
    engine = find_binding(f"colibri={build / 'c/colibri'}")
    settings = ArmSettings(path="serve", depth=3, cap_tokens=64)
    plain = engine.launch(settings, {})
    assert plain.argv[1:] == ("0", "8", "8")
    assert plain.driver == "serve"
    wide = engine.launch(settings, {"EXPERT_BITS": "16", "DENSE_BITS": "16"})
    assert wide.argv[1:] == ("0", "16", "16")
    assert {pin.name: pin.value for pin in wide.pins}["EXPERT_BITS"] == "16"


def test_arms_are_isolated_and_alike(build: Path) -> None:
    engine = build_colibri_engine(str(build / "c/colibri"))
    chat, serve = (
        {
            pin.name: pin.value
            for pin in engine.launch(ArmSettings(path=path, depth=3, cap_tokens=90), {}).pins
        }
        for path in ("chat", "serve")
    )
    assert chat["KVSAVE"] == serve["KVSAVE"] == "0"
    assert (chat["NGEN"], chat["DRAFT"]) == ("90", "3")
    assert {name for name in chat if chat[name] != serve.get(name)} == {"SERVE_BATCH"}


def test_nothing_is_claimed_that_the_engine_does_not_report(build: Path) -> None:
    able = build_colibri_engine(str(build / "c/colibri")).capabilities
    assert not able.reports_drafted
    assert not able.counters_repeat
    assert able.grammar == "drafts"
