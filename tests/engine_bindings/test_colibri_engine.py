"""The binding of the colibri engine: what a build holds, how each path is started, and what is pinned."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine_bindings.binding import ArmSettings, is_engine_variable
from engine_bindings.colibri_build import find_build
from engine_bindings.colibri_engine import ColibriEngine, build_colibri_engine
from engine_bindings.cpu import count_physical_cores
from engine_bindings.errors import UsageError

SETTINGS = ArmSettings(path="serve", depth=3, cap_tokens=64)


def write_file(path: Path, text: str = "", *, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with everything in it."""
    write_file(tmp_path / "c/colibri", "#!/bin/sh\n", mode=0o755)
    write_file(tmp_path / "c/coli", 'candidates = "tools/coli_cli.py"\n', mode=0o755)
    write_file(tmp_path / "c/tools/coli_cli.py", "x = 1\n")
    write_file(tmp_path / "c/openai_server.py", "y = 1\n")
    write_file(tmp_path / "c/version.py", '__version__ = "1.6.2"\n')
    return tmp_path


def engine_of(location: Path) -> ColibriEngine:
    return build_colibri_engine(str(location))


def pins_of(engine: ColibriEngine, settings: ArmSettings, **overrides: str) -> dict[str, str]:
    return {pin.name: pin.value for pin in engine.launch(settings, overrides).pins}


# Builds.


@pytest.mark.parametrize("place", ["", "c"])
def test_directory_of_a_build_offers_all_paths(tree: Path, place: str) -> None:
    engine = engine_of(tree / place)

    assert engine.capabilities.paths == ("chat", "serve", "cli", "gateway")
    assert engine.capabilities.unavailable == ()
    assert (engine.build.version, engine.build.engine) == ("1.6.2", tree / "c/colibri")


def test_installed_prefix_is_a_build_too(tmp_path: Path) -> None:
    write_file(tmp_path / "bin/coli", 'candidates = "tools/coli_cli.py"\n', mode=0o755)
    write_file(tmp_path / "libexec/colibri/colibri", mode=0o755)
    write_file(tmp_path / "libexec/colibri/tools/coli_cli.py")
    write_file(tmp_path / "libexec/colibri/openai_server.py")
    write_file(tmp_path / "libexec/colibri/version.py", "__version__ = '2.0'\n")

    engine = engine_of(tmp_path)

    assert engine.capabilities.paths == ("chat", "serve", "cli", "gateway")
    assert engine.build.version == "2.0"


def test_binary_alone_has_the_two_stdio_modes_and_says_why(tree: Path) -> None:
    engine = engine_of(tree / "c/colibri")

    assert engine.capabilities.paths == ("chat", "serve")
    assert [path for path, why in engine.capabilities.unavailable if "only the engine's binary" in why] == [
        "cli",
        "gateway",
    ]


@pytest.mark.parametrize(
    ("lost", "paths", "words"),
    [
        ("c/coli", ("chat", "serve"), "no coli in the build"),
        ("c/tools/coli_cli.py", ("chat", "serve"), "needs tools/coli_cli.py"),
        ("c/openai_server.py", ("chat", "serve", "cli"), "needs openai_server.py"),
    ],
)
def test_what_a_build_lacks_is_named(tree: Path, lost: str, paths: tuple[str, ...], words: str) -> None:
    (tree / lost).unlink()

    capabilities = engine_of(tree).capabilities

    assert capabilities.paths == paths
    assert all(words in why for _, why in capabilities.unavailable)


def test_command_line_that_is_one_file_needs_no_other(tree: Path) -> None:
    (tree / "c/tools/coli_cli.py").unlink()
    write_file(tree / "c/coli", "everything is here\n")

    assert "cli" in engine_of(tree).capabilities.paths


@pytest.mark.parametrize(
    ("location", "words"),
    [(None, "no build named"), ("gone", "no executable file"), (".", "no engine binary in it")],
)
def test_location_without_an_engine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str | None, words: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=words):
        find_build(location)


def test_binary_that_was_not_made_executable_is_no_engine(tree: Path) -> None:
    (tree / "c/colibri").chmod(0o644)

    with pytest.raises(UsageError, match="c/colibri may not be executed"):
        find_build(str(tree))
    with pytest.raises(UsageError, match="it may not be executed"):
        find_build(str(tree / "c/colibri"))
    (tree / "c/colibri").unlink()
    with pytest.raises(UsageError, match="no engine binary in it"):
        find_build(str(tree))


def test_fingerprint_is_over_binary_command_line_and_gateway(tree: Path) -> None:
    before = engine_of(tree).fingerprint()
    digests = {before.digest}
    for name in ("colibri", "coli", "tools/coli_cli.py", "openai_server.py"):
        write_file(tree / "c" / name, "tools/coli_cli.py changed", mode=0o755)
        digests.add(engine_of(tree).fingerprint().digest)

    assert len(digests) == 5
    assert (before.name, before.version) == ("colibri", "1.6.2")


# How the paths are started.


def test_stdio_modes_get_the_widths_as_arguments(tree: Path) -> None:
    engine = engine_of(tree)

    serve = engine.launch(SETTINGS, {})
    chat = engine.launch(replace(SETTINGS, path="chat", depth=0), {"DENSE_BITS": "16", "EXPERT_BITS": "4"})

    assert serve.argv == (str(tree / "c/colibri"), "0", "8", "8")
    assert chat.argv == (str(tree / "c/colibri"), "0", "4", "16")
    assert (serve.driver, chat.driver, serve.model_variable) == ("serve", "chat", "SNAP")


def test_arms_differ_in_path_and_depth_only(tree: Path) -> None:
    chat, serve = (pins_of(engine_of(tree), replace(SETTINGS, path=p, depth=d)) for p, d in PAIRS)

    assert {name for name in chat if chat[name] != serve[name]} == {"SERVE_BATCH", "DRAFT"}
    assert serve["COLI_SERVE_ALL_STOPS"] == "1"
    assert (serve["KVSAVE"], serve["COLI_MTP_GUARD_PCT"], serve["NGEN"]) == ("0", "0", "64")
    assert serve["OMP_NUM_THREADS"] == str(count_physical_cores())


PAIRS = (("chat", 0), ("serve", 3))


def test_command_line_is_called_without_a_server_and_with_the_cap(tree: Path) -> None:
    launch = engine_of(tree).launch(replace(SETTINGS, path="cli"), {})
    pins = {pin.name: pin.value for pin in launch.pins}

    assert launch.argv[1:] == (str(tree / "c/coli"), "chat", "--no-attach", "--ngen", "64")
    assert (launch.driver, launch.model_variable) == ("terminal", "COLI_MODEL")
    assert (pins["COLI_RAW"], pins["DRAFT"], pins["COLI_TEMP"]) == ("1", "3", "0")
    assert "SERVE" not in pins


def test_gateway_is_called_on_a_free_port_with_the_cap_and_the_slots(tree: Path) -> None:
    launch = engine_of(tree).launch(replace(SETTINGS, path="gateway"), {})

    assert launch.argv[1:3] == (str(tree / "c/coli"), "serve")
    assert " ".join(launch.argv[3:]) == (
        "--host 127.0.0.1 --port {port} --model-id coli-ab --ngen 64 --kv-slots 1"
    )
    assert (launch.driver, launch.url) == ("gateway", "http://127.0.0.1:{port}/v1")
    assert launch.parameters == ("model",)
    assert not {"SERVE", "SERVE_BATCH"} & {pin.name for pin in launch.pins}


@pytest.mark.parametrize("path", ["cli", "gateway"])
def test_script_in_the_engines_place_passes_the_widths_and_keeps_stderr(tree: Path, path: str) -> None:
    launch = engine_of(tree).launch(replace(SETTINGS, path=path), {"EXPERT_BITS": "16"})

    (script,) = launch.scripts
    assert script.variable == "COLI_ENGINE"
    assert script.text.splitlines()[-1] == f'exec {tree}/c/colibri "$1" 16 8'
    assert 'exec 2>"$COLI_AB_STDERR"' in script.text


def test_engine_that_the_user_put_behind_the_command_line_is_left_alone(tree: Path) -> None:
    launch = engine_of(tree).launch(replace(SETTINGS, path="cli"), {"COLI_ENGINE": "/my/engine"})

    assert launch.scripts == ()
    assert {pin.name: pin.value for pin in launch.pins}["COLI_ENGINE"] == "/my/engine"


@pytest.mark.parametrize("path", ["chat", "serve", "cli", "gateway"])
def test_every_pin_has_a_reason_and_can_be_overridden(tree: Path, path: str) -> None:
    engine, settings = engine_of(tree), replace(SETTINGS, path=path, context_tokens=512)

    for pin in engine.launch(settings, {}).pins:
        assert pin.reason
        assert pins_of(engine, settings, **{pin.name: "7"})[pin.name] == "7"


def test_engine_pins_are_kept_from_leaking_in(tree: Path) -> None:
    launch = engine_of(tree).launch(SETTINGS, {})

    assert all(is_engine_variable(pin.name) for pin in launch.pins)


def test_grammar_is_read_from_a_file_in_chat_mode_and_goes_with_the_request_elsewhere(tree: Path) -> None:
    engine = engine_of(tree)

    def variables(path: str) -> tuple[str, ...]:
        return engine.launch(replace(SETTINGS, path=path, grammar="gbnf"), {}).grammar_variables

    assert (variables("chat"), variables("cli")) == (("GRAMMAR",), ("GRAMMAR",))
    assert (variables("serve"), variables("gateway")) == ((), ())


def test_capabilities_are_the_measured_ones(tree: Path) -> None:
    able = engine_of(tree).capabilities

    assert (able.counters_repeat, able.grammar, able.reports_drafted) == (False, "drafts", False)
    assert (able.entries_of("cli"), able.entries_of("gateway")) == (("line",), ("messages",))
    assert able.entries_of("serve") == ("prompt",)
    assert able.margin_pin is not None
    assert able.margin_pin.name == "COLI_LOGIT_GAP"
