"""Pins, overrides and the environment that an engine gets; the registry of engines."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from engine_bindings.binding import ArmSettings, Pin, apply_overrides, build_environment, is_engine_variable
from engine_bindings.errors import UsageError
from engine_bindings.reference_engine import ReferenceEngine
from engine_bindings.registry import find_binding

SETTINGS = ArmSettings(path="serve", depth=3, cap_tokens=64)


def pins_of(settings: ArmSettings) -> dict[str, str]:
    return {pin.name: pin.value for pin in ReferenceEngine().launch(settings, {}).pins}


def test_arms_differ_in_path_and_depth_only() -> None:
    chat = pins_of(ArmSettings(path="chat", depth=0, cap_tokens=64))
    serve = pins_of(SETTINGS)

    assert {name for name in chat if chat[name] != serve[name]} == {"SERVE_BATCH", "DRAFT"}
    assert (serve["SERVE_BATCH"], serve["DRAFT"], serve["NGEN"]) == ("1", "3", "64")


def test_chat_arms_find_the_grammar_in_a_file_of_the_model_directory() -> None:
    bound = ArmSettings(path="chat", depth=3, cap_tokens=64, grammar="schema", grammar_binds=True)
    free = ArmSettings(path="chat", depth=3, cap_tokens=64, grammar="gbnf")
    new = {"SCHEMA": "coli-ab-schema.json", "REF_GRAMMAR_CONSTRAIN": "1"}

    assert pins_of(bound).items() - pins_of(replace(bound, grammar=None)).items() == new.items()
    assert ReferenceEngine().launch(bound, {}).grammar_variables == ("SCHEMA",)
    assert ReferenceEngine().launch(free, {}).grammar_variables == ("GRAMMAR",)
    assert "REF_GRAMMAR_CONSTRAIN" not in pins_of(free)
    assert all(is_engine_variable(pin.name) for pin in ReferenceEngine().launch(bound, {}).pins)


def test_served_requests_carry_the_grammar_themselves() -> None:
    bound = replace(SETTINGS, grammar="schema", grammar_binds=True)

    assert pins_of(bound) == pins_of(SETTINGS)


def test_grammar_that_the_user_set_is_left_alone() -> None:
    free = ArmSettings(path="chat", depth=3, cap_tokens=64, grammar="gbnf")

    assert ReferenceEngine().launch(free, {"GRAMMAR": "/own.gbnf"}).grammar_variables == ()


def test_every_pin_gives_its_reason() -> None:
    assert all(pin.reason for pin in ReferenceEngine().launch(SETTINGS, {}).pins)


def test_every_pin_is_a_variable_that_is_kept_from_leaking() -> None:
    assert all(is_engine_variable(pin.name) for pin in ReferenceEngine().launch(SETTINGS, {}).pins)


def test_context_is_pinned_only_when_it_was_given() -> None:
    sized = ArmSettings(path="chat", depth=0, cap_tokens=1, context_tokens=512)

    assert "CTX" not in pins_of(SETTINGS)
    assert pins_of(sized)["CTX"] == "512"


def test_override_replaces_a_pin_and_says_what_it_replaced() -> None:
    pins = apply_overrides([Pin(name="A", value="1", reason="why")], {"A": "2", "B": "3"})

    assert pins == (
        Pin(name="A", value="2", reason="in place of 1: why", overridden=True),
        Pin(name="B", value="3", reason="not pinned otherwise", overridden=True),
    )


def test_inherited_engine_variables_do_not_reach_the_engine() -> None:
    inherited = {
        "PATH": "/bin",
        "DRAFT": "9",
        "COLI_LOGIT_GAP": "1",
        "REF_KERNELS": "x",
        "OMP_PROC_BIND": "1",
    }

    assert build_environment(inherited, [Pin(name="KVSAVE", value="0", reason="")]) == {
        "PATH": "/bin",
        "KVSAVE": "0",
    }


def test_embedded_engine_is_started_from_its_package() -> None:
    binding = find_binding("reference")

    assert binding.launch(SETTINGS, {}).argv[1:] == ("-m", "engine_bindings.reference.host")
    model_dir = binding.default_model_dir()
    assert model_dir is not None
    assert (model_dir / "config.json").is_file()


def test_executable_can_stand_in_for_an_engine(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    binding = find_binding(f"reference={program}")

    assert binding.launch(SETTINGS, {}).argv == (str(program),)


def test_program_without_the_permission_to_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("#!/bin/sh\n")

    with pytest.raises(UsageError, match="no executable file"):
        find_binding(f"reference={tmp_path / 'engine'}")


def test_unknown_engine_is_refused_with_a_guess_and_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown engine 'refrence'") as caught:
        find_binding("refrence")

    assert caught.value.hint.startswith("did you mean 'reference'? known engines: ")


def test_the_tools_own_variables_are_none_of_an_engine() -> None:
    assert not is_engine_variable("COLI_AB_KEY_FILE")
    assert is_engine_variable("COLI_TEMP")
