"""Environment and arguments to settings: defaults, every mode, and errors that name variable and value."""

from pathlib import Path

import pytest

from engine_bindings.errors import UsageError
from engine_bindings.reference.settings import VARIABLES, choose_mode, read_settings


def test_defaults() -> None:
    settings = read_settings({})
    assert (settings.mode, settings.model_dir, settings.kernels) == ("oracle", None, "invariant")
    assert (settings.context_tokens, settings.kv_slots, settings.ngen_tokens) == (4096, 1, None)
    assert (settings.draft_tokens, settings.mtp) == (None, True)
    assert (settings.guard_percent, settings.guard_window_tokens) == (70, 24)
    assert (settings.temperature, settings.top_p, settings.seed) == (None, 0.9, None)
    assert not settings.kv_save
    assert settings.chat_template
    assert (settings.think, settings.prof, settings.logit_gap, settings.all_stops) == (False,) * 4


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "oracle"),
        ({"PROMPT": "hi"}, "one-shot"),
        ({"PROMPT": ""}, "one-shot"),
        ({"COLI_PROMPT": "hi"}, "one-shot"),
        ({"SERVE": "1"}, "chat"),
        ({"SERVE": "", "PROMPT": "hi"}, "chat"),
        ({"SERVE": "1", "SERVE_BATCH": "0"}, "chat"),
        ({"SERVE": "1", "SERVE_BATCH": "1"}, "serve"),
        ({"SERVE_BATCH": "1"}, "oracle"),
    ],
)
def test_modes(environ: dict[str, str], mode: str) -> None:
    assert choose_mode(environ) == mode


def test_every_variable_reaches_its_setting() -> None:
    settings = read_settings(
        {
            "SNAP": "/models/x", "SERVE": "1", "CTX": "512", "NGEN": "9", "DRAFT": "3", "MTP": "0",
            "COLI_MTP_GUARD_PCT": "0", "COLI_MTP_GUARD_WINDOW": "8", "KV_SLOTS": "4", "COLI_TEMP": "0.5",
            "NUCLEUS": "1", "SEED": "-5", "CHAT_TEMPLATE": "0", "THINK": "1", "COLI_SERVE_ALL_STOPS": "",
            "PROF": "1", "COLI_LOGIT_GAP": "yes", "TOKENS": "1", "REF": "r.json", "TF": "1",
        }
    )  # fmt: skip
    assert (settings.model_dir, settings.context_tokens, settings.ngen_tokens) == (Path("/models/x"), 512, 9)
    assert (settings.draft_tokens, settings.mtp, settings.kv_slots, settings.kv_save) == (3, False, 4, True)
    assert (settings.guard_percent, settings.guard_window_tokens) == (0, 8)
    assert (settings.temperature, settings.top_p, settings.seed) == (0.5, 1.0, -5)
    assert (settings.chat_template, settings.think, settings.all_stops) == (False, True, True)
    assert (settings.prof, settings.logit_gap, settings.print_tokens) == (True, True, True)
    assert (settings.reference_file, settings.teacher_forcing) == (Path("r.json"), True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DRAFT", "9"), ("DRAFT", "-2"), ("DRAFT", "many"), ("CTX", "0"), ("CTX", "15"), ("NGEN", "0"),
        ("KV_SLOTS", "0"), ("KV_SLOTS", "17"), ("COLI_TEMP", "2.1"), ("COLI_TEMP", "-0.1"),
        ("COLI_TEMP", "nan"),
        ("TEMP", "hot"), ("NUCLEUS", "0"), ("NUCLEUS", "1.01"), ("COLI_MTP_GUARD_PCT", "101"),
        ("COLI_MTP_GUARD_WINDOW", "3"), ("SEED", "1.5"), ("MTP", "yes"), ("KVSAVE", "no"), ("PROF", "on"),
        ("REF_KERNELS", "fast"), ("SERVE_BATCH", "x"),
    ],
)  # fmt: skip
def test_impossible_values_are_named(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings({"SERVE": "1", name: value})
    assert f"{name}={value!r}" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"), [("DRAFT", "8"), ("DRAFT", "0"), ("KV_SLOTS", "16"), ("CTX", "16")]
)
def test_values_at_the_limits_are_taken(name: str, value: str) -> None:
    read_settings({name: value})


def test_draft_minus_one_is_auto() -> None:
    assert read_settings({"DRAFT": "-1"}).draft_tokens is None


def test_without_a_model_directory_nothing_is_saved() -> None:
    assert not read_settings({"KVSAVE": "1"}).kv_save
    assert read_settings({"SNAP": "/m"}).kv_save
    assert not read_settings({"SNAP": "/m", "KVSAVE": "0"}).kv_save


@pytest.mark.parametrize(
    ("value", "on"), [("", False), ("0", False), ("01", False), ("1", True), ("x", True)]
)
def test_logit_gap_is_on_unless_it_starts_with_zero(value: str, on: bool) -> None:
    assert read_settings({"COLI_LOGIT_GAP": value}).logit_gap is on


def test_temp_is_an_alias_that_loses() -> None:
    assert read_settings({"TEMP": "0.3"}).temperature == 0.3
    assert read_settings({"TEMP": "0.3", "COLI_TEMP": "0.4"}).temperature == 0.4


def test_the_command_line_wins_over_ref_kernels() -> None:
    assert read_settings({"REF_KERNELS": "int8-batch"}).kernels == "int8-batch"
    assert read_settings({"REF_KERNELS": "int8-batch"}, kernels="invariant").kernels == "invariant"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((), (64, 16, 16)), ((0,), (8, 16, 16)), ((4, 8), (4, 8, 8)), ((4, 8, 6), (4, 8, 6))],
)
def test_positional_numbers(numbers: tuple[int, ...], expected: tuple[int, int, int]) -> None:
    settings = read_settings({}, numbers=numbers)
    assert (settings.cache_experts, settings.expert_bits, settings.dense_bits) == expected


def test_variables_are_declared_once() -> None:
    names = [variable.name for variable in VARIABLES]
    assert len(names) == len(set(names))
    assert all(variable.meaning and variable.default for variable in VARIABLES)
