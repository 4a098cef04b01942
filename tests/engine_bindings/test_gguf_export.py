import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine_bindings.errors import CheckpointError, UsageError
from engine_bindings.gguf_export import export_gguf
from engine_bindings.reference.runtime import PACKAGED_CHECKPOINT
from engine_bindings.reference.tensors import read_tensors


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> gguf.GGUFReader:
    path = tmp_path_factory.mktemp("gguf") / "reference.gguf"
    summary = export_gguf(path)
    assert (summary.path, summary.size_bytes, summary.has_mtp) == (path, path.stat().st_size, True)
    return gguf.GGUFReader(path)


def value_of(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    assert field is not None, key
    return field.contents()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "glm-dsa"),
        ("glm-dsa.block_count", 9),
        ("glm-dsa.nextn_predict_layers", 1),
        ("glm-dsa.context_length", 8192),
        ("glm-dsa.attention.head_count_kv", 1),
        ("glm-dsa.attention.key_length", 48),
        ("glm-dsa.attention.value_length", 32),
        ("glm-dsa.attention.key_length_mla", 32),
        ("glm-dsa.attention.value_length_mla", 32),
        ("glm-dsa.attention.indexer.key_length", 64),
        ("glm-dsa.attention.indexer.top_k", 8192),
        ("glm-dsa.leading_dense_block_count", 1),
        ("glm-dsa.expert_used_count", 2),
        ("glm-dsa.expert_weights_scale", 2.5),
        ("glm-dsa.expert_weights_norm", True),
        ("tokenizer.ggml.pre", "chatglm-bpe"),
        ("tokenizer.ggml.eos_token_id", 623),
        ("tokenizer.ggml.eot_token_id", 627),
        ("tokenizer.ggml.eom_token_id", 629),
        ("tokenizer.ggml.add_bos_token", False),
    ],
)
def test_a_value_is_in_the_file(written: gguf.GGUFReader, key: str, value: object) -> None:
    assert value_of(written, key) == value


def test_the_weights_are_the_checkpoints_to_the_bit(written: gguf.GGUFReader) -> None:
    tensors = {tensor.name: tensor for tensor in written.tensors}
    source = read_tensors(PACKAGED_CHECKPOINT)
    for name, gguf_name, shape in (
        ("lm_head.weight", "output.weight", (640, 96)),
        ("model.layers.4.self_attn.q_b_proj.weight", "blk.4.attn_q_b.weight", (128, 48)),
        ("model.layers.8.eh_proj.weight", "blk.8.nextn.eh_proj.weight", (96, 192)),
    ):
        stored = tensors[gguf_name]
        assert stored.tensor_type == gguf.GGMLQuantizationType.F32
        assert np.array_equal(stored.data, source.take(name, *shape))


def test_every_weight_is_there_once(written: gguf.GGUFReader) -> None:
    # The checkpoint has no tensor that the file leaves out, so the numbers of weights are equal.
    stored = sum(int(tensor.n_elements) for tensor in written.tensors)
    source = read_tensors(PACKAGED_CHECKPOINT).stored.values()
    assert stored == sum(int(np.prod(tensor.shape)) for tensor in source)


def test_the_tokenizer_is_in_the_file(written: gguf.GGUFReader) -> None:
    texts, kinds = value_of(written, "tokenizer.ggml.tokens"), value_of(written, "tokenizer.ggml.token_type")
    assert len(texts) == len(kinds) == 640
    assert texts[627] == "<|user|>"
    assert kinds[627] == gguf.TokenType.CONTROL
    assert kinds[texts.index("<think>")] == gguf.TokenType.USER_DEFINED
    assert kinds[0] == gguf.TokenType.NORMAL
    assert value_of(written, "tokenizer.ggml.merges")[0] == 'Ġ "'
    template = (PACKAGED_CHECKPOINT / "chat_template.jinja").read_text(encoding="utf-8")
    assert value_of(written, "tokenizer.chat_template") == template


def copy_checkpoint(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(PACKAGED_CHECKPOINT, folder / "model")
    file = folder / "model" / name
    value = json.loads(file.read_text(encoding="utf-8"))
    change(value)
    file.write_text(json.dumps(value), encoding="utf-8")
    return folder / "model"


def set_pattern(value: dict[str, Any]) -> None:
    value["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+"


def join_merges(value: dict[str, Any]) -> None:
    value["model"]["merges"] = [" ".join(merge) for merge in value["model"]["merges"]]


def test_merges_may_be_spelled_as_one_string(tmp_path: Path) -> None:
    model = copy_checkpoint(tmp_path, "tokenizer.json", join_merges)
    export_gguf(tmp_path / "out.gguf", model)
    assert value_of(gguf.GGUFReader(tmp_path / "out.gguf"), "tokenizer.ggml.merges")[0] == 'Ġ "'


def test_a_tokenizer_that_would_cut_otherwise_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    model = copy_checkpoint(tmp_path, "tokenizer.json", set_pattern)
    with pytest.raises(CheckpointError, match="split pattern"):
        export_gguf(tmp_path / "out.gguf", model)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_more_stop_tokens_than_places_are_refused(tmp_path: Path) -> None:
    model = copy_checkpoint(tmp_path, "config.json", lambda value: value["eos_token_id"].append(5))
    with pytest.raises(CheckpointError, match="4 stop tokens"):
        export_gguf(tmp_path / "out.gguf", model)


def test_a_file_that_exists_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        export_gguf(path)
    assert path.read_bytes() == b"mine"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-folder"):
        export_gguf(tmp_path / "no-such-folder" / "out.gguf")


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match="gguf is not installed") as error:
        export_gguf(tmp_path / "out.gguf")
    assert "coli-ab[llamacpp]" in error.value.hint
