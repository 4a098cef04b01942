import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine_bindings.errors import CheckpointError
from engine_bindings.reference import tensors as tensors_module
from engine_bindings.reference.config import read_model_config
from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.model import Segment, read_model
from engine_bindings.reference.weights import Weights, read_weights
from tests.engine_bindings.reference.tiny_checkpoint import (
    Tensors,
    tiny_config,
    tiny_tensors,
    write_checkpoint,
)


def read(folder: Path) -> Weights:
    return read_weights(folder, read_model_config(folder))


def logits_of(folder: Path) -> np.ndarray:
    model = read_model(folder)
    cache = KvCache(model.config, 64)
    return model.forward([Segment(cache=cache, tokens=(1, 2, 3, 4), start=0)]).logits


def test_shapes_and_digest(tmp_path: Path) -> None:
    weights = read(write_checkpoint(tmp_path / "a"))
    assert len(weights.layers) == 3
    assert weights.mtp is not None
    assert weights.layers[0].mlp.bias.size == 0
    assert weights.layers[1].mlp.inner.shape == (20, 5 + 2 * 7 * 9)
    assert weights.size_bytes > 0
    assert len(weights.digest) == 64
    assert read(write_checkpoint(tmp_path / "same")).digest == weights.digest
    assert read(write_checkpoint(tmp_path / "other", seed=1)).digest != weights.digest


def test_tensors_may_be_spread_over_files(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "whole")
    parts = write_checkpoint(tmp_path / "parts")
    (parts / "model.safetensors").unlink()
    tensors = tiny_tensors(tiny_config())
    names = sorted(tensors)
    for number in range(3):
        save_file({name: tensors[name] for name in names[number::3]}, parts / f"model-{number}.safetensors")
    assert np.array_equal(logits_of(whole), logits_of(parts))


def test_half_precision_is_widened(tmp_path: Path) -> None:
    def halve(tensors: Tensors) -> None:
        tensors.update({name: value.astype(np.float16) for name, value in tensors.items()})

    def round_to_half(tensors: Tensors) -> None:
        tensors.update({name: value.astype(np.float16).astype(np.float32) for name, value in tensors.items()})

    half = write_checkpoint(tmp_path / "half", change=halve)
    full = write_checkpoint(tmp_path / "full", change=round_to_half)
    assert np.array_equal(logits_of(half), logits_of(full))


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    def cut(tensors: Tensors) -> None:
        for name, value in tensors.items():
            tensors[name] = (value.view(np.uint32) & 0xFFFF0000).view(np.float32)

    full = write_checkpoint(tmp_path / "full", change=cut)
    brain = write_checkpoint(tmp_path / "brain")
    tensors = tiny_tensors(tiny_config())
    header: dict[str, object] = {}
    body = b""
    for name, value in tensors.items():
        data = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    (brain / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    assert np.array_equal(logits_of(full), logits_of(brain))


def test_the_head_is_optional(tmp_path: Path) -> None:
    assert read(write_checkpoint(tmp_path / "none", num_nextn_predict_layers=0)).mtp is None

    def drop_head(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.3.")]:
            del tensors[name]

    folder = write_checkpoint(tmp_path / "silent", change=drop_head)
    with pytest.raises(CheckpointError, match=r"num_nextn_predict_layers is 1.*eh_proj"):
        read(folder)
    (folder / "config.json").write_text(json.dumps(tiny_config(num_nextn_predict_layers=None)))
    assert read(folder).mtp is None


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.layers.2.mlp.experts.4.up_proj.weight", "model.norm.weight"]
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path, change=lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError) as caught:
        read(folder)
    assert name in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    def cut(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].copy()

    with pytest.raises(CheckpointError, match=r"'lm_head.weight' has shape \(52, 20\).*\(53, 20\)"):
        read(write_checkpoint(tmp_path, change=cut))


def test_a_tensor_of_another_type_is_named(tmp_path: Path) -> None:
    def whole_numbers(tensors: Tensors) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)

    with pytest.raises(CheckpointError, match=r"'model.norm.weight' has type I8"):
        read(write_checkpoint(tmp_path, change=whole_numbers))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.gate.weight"][2, 3] = value

    with pytest.raises(CheckpointError, match=r"'model.layers.1.mlp.gate.weight' holds values"):
        read(write_checkpoint(tmp_path, change=spoil))


@pytest.mark.parametrize("kept", [0, 4, 8, 200, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    path = write_checkpoint(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a valid safetensors file"):
        read(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path) / "model.safetensors"
    path.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 8)
    with pytest.raises(CheckpointError, match="not a valid safetensors file"):
        read(tmp_path)


def test_no_weights_at_all_are_refused(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        read(tmp_path)


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path) / "model.safetensors"
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="No such file"):
        read(tmp_path)


def test_weights_too_large_for_this_engine_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path)
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(tensors_module, "MAX_CHECKPOINT_BYTES", size)
    read(folder)
    monkeypatch.setattr(tensors_module, "MAX_CHECKPOINT_BYTES", size - 1)
    with pytest.raises(CheckpointError, match=f"{size} bytes"):
        read(folder)
