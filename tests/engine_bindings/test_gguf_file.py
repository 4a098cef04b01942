"""GGUF files as models: their parts, their fingerprint, and links to them."""

from pathlib import Path

import pytest

from engine_bindings.errors import CheckpointError
from engine_bindings.fingerprint import read_model_fingerprint, read_weights_bytes
from engine_bindings.gguf_file import list_gguf_parts
from engine_bindings.model_directory import private_model_directory


def write_parts(folder: Path, *numbers: int, of: int = 2) -> Path:
    for number in numbers:
        (folder / f"m-{number:05}-of-{of:05}.gguf").write_bytes(b"GGUF" + bytes(number))
    (folder / "other.gguf").write_bytes(b"GGUF")
    return folder / f"m-00001-of-{of:05}.gguf"


def test_a_file_stands_alone(tmp_path: Path) -> None:
    first = write_parts(tmp_path, 1, 2)
    assert list_gguf_parts(tmp_path / "other.gguf") == [tmp_path / "other.gguf"]
    assert [path.name for path in list_gguf_parts(first)] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]


def test_the_fingerprint_covers_all_parts(tmp_path: Path) -> None:
    first = write_parts(tmp_path, 1, 2)
    before = read_model_fingerprint(first)
    assert before.weights_bytes == read_weights_bytes(first) == 11
    assert before.config_digest == before.tokenizer_digest == before.weights_digest
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(b"GGUFxx")
    assert read_model_fingerprint(first).weights_digest != before.weights_digest


def test_a_missing_part_is_counted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="2 of 3 parts are there"):
        read_model_fingerprint(write_parts(tmp_path, 1, 2, of=3))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x08\0\0\0")
    with pytest.raises(CheckpointError, match="not a GGUF file") as error:
        read_model_fingerprint(path)
    assert ".gguf" in error.value.hint


def test_the_engine_sees_links_to_the_parts_only(tmp_path: Path) -> None:
    with private_model_directory(write_parts(tmp_path, 1, 2)) as private:
        assert sorted(path.name for path in private.iterdir()) == [
            "m-00001-of-00002.gguf",
            "m-00002-of-00002.gguf",
        ]
        assert (private / "m-00002-of-00002.gguf").read_bytes() == b"GGUF\0\0"
