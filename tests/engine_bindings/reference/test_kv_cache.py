from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine_bindings.errors import UsageError
from engine_bindings.reference.kv_cache import (
    FILE_FORMAT,
    KvCache,
    SavedKvError,
    read_kv_cache,
    write_kv_cache,
)
from engine_bindings.reference.model import Model, Segment, read_model
from tests.engine_bindings.reference.tiny_checkpoint import write_checkpoint

TOKENS = [5, 9, 2, 40, 11, 3, 3, 8]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return read_model(write_checkpoint(tmp_path / "model"))


def filled(model: Model) -> KvCache:
    cache = KvCache(model.config, 100)
    model.forward([Segment(cache=cache, tokens=TOKENS, start=0)])
    return cache


def test_a_context_beyond_the_model_is_refused(model: Model) -> None:
    assert KvCache(model.config, 512).capacity_tokens == 512
    for tokens in (0, 513):
        with pytest.raises(UsageError, match=f"{tokens} tokens"):
            KvCache(model.config, tokens)


def test_truncation_forgets_the_head_rows_that_saw_a_forgotten_token(model: Model) -> None:
    cache = filled(model)
    cache.open_draft(2, 7)
    cache.truncate(8)
    assert (cache.length, cache.draft_start, cache.draft_end) == (8, 2, 7)
    cache.truncate(6)
    assert (cache.length, cache.draft_start, cache.draft_end) == (6, 2, 5)
    cache.truncate(20)
    assert (cache.length, cache.draft_end) == (6, 5)
    cache.truncate(3)
    assert (cache.length, cache.draft_start, cache.draft_end) == (3, None, 0)
    cache.truncate(0)
    assert (cache.length, cache.draft_end) == (0, 0)


def test_a_forward_keeps_the_head_row_of_the_token_it_takes_in(model: Model) -> None:
    cache = filled(model)
    cache.open_draft(0, 8)
    model.forward([Segment(cache=cache, tokens=(1, 2), start=8)])
    assert (cache.length, cache.draft_end) == (10, 8)
    model.forward([Segment(cache=cache, tokens=(1,), start=4)])
    assert (cache.length, cache.draft_end) == (5, 4)


@pytest.mark.parametrize(("start", "end", "window"), [(3, 5, 0), (5, 6, 0), (0, 1, 0), (6, 7, 6), (9, 12, 9)])
def test_a_window_is_joined_or_begun_anew(model: Model, start: int, end: int, window: int) -> None:
    cache = KvCache(model.config, 100)
    cache.open_draft(0, 5)
    assert cache.open_draft(start, end) == window
    assert (cache.draft_start, cache.draft_end) == (window, end)


def test_a_saved_context_goes_on_with_the_same_bits(tmp_path: Path, model: Model) -> None:
    path, cache = tmp_path / ".coli_kv", filled(model)
    write_kv_cache(path, cache, TOKENS, "digest")
    again = KvCache(model.config, 20)
    assert read_kv_cache(path, again, "digest") == tuple(TOKENS)
    assert again.length == 8
    rows = [model.forward([Segment(cache=c, tokens=(7, 7), start=8)]) for c in (cache, again)]
    assert np.array_equal(rows[0].logits, rows[1].logits)
    assert [entry.name for entry in tmp_path.iterdir() if "coli_kv" in entry.name] == [".coli_kv"]


def test_only_valid_rows_are_saved(tmp_path: Path, model: Model) -> None:
    cache = filled(model)
    cache.truncate(5)
    write_kv_cache(tmp_path / "kv", cache, TOKENS[:5], "digest")
    assert read_kv_cache(tmp_path / "kv", cache, "digest") == tuple(TOKENS[:5])
    cache.truncate(0)
    write_kv_cache(tmp_path / "kv", cache, [], "digest")
    assert read_kv_cache(tmp_path / "kv", filled(model), "digest") == ()


def test_a_context_of_another_model_is_refused(tmp_path: Path, model: Model) -> None:
    write_kv_cache(tmp_path / "kv", filled(model), TOKENS, "digest")
    cache = filled(model)
    with pytest.raises(SavedKvError, match="different model"):
        read_kv_cache(tmp_path / "kv", cache, "other")
    assert cache.length == 0


def test_a_context_that_does_not_fit_is_refused(tmp_path: Path, model: Model) -> None:
    write_kv_cache(tmp_path / "kv", filled(model), TOKENS, "digest")
    read_kv_cache(tmp_path / "kv", KvCache(model.config, 8), "digest")
    with pytest.raises(SavedKvError, match="8 tokens, the context has 7"):
        read_kv_cache(tmp_path / "kv", KvCache(model.config, 7), "digest")


@pytest.mark.parametrize("kept", [0, 7, 60, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, model: Model, kept: int) -> None:
    path = tmp_path / "kv"
    write_kv_cache(path, filled(model), TOKENS, "digest")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SavedKvError, match="cannot be read"):
        read_kv_cache(path, filled(model), "digest")


def test_a_missing_file_is_refused(tmp_path: Path, model: Model) -> None:
    with pytest.raises(SavedKvError, match="cannot be read"):
        read_kv_cache(tmp_path / "kv", filled(model), "digest")


def spoiled_arrays() -> dict[str, dict[str, np.ndarray]]:
    rows, tokens = np.zeros((3, 3, 11), np.float32), np.zeros(3, np.int32)
    infinite = rows.copy()
    infinite[1, 1, 1] = np.inf
    return {
        "no tokens": {"rows": rows},
        "another width": {"rows": rows[:, :, :10].copy(), "tokens": tokens},
        "fewer tokens": {"rows": rows, "tokens": tokens[:2]},
        "two axes of tokens": {"rows": rows, "tokens": tokens[:, None]},
        "infinite": {"rows": infinite, "tokens": tokens},
        "double": {"rows": rows.astype(np.float64), "tokens": tokens},
        "unknown token": {"rows": rows, "tokens": tokens + 53},
        "negative token": {"rows": rows, "tokens": tokens - 1},
        "real tokens": {"rows": rows, "tokens": tokens.astype(np.float32)},
    }


@pytest.mark.parametrize("name", spoiled_arrays())
def test_arrays_that_are_off_are_refused(tmp_path: Path, model: Model, name: str) -> None:
    save_file(spoiled_arrays()[name], tmp_path / "kv", {"format": FILE_FORMAT, "model": "digest"})
    cache = filled(model)
    with pytest.raises(SavedKvError):
        read_kv_cache(tmp_path / "kv", cache, "digest")
    assert cache.length == 0
