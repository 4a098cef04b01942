"""Digests of engines and models; what counts as broken is tested through ``coli-ab compare``."""

import json
from pathlib import Path

import pytest

from engine_bindings import fingerprint
from engine_bindings.errors import CheckpointError, UsageError
from engine_bindings.fingerprint import (
    check_safetensors,
    read_engine_fingerprint,
    read_model_fingerprint,
)
from engine_bindings.reference_engine import ReferenceEngine


def write_weights(path: Path, data: bytes) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    write_weights(tmp_path / "model.safetensors", bytes(range(256)))
    return tmp_path


def test_each_part_of_a_model_has_its_own_digest(model_dir: Path) -> None:
    before = read_model_fingerprint(model_dir)
    (model_dir / "config.json").write_text('{"changed": 1}')
    after = read_model_fingerprint(model_dir)

    assert before.config_digest != after.config_digest
    assert before.tokenizer_digest == after.tokenizer_digest
    assert before.weights_digest == after.weights_digest
    assert not before.weights_sampled


def test_one_changed_byte_changes_the_digest(model_dir: Path) -> None:
    before = read_model_fingerprint(model_dir)
    write_weights(model_dir / "model.safetensors", bytes(range(255)) + b"\0")

    assert read_model_fingerprint(model_dir).weights_digest != before.weights_digest


def test_large_weights_are_sampled_from_first_to_last_byte(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "WHOLE_LIMIT_BYTES", 1000)
    monkeypatch.setattr(fingerprint, "BLOCK_BYTES", 8)
    digests = set()
    for change in (None, 0, 9_999):
        data = bytearray(10_000)
        if change is not None:
            data[change] = 1
        write_weights(model_dir / "model.safetensors", bytes(data))
        read = read_model_fingerprint(model_dir)
        digests.add(read.weights_digest)
        assert read.weights_sampled

    # The first blocks hold the header; the last byte is surely in the sample.
    assert len(digests) >= 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 16,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b'"ab"',
        (8).to_bytes(8, "little") + b'{"a": 1}',
    ],
)
def test_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)

    with pytest.raises(CheckpointError, match=r"x\.safetensors"):
        check_safetensors(tmp_path / "x.safetensors")


def test_fingerprint_of_the_embedded_engine_is_over_its_sources() -> None:
    first = ReferenceEngine().fingerprint()

    assert first == ReferenceEngine().fingerprint()
    assert first.source.endswith("reference")
    assert len(first.digest) == 64


def test_engine_that_is_gone_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the engine"):
        read_engine_fingerprint("x", version=None, source=tmp_path / "gone")


def test_every_directory_that_an_engine_is_made_of_counts(tmp_path: Path) -> None:
    for name in ("core", "wire"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n")

    def digest() -> str:
        return read_engine_fingerprint(
            "x", version=None, source=tmp_path / "core", more=(tmp_path / "wire",)
        ).digest

    before = digest()
    (tmp_path / "wire" / "a.py").write_text("x = 2\n")
    assert digest() != before


def test_many_files_are_sampled_by_their_sum_and_each_by_head_and_end(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "WHOLE_LIMIT_BYTES", 1000)
    monkeypatch.setattr(fingerprint, "BLOCK_BYTES", 8)
    monkeypatch.setattr(fingerprint, "SAMPLED_BLOCKS", 4)
    (model_dir / "model.safetensors").unlink()
    for number in range(4):
        write_weights(model_dir / f"{number}.safetensors", bytes(500))
    before = read_model_fingerprint(model_dir)
    digests = {before.weights_digest}

    for number in range(4):
        write_weights(model_dir / f"{number}.safetensors", bytes(499) + b"\1")
        digests.add(read_model_fingerprint(model_dir).weights_digest)
    head = json.dumps({"v": {"dtype": "U8", "shape": [500], "data_offsets": [0, 500]}}).encode()
    (model_dir / "0.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(500))
    digests.add(read_model_fingerprint(model_dir).weights_digest)

    assert before.weights_sampled
    assert len(digests) == 6


def test_hundreds_of_gigabytes_are_sampled_in_a_moment(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "SAMPLED_BLOCKS", 64)
    size = 370 << 30
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (model_dir / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)

    read = read_model_fingerprint(model_dir)

    assert read.weights_sampled
    assert read.weights_bytes == 8 + len(header) + size
