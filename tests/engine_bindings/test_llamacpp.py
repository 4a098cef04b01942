"""The binding of llama.cpp: what it pins, which program it starts, and what it refuses."""

import importlib.util
from pathlib import Path

import pytest

from engine_bindings.binding import ArmSettings, is_engine_variable
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import read_model_fingerprint
from engine_bindings.llamacpp import (
    CAPABILITIES,
    REQUEST_PINS,
    LlamaCpp,
    find_cache,
    write_shipped_model,
)
from engine_bindings.llamacpp_host import OPTIONS
from engine_bindings.registry import find_binding


def settings(depth: int = 3, path: str = "completion", slots: int = 1) -> ArmSettings:
    return ArmSettings(path=path, depth=depth, cap_tokens=64, slots=slots)


def pins_of(arm: ArmSettings, **overrides: str) -> dict[str, str]:
    return {pin.name: pin.value for pin in LlamaCpp().launch(arm, overrides).pins}


def test_arms_differ_in_the_drafts_only() -> None:
    off, on = pins_of(settings(0)), pins_of(settings(3))
    differing = {name for name in on if on[name] != off[name]}
    assert differing == {"LLAMA_ARG_SPEC_TYPE", "LLAMA_ARG_SPEC_DRAFT_N_MAX"}
    assert (off["LLAMA_ARG_SPEC_TYPE"], on["LLAMA_ARG_SPEC_TYPE"]) == ("none", "draft-mtp")
    assert pins_of(settings(path="completion")) == pins_of(settings(path="chat-completions"))


def test_the_batch_takes_a_whole_prompt_and_slots_share_the_context() -> None:
    pins = pins_of(settings(0, slots=2))
    assert (pins["LLAMA_ARG_CTX_SIZE"], pins["LLAMA_ARG_BATCH"], pins["LLAMA_ARG_N_PARALLEL"]) == (
        "8192",
        "4096",
        "2",
    )


def test_every_pin_has_a_reason_and_is_one_that_the_program_reads() -> None:
    known = {f"LLAMA_ARG_{option.variable}" for option in OPTIONS}
    for pin in LlamaCpp().launch(settings(), {}).pins:
        assert pin.reason
        assert pin.name in known or pin.name in REQUEST_PINS or pin.name == "SPECULATION"
    assert CAPABILITIES.margin_pin is not None
    assert CAPABILITIES.margin_pin.name in REQUEST_PINS


def test_a_setting_of_the_shell_cannot_reach_the_server() -> None:
    assert is_engine_variable("LLAMA_ARG_SPEC_TYPE")
    assert is_engine_variable("GGML_N_THREADS")


def test_ngrams_get_their_lengths_by_flags() -> None:
    argv = LlamaCpp().launch(settings(5), {"SPECULATION": "ngram", "SPEC_NGRAM_SIMPLE_SIZE_N": "4"}).argv
    assert argv[-4:] == ("--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "5")
    assert pins_of(settings(5), SPECULATION="ngram")["LLAMA_ARG_SPEC_TYPE"] == "ngram-simple"
    assert pins_of(settings(0), SPECULATION="ngram")["LLAMA_ARG_SPEC_TYPE"] == "none"


@pytest.mark.parametrize(("depth", "tokens"), [(1, "1"), (2, "2"), (3, "3"), (8, "3")])
def test_an_ngram_is_never_longer_than_what_it_drafts(depth: int, tokens: str) -> None:
    assert pins_of(settings(depth), SPECULATION="ngram")["SPEC_NGRAM_SIMPLE_SIZE_N"] == tokens


def test_a_draft_model_is_named_by_the_user() -> None:
    pins = pins_of(settings(), SPECULATION="draft", LLAMA_ARG_SPEC_DRAFT_MODEL="/m.gguf")
    assert pins["LLAMA_ARG_SPEC_TYPE"] == "draft-simple"
    with pytest.raises(UsageError, match="no draft model"):
        pins_of(settings(), SPECULATION="draft")


def test_an_unknown_kind_of_speculation_is_refused() -> None:
    with pytest.raises(UsageError, match="SPECULATION=magic") as error:
        pins_of(settings(), SPECULATION="magic")
    assert "mtp, ngram, draft" in error.value.hint


def test_the_program_of_the_package_is_started_with_model_and_port() -> None:
    launch = LlamaCpp().launch(settings(), {})
    assert launch.argv[1:3] == ("-m", "engine_bindings.llamacpp_host")
    assert launch.argv[3:] == ("--model", "{model}", "--host", "127.0.0.1", "--port", "{port}")
    assert (launch.driver, launch.url, launch.api) == ("llamacpp", "http://127.0.0.1:{port}", "completion")


def test_a_binary_is_started_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    binding = find_binding(f"llamacpp={path}")
    assert binding.launch(settings(), {}).argv[:2] == (str(path), "--model")
    assert binding.fingerprint().source == str(path)


def test_what_is_neither_an_address_nor_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no executable file there") as error:
        find_binding(f"llamacpp={tmp_path}/none")
    assert "http://" in error.value.hint


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="xllamacpp is not installed") as error:
        find_binding("llamacpp")
    assert "coli-ab[llamacpp]" in error.value.hint


def test_the_fingerprint_is_that_of_the_compiled_library() -> None:
    found = find_binding("llamacpp").fingerprint()
    assert found.source.endswith(".so")
    assert found.version


def test_the_shipped_model_is_written_once(tmp_path: Path) -> None:
    path = write_shipped_model(tmp_path / "cache")
    written = path.stat().st_mtime_ns
    assert write_shipped_model(tmp_path / "cache") == path
    assert path.stat().st_mtime_ns == written
    assert read_model_fingerprint(path).weights_bytes == path.stat().st_size


def test_the_cache_is_where_the_system_wants_it() -> None:
    assert find_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/coli-ab")
    assert find_cache({}) == Path.home() / ".cache" / "coli-ab"
