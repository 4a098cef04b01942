"""The stop set of each path, in the order that the engine shows it."""

import json
from pathlib import Path

import pytest

from engine_bindings.errors import CheckpointError
from engine_bindings.reference.stops import StopSet, keep_end_of_text, read_stops


class Specials:
    special_ids = frozenset({3, 9, 5, 7})

    def __init__(self, end: int | None) -> None:
        self.end = end

    def id_of(self, text: str) -> int | None:
        return self.end if text == "<|endoftext|>" else None


def write(directory: Path, config: object, generation: object = None) -> Path:
    (directory / "config.json").write_text(json.dumps({"eos_token_id": config}))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    return directory


def test_configured_ids_come_first_then_the_tokenizers(tmp_path: Path) -> None:
    stops = read_stops(write(tmp_path, [7, 2], [2, 4]), Specials(9))
    assert stops == StopSet(ids=(7, 2, 4, 9, 3, 5), from_tokenizer=2)


@pytest.mark.parametrize("config", [None, 5, [5]])
def test_one_id_a_list_or_none(tmp_path: Path, config: object) -> None:
    assert set(read_stops(write(tmp_path, config), Specials(9)).ids) == {3, 5, 7, 9}


def test_serve_mode_keeps_the_end_of_text(tmp_path: Path) -> None:
    stops = read_stops(write(tmp_path, [7]), Specials(9))
    assert keep_end_of_text(stops, Specials(9)) == StopSet(ids=(9,), filtered=3)


def test_without_an_end_of_text_serve_mode_keeps_all(tmp_path: Path) -> None:
    stops = read_stops(write(tmp_path, [7]), Specials(None))
    assert keep_end_of_text(stops, Specials(None)) == stops


@pytest.mark.parametrize("config", ["x", ["x"], {"a": 1}])
def test_ids_that_are_none_are_refused(tmp_path: Path, config: object) -> None:
    with pytest.raises(CheckpointError, match="eos_token_id"):
        read_stops(write(tmp_path, config), Specials(9))
