import json
from pathlib import Path

import pytest

from engine_bindings.errors import CheckpointError
from engine_bindings.reference.config import ModelConfig, read_model_config
from tests.engine_bindings.reference.tiny_checkpoint import tiny_config


def write_config(folder: Path, text: str) -> Path:
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


def read_changed(folder: Path, **changes: object) -> ModelConfig:
    return read_model_config(write_config(folder, json.dumps(tiny_config(**changes))))


def test_the_values_of_the_file_are_read(tmp_path: Path) -> None:
    config = read_changed(tmp_path, max_position_embeddings=100, index_topk=80)
    assert (config.vocab_size, config.hidden_size, config.rope_theta) == (53, 20, 500.0)
    assert config.eos_token_ids == (50, 51)
    assert config.max_context_tokens == 80
    assert config.qk_head_dim == 9
    assert config.latent_dim == 11
    assert config.mtp_layer == 3


def test_optional_keys_have_the_architectures_defaults(tmp_path: Path) -> None:
    config = read_changed(
        tmp_path,
        routed_scaling_factor=None,
        norm_topk_prob=None,
        rms_norm_eps=None,
        rope_parameters=None,
        index_topk=None,
        num_nextn_predict_layers=None,
        eos_token_id=None,
    )
    assert config.routed_scaling_factor == 1.0
    assert config.norm_topk_prob is False
    assert config.rms_norm_eps == 1e-5
    assert config.rope_theta == 10000.0
    assert config.max_context_tokens == 512
    assert config.num_nextn_predict_layers is None
    assert config.eos_token_ids == ()


def test_a_single_stop_token_may_be_a_number(tmp_path: Path) -> None:
    assert read_changed(tmp_path, eos_token_id=7).eos_token_ids == (7,)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "llama"),
        ("model_type", None),
        ("vocab_size", None),
        ("vocab_size", "53"),
        ("vocab_size", True),
        ("vocab_size", 53.0),
        ("hidden_size", 0),
        ("hidden_size", -20),
        ("num_hidden_layers", 10**9),
        ("kv_lora_rank", [7]),
        ("qk_rope_head_dim", 5),
        ("first_k_dense_replace", 4),
        ("num_experts_per_tok", 6),
        ("n_routed_experts", 65),
        ("n_group", 2),
        ("topk_group", 2),
        ("hidden_act", "gelu"),
        ("scoring_func", "softmax"),
        ("attention_bias", True),
        ("tie_word_embeddings", True),
        ("norm_topk_prob", 1),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", -1e-5),
        ("routed_scaling_factor", float("nan")),
        ("routed_scaling_factor", float("inf")),
        ("rope_parameters", "default"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 500.0}),
        ("num_nextn_predict_layers", 2),
        ("eos_token_id", 53),
        ("eos_token_id", [-1]),
        ("eos_token_id", "x"),
        ("index_topk", 0),
        ("max_position_embeddings", 0),
        ("mlp_layer_types", ["sparse", "sparse", "sparse"]),
    ],
)
def test_a_wrong_value_is_refused_by_file_key_and_value(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_changed(tmp_path, **{key: value})
    assert str(tmp_path / "config.json") in caught.value.message
    assert repr(key) in caught.value.message
    shown = "missing" if value is None else repr(value)
    assert shown in caught.value.message
    assert caught.value.hint


def test_a_wrong_theta_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'rope_theta' is -1"):
        read_changed(tmp_path, rope_parameters={"rope_theta": -1})


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"text"', "\ufeff{}", "[" * 100_000])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_model_config(write_config(tmp_path, text))


def test_a_missing_file_or_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_model_config(tmp_path / "nothing")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="Is a directory"):
        read_model_config(tmp_path)
