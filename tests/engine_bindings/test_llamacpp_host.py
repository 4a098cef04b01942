"""The program that stands in for ``llama-server``: its settings, and its ends as a process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import xllamacpp

from engine_bindings import llamacpp_host
from engine_bindings.llamacpp_host import OPTIONS, HostError, apply_settings, read_settings


def applied(*argv: str, **variables: str) -> xllamacpp.CommonParams:
    return apply_settings(xllamacpp, read_settings(argv, variables))


def test_a_flag_wins_over_its_variable() -> None:
    assert applied("--port", "81", LLAMA_ARG_PORT="80").port == 81


def test_settings_reach_the_library() -> None:
    parameters = applied(
        LLAMA_ARG_THREADS="3",
        LLAMA_ARG_FLASH_ATTN="off",
        LLAMA_ARG_CACHE_TYPE_K="f32",
        LLAMA_ARG_ENDPOINT_METRICS="1",
        LLAMA_ARG_CONTEXT_SHIFT="disabled",
        LLAMA_ARG_SPEC_DRAFT_P_MIN="0.5",
    )
    assert parameters.cpuparams.n_threads == parameters.cpuparams_batch.n_threads == 3
    assert parameters.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    assert parameters.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_F32
    assert (parameters.endpoint_metrics, parameters.ctx_shift) == (True, False)
    assert parameters.speculative.draft.p_min == 0.5


@pytest.mark.parametrize(("kind", "loaded"), [("draft-mtp", True), ("none", False), ("ngram-simple", False)])
def test_the_head_is_loaded_only_to_draft(kind: str, loaded: bool) -> None:
    assert applied(LLAMA_ARG_SPEC_TYPE=kind).load_mtp is loaded


def test_ngrams_are_set_by_flags() -> None:
    simple = applied("--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "3").speculative
    assert (simple.ngram_simple.size_n, simple.ngram_simple.size_m) == (4, 3)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_every_place_is_an_attribute_of_the_library(option: llamacpp_host.Option) -> None:
    for place in option.places:
        target = xllamacpp.CommonParams()
        for part in place.split("."):
            target = getattr(target, part)


@pytest.mark.parametrize(
    ("argv", "variables", "message"),
    [
        ((), {"LLAMA_ARG_MLOCK": "1"}, "LLAMA_ARG_MLOCK: xllamacpp cannot be given it"),
        (("--mlock", "1"), {}, "--mlock: no such option here"),
        (("--port",), {}, "--port: no value follows"),
        (("--port", "x"), {}, "--port=x: not a value"),
        ((), {"LLAMA_ARG_SPEC_TYPE": "magic"}, "LLAMA_ARG_SPEC_TYPE=magic"),
        ((), {"LLAMA_ARG_FIT": "perhaps"}, "LLAMA_ARG_FIT=perhaps"),
        ((), {"LLAMA_ARG_FLASH_ATTN": "perhaps"}, "LLAMA_ARG_FLASH_ATTN=perhaps"),
        ((), {"LLAMA_ARG_CACHE_TYPE_V": "f99"}, "LLAMA_ARG_CACHE_TYPE_V=f99"),
    ],
)
def test_what_cannot_be_applied_is_refused(
    argv: tuple[str, ...], variables: dict[str, str], message: str
) -> None:
    with pytest.raises(HostError, match=message):
        applied(*argv, **variables)


def run_host(*argv: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "engine_bindings.llamacpp_host", *argv],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_wrong_setting_ends_the_process_with_status_2() -> None:
    done = run_host(LLAMA_ARG_NOTHING="1")
    assert (done.returncode, "LLAMA_ARG_NOTHING" in done.stderr) == (2, True)


def test_a_port_in_use_ends_the_process_before_the_server_could_crash(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run_host("--model", str(tmp_path / "none.gguf"), "--port", port)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_a_model_that_is_not_there_ends_the_process_with_status_1(tmp_path: Path) -> None:
    done = run_host("--model", str(tmp_path / "none.gguf"), "--port", "0")
    assert done.returncode == 1
    assert "could not be started" in done.stderr


def test_the_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert llamacpp_host.main([]) == 2
    assert "coli-ab[llamacpp]" in capsys.readouterr().err


def test_the_address_stands_on_a_line_of_its_own_after_half_a_line_of_the_library(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Server:
        listening_address = "http://127.0.0.1:1"

        def __init__(self, parameters: xllamacpp.CommonParams) -> None:
            os.write(2, b"0.00.062.806 I ")

    monkeypatch.setattr(xllamacpp, "Server", Server)
    monkeypatch.setattr(llamacpp_host, "heed_signals", lambda: os.open(os.devnull, os.O_RDONLY))
    assert llamacpp_host.main(["--port", "0"]) == 0
    assert "llamacpp-host: listening on http://127.0.0.1:1" in capfd.readouterr().err.splitlines()


def test_a_server_ends_with_status_0_when_it_is_told_to(shipped_gguf: Path) -> None:
    argv = [sys.executable, "-m", "engine_bindings.llamacpp_host"]
    process = subprocess.Popen(
        [*argv, "--model", str(shipped_gguf), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        lines = iter(process.stderr)
        assert any("listening on http" in line for line in lines if line.startswith("llamacpp-host"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
