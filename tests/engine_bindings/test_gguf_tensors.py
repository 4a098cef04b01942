import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine_bindings.errors import CheckpointError
from engine_bindings.gguf_tensors import GgufTensors
from engine_bindings.reference.config import read_model_config
from engine_bindings.reference.tensors import read_tensors
from tests.engine_bindings.reference.tiny_checkpoint import Tensors, write_checkpoint


def map_checkpoint(folder: Path) -> GgufTensors:
    return GgufTensors(read_model_config(folder), read_tensors(folder))


def known_names() -> list[str]:
    return [
        gguf.TENSOR_NAMES[kind].replace("{bid}", r"\d+")
        for kind in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.GLM_DSA]
    ]


def test_every_name_is_one_of_the_architecture(tmp_path: Path) -> None:
    mapped = map_checkpoint(write_checkpoint(tmp_path))
    pattern = re.compile(rf"({'|'.join(known_names())})\.(weight|bias)")
    assert [name for name in mapped.by_name if not pattern.fullmatch(name)] == []


def test_the_halves_of_the_value_and_key_matrix_make_the_whole_again(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    mapped = map_checkpoint(folder)
    whole = read_tensors(folder).take("model.layers.1.self_attn.kv_b_proj.weight", 3 * (5 + 6), 7)
    key, value = mapped.by_name["blk.1.attn_k_b.weight"], mapped.by_name["blk.1.attn_v_b.weight"]
    assert (key.shape, value.shape) == ((3, 7, 5), (3, 6, 7))
    rebuilt = np.concatenate((key.transpose(0, 2, 1), value), axis=1).reshape(33, 7)
    assert np.array_equal(rebuilt, whole)


def test_experts_are_stacked_in_their_order(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    stacked = map_checkpoint(folder).by_name["blk.2.ffn_down_exps.weight"]
    one = read_tensors(folder).take("model.layers.2.mlp.experts.3.down_proj.weight", 20, 9)
    assert stacked.shape == (5, 20, 9)
    assert np.array_equal(stacked[3], one)


def test_the_first_layers_are_dense_and_the_head_is_sparse(tmp_path: Path) -> None:
    names = map_checkpoint(write_checkpoint(tmp_path)).by_name
    assert "blk.0.ffn_gate.weight" in names
    assert "blk.0.ffn_gate_exps.weight" not in names
    assert "blk.3.ffn_gate_exps.weight" in names


def test_the_head_goes_behind_the_layers(tmp_path: Path) -> None:
    mapped = map_checkpoint(write_checkpoint(tmp_path))
    assert mapped.has_mtp
    assert mapped.by_name["blk.3.nextn.eh_proj.weight"].shape == (20, 40)


def test_a_head_that_the_config_switches_off_is_left_out(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace('"num_nextn_predict_layers": 1', '"num_nextn_predict_layers": 0')
    )
    mapped = map_checkpoint(folder)
    assert not mapped.has_mtp
    assert not any(name.startswith("blk.3.") for name in mapped.by_name)


def test_an_indexer_that_is_missing_is_written_as_zeros(tmp_path: Path) -> None:
    mapped = map_checkpoint(write_checkpoint(tmp_path))
    assert (mapped.indexer_heads, mapped.indexer_width) == (1, 64)
    assert mapped.by_name["blk.0.indexer.attn_q_b.weight"].shape == (64, 10)
    assert not mapped.by_name["blk.3.indexer.k_norm.bias"].any()


def add_indexer(width: int, heads: int = 2) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for layer in range(4):
            name = f"model.layers.{layer}.self_attn.indexer"
            tensors[f"{name}.wk.weight"] = np.full((width, 20), layer + 1, np.float32)
            tensors[f"{name}.weights_proj.weight"] = np.ones((heads, 20), np.float32)

    return change


def test_an_indexer_of_the_checkpoint_is_kept(tmp_path: Path) -> None:
    mapped = map_checkpoint(write_checkpoint(tmp_path, change=add_indexer(128)))
    assert (mapped.indexer_heads, mapped.indexer_width) == (2, 128)
    assert mapped.by_name["blk.2.indexer.attn_k.weight"][0, 0] == 3


def test_an_indexer_that_would_end_the_server_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, change=add_indexer(48))
    with pytest.raises(CheckpointError, match="48 wide") as error:
        map_checkpoint(folder)
    assert "multiples of 64" in error.value.hint
