import json
from pathlib import Path

import pytest

from engine_bindings.binding import Pin
from engine_bindings.certificate import Facts, issue_certificate, verify_certificate
from engine_bindings.cpu import read_kernel_family
from engine_bindings.errors import CheckpointError, UsageError
from engine_bindings.facts_reader import read_facts
from engine_bindings.fingerprint import EngineFingerprint, read_engine_fingerprint
from tests.engine_bindings.certificate_samples import EVIDENCE, KEY, NOW


class FileEngine:
    """As much of a binding as facts need: an engine that is one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fingerprint(self) -> EngineFingerprint:
        return read_engine_fingerprint("file", version="1", source=self.path)


@pytest.fixture
def engine(tmp_path: Path) -> FileEngine:
    path = tmp_path / "engine"
    path.write_bytes(b"\x7fELF and the rest")
    return FileEngine(path)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\1\2\3")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (directory / name).write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


def pins(**values: str) -> tuple[Pin, ...]:
    return tuple(Pin(name=name, value=value, reason="test") for name, value in values.items())


def read(engine: FileEngine, model_dir: Path, **values: str) -> Facts:
    return read_facts(engine, model_dir, 3, 1, pins(**values))


def changed_fields(before: Facts, after: Facts) -> list[str]:
    certificate = issue_certificate(facts=before, evidence=EVIDENCE, key=KEY, now=NOW, tool_version="1")
    problems = verify_certificate(certificate, key=KEY, facts=after, now=NOW)
    return [problem.field for problem in problems]


def test_reading_twice_gives_the_same_facts(engine: FileEngine, model_dir: Path) -> None:
    assert changed_fields(read(engine, model_dir), read(engine, model_dir)) == []


def test_an_engine_that_differs_by_one_byte_is_another(engine: FileEngine, model_dir: Path) -> None:
    before = read(engine, model_dir)
    engine.path.write_bytes(b"\x7fELF and the resT")
    assert changed_fields(before, read(engine, model_dir)) == ["engine_digest"]


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("config.json", b"{ }", "config_digest"),
        ("tokenizer.json", b"{ }", "tokenizer_digest"),
        ("tokenizer_config.json", b"{ }", "template_digest"),
        ("chat_template.jinja", b"{{ messagez }}", "template_digest"),
        ("generation_config.json", b"{ }", "other_files_digest"),
        ("new.txt", b"", "other_files_digest"),
        ("folder/config.json", b"{}", "other_files_digest"),
    ],
)
def test_a_model_file_that_differs_is_named(
    engine: FileEngine, model_dir: Path, name: str, content: bytes, field: str
) -> None:
    before = read(engine, model_dir)
    (model_dir / name).parent.mkdir(exist_ok=True)
    (model_dir / name).write_bytes(content)
    assert changed_fields(before, read(engine, model_dir)) == [field]


def test_one_bit_of_the_weights_is_another_model(engine: FileEngine, model_dir: Path) -> None:
    before = read(engine, model_dir)
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\2")
    assert changed_fields(before, read(engine, model_dir)) == ["weights_digest"]


@pytest.mark.parametrize("name", ["chat_template.jinja", "generation_config.json"])
def test_a_renamed_model_file_is_another_model(engine: FileEngine, model_dir: Path, name: str) -> None:
    before = read(engine, model_dir)
    (model_dir / name).rename(model_dir / f"x{name}")
    assert len(changed_fields(before, read(engine, model_dir))) == 1


def test_an_engines_own_state_is_no_part_of_the_model(engine: FileEngine, model_dir: Path) -> None:
    before = read(engine, model_dir)
    (model_dir / ".coli_usage").write_text("1 2 3")
    assert changed_fields(before, read(engine, model_dir)) == []


def test_the_same_bytes_elsewhere_are_the_same_model(engine: FileEngine, model_dir: Path) -> None:
    before = read(engine, model_dir)
    moved = model_dir.rename(model_dir.with_name("moved"))
    assert changed_fields(before, read(engine, moved)) == []


def test_a_directory_without_template_and_other_files_says_so(engine: FileEngine, model_dir: Path) -> None:
    for name in ("chat_template.jinja", "tokenizer_config.json", "generation_config.json"):
        (model_dir / name).unlink()
    facts = read(engine, model_dir)
    assert facts.template_digest is None
    assert facts.other_files_digest is None


def test_settings_hold_what_all_arms_share(engine: FileEngine, model_dir: Path) -> None:
    of_an_arm = {"SERVE": "1", "SERVE_BATCH": "1", "DRAFT": "3", "KV_SLOTS": "1"}
    of_requests = {"NGEN": "64", "CTX": "512", "COLI_TEMP": "0", "NUCLEUS": "1"}
    facts = read(engine, model_dir, OMP_NUM_THREADS="1", SEED="7", **of_an_arm, **of_requests)
    assert dict(facts.settings) == {"OMP_NUM_THREADS": "1", "SEED": "7"}


@pytest.mark.parametrize(("name", "value"), [("DRAFT", "5"), ("KV_SLOTS", "2")])
def test_a_pin_that_contradicts_an_argument_is_refused(
    engine: FileEngine, model_dir: Path, name: str, value: str
) -> None:
    with pytest.raises(UsageError, match=f"{name}={value}"):
        read(engine, model_dir, **{name: value})


def test_a_value_with_control_characters_is_refused(engine: FileEngine, model_dir: Path) -> None:
    with pytest.raises(UsageError, match=r"settings\.TEXT"):
        read(engine, model_dir, TEXT="a\x1b[31m")


def test_a_broken_link_in_the_model_is_named(engine: FileEngine, model_dir: Path) -> None:
    (model_dir / "extra.json").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"extra\.json: cannot be read"):
        read(engine, model_dir)


def test_an_executable_brings_its_own_kernels_and_a_script_takes_numpys(
    engine: FileEngine, model_dir: Path
) -> None:
    assert read(engine, model_dir).kernel_family == "in the engine's executable"
    engine.path.write_text("#!/bin/sh\n")
    assert read(engine, model_dir).kernel_family == read_kernel_family()


def test_facts_do_not_change_after_reading(engine: FileEngine, model_dir: Path) -> None:
    facts = read(engine, model_dir, SEED="7")
    with pytest.raises(TypeError):
        facts.settings["SEED"] = "8"
