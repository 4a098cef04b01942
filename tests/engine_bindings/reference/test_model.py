"""The forward pass: right against a naive twin, and every row independent of how it was computed."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine_bindings.reference import layers
from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.model import BLOCK_ROWS, Kernels, LogitsFor, Model, Rows, Segment, read_model
from tests.engine_bindings.reference.naive_model import NaiveModel
from tests.engine_bindings.reference.tiny_checkpoint import (
    seeded,
    tiny_config,
    tiny_tensors,
    write_checkpoint,
)

SHIPPED = Path(__file__).parents[3] / "engine_bindings" / "reference" / "checkpoint"
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "odd widths": {"hidden_size": 33, "kv_lora_rank": 13, "q_lora_rank": 5, "vocab_size": 101},
    "all dense": {"first_k_dense_replace": 3},
    "all sparse": {"first_k_dense_replace": 0, "num_experts_per_tok": 5},
    "one expert, no norm": {"num_experts_per_tok": 1, "norm_topk_prob": False, "n_shared_experts": 1},
    "one head": {"num_attention_heads": 1, "qk_rope_head_dim": 2},
}

FloatArray = NDArray[np.float32]


def tiny_model(
    folder: Path, *, kernels: Kernels = "invariant", size: float = 1.5, **changes: object
) -> Model:
    return read_model(write_checkpoint(folder, size=size, **changes), kernels=kernels)


def run(
    model: Model, cache: KvCache, tokens: list[int], start: int = 0, logits_for: LogitsFor = "all"
) -> Rows:
    return model.forward([Segment(cache=cache, tokens=tokens, start=start)], logits_for=logits_for)


def random_tokens(rng: random.Random, model: Model, count: int) -> list[int]:
    return [rng.randrange(model.config.vocab_size) for _ in range(count)]


def row_by_row(model: Model, tokens: list[int]) -> tuple[FloatArray, FloatArray]:
    """Logits and hidden rows, one row a call in a fresh cache: what every other way must equal."""
    cache = KvCache(model.config, len(tokens))
    rows = [run(model, cache, [token], start) for start, token in enumerate(tokens)]
    return np.concatenate([r.logits for r in rows]), np.concatenate([r.hidden for r in rows])


# --- right ---


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_the_naive_twin(tmp_path: Path, name: str) -> None:
    changes = VARIANTS[name]
    model = tiny_model(tmp_path, **changes)
    config = tiny_config(**changes)
    naive = NaiveModel(config, tiny_tensors(config))
    tokens = random_tokens(seeded(name), model, 70)
    rows = run(model, KvCache(model.config, 80), tokens)
    np.testing.assert_allclose(rows.logits, naive.logits(tokens), rtol=0, atol=2e-4)
    np.testing.assert_allclose(rows.hidden, naive.hidden(tokens), rtol=0, atol=2e-4)


def test_scores_far_beyond_the_range_of_exp_are_shifted(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, size=12.0)
    assert all(layer.attention.shifted for layer in model.weights.layers)
    config = tiny_config()
    tokens = random_tokens(seeded(1), model, 30)
    rows = run(model, KvCache(model.config, 80), tokens)
    naive = NaiveModel(config, tiny_tensors(config, size=12.0)).logits(tokens)
    assert np.isfinite(rows.logits).all()
    np.testing.assert_allclose(rows.logits, naive, rtol=0, atol=2e-2 * np.abs(naive).max())


def test_small_scores_need_no_shift_and_the_shift_changes_little(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, size=0.7)
    plain = [layer.attention.shifted for layer in model.weights.layers]
    assert not any(plain)
    shifted = tuple(
        replace(layer, attention=replace(layer.attention, shifted=True)) for layer in model.weights.layers
    )
    other = Model(model.config, replace(model.weights, layers=shifted))
    tokens = random_tokens(seeded(2), model, 40)
    one, two = (run(m, KvCache(model.config, 64), tokens).logits for m in (model, other))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-5)


def test_equal_router_scores_go_to_the_lowest_expert(tmp_path: Path) -> None:
    def tie(tensors: dict[str, FloatArray]) -> None:
        for name, values in tensors.items():
            if "mlp.gate." in name:
                values[:] = 0

    folder = write_checkpoint(tmp_path, change=tie)
    config, tensors = tiny_config(), tiny_tensors(tiny_config())
    tie(tensors)
    model = read_model(folder)
    tokens = random_tokens(seeded(3), model, 9)
    logits = run(model, KvCache(model.config, 64), tokens).logits
    np.testing.assert_allclose(logits, NaiveModel(config, tensors).logits(tokens), rtol=0, atol=2e-4)


def test_the_last_rows_only(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    rng = seeded(4)
    first, second = random_tokens(rng, model, 9), random_tokens(rng, model, 5)
    caches = [KvCache(model.config, 64) for _ in range(2)]
    segments = [Segment(cache=c, tokens=t, start=0) for c, t in zip(caches, (first, second), strict=True)]
    every, last = model.forward(segments), model.forward(segments, logits_for="last")
    assert last.logits.shape == (2, model.config.vocab_size)
    assert np.array_equal(last.logits, every.logits[[8, 13]])
    assert np.array_equal(last.hidden, every.hidden)


def test_rows_must_follow_the_cache(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    cache = KvCache(model.config, 8)
    with pytest.raises(ValueError, match="do not follow"):
        run(model, cache, [1], start=1)
    with pytest.raises(ValueError, match="do not follow"):
        run(model, cache, [1] * 9)
    with pytest.raises(ValueError, match="do not follow"):
        run(model, cache, [])
    assert run(model, cache, [1] * 8).logits.shape == (8, 53)


def test_results_outlive_the_next_forward(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    rows = run(model, KvCache(model.config, 64), [1, 2, 3])
    kept = rows.logits.copy(), rows.hidden.copy()
    run(model, KvCache(model.config, 64), [4, 5, 6])
    assert np.array_equal(rows.logits, kept[0])
    assert np.array_equal(rows.hidden, kept[1])


def test_shipped_activations_raise_no_floating_point_flag() -> None:
    model = read_model(SHIPPED)
    tokens = random_tokens(seeded(5), model, 200)
    with np.errstate(divide="raise", invalid="raise"):
        rows = run(model, KvCache(model.config, 256), tokens)
    assert np.isfinite(rows.logits).all()


# --- invariant ---


def fill_with_stale_rows(rng: random.Random, model: Model, cache: KvCache) -> None:
    run(model, cache, random_tokens(rng, model, cache.capacity_tokens))
    cache.truncate(0)


def in_random_chunks(rng: random.Random, model: Model, tokens: list[int], largest: int) -> Rows:
    """Compute ``tokens`` in random chunks, beside other slots, over stale rows and with wrong drafts."""
    cache = KvCache(model.config, len(tokens) + 12)
    others = [KvCache(model.config, 40) for _ in range(3)]
    fill_with_stale_rows(rng, model, cache)
    parts, start = [], 0
    while start < len(tokens):
        chunk = tokens[start : start + rng.randint(1, largest)]
        guesses = random_tokens(rng, model, rng.choice((0, 0, 1, 3, 8)))
        own = Segment(cache=cache, tokens=(*chunk, *guesses), start=start)
        before = [beside(rng, model, other) for other in rng.sample(others, rng.randint(0, 2))]
        rows = model.forward([*before, own])
        first = sum(len(segment.tokens) for segment in before)
        span = slice(first, first + len(chunk))
        parts.append((rows.logits[span], rows.hidden[span]))
        start += len(chunk)
        cache.truncate(start)
    return Rows(
        logits=np.concatenate([part[0] for part in parts]), hidden=np.concatenate([part[1] for part in parts])
    )


def beside(rng: random.Random, model: Model, cache: KvCache) -> Segment:
    start = rng.randint(0, min(cache.length, 30))
    return Segment(cache=cache, tokens=random_tokens(rng, model, rng.randint(1, 9)), start=start)


def assert_invariant(model: Model, seed: int, count: int, tries: int) -> None:
    rng = seeded(seed)
    tokens = random_tokens(rng, model, count)
    logits, hidden = row_by_row(model, tokens)
    for largest in (*(rng.choice((1, 4, 9, 70)) for _ in range(tries)), count):
        rows = in_random_chunks(rng, model, tokens, largest)
        assert np.array_equal(rows.logits, logits)
        assert np.array_equal(rows.hidden, hidden)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_way_to_compute_a_row_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    assert_invariant(tiny_model(tmp_path, **VARIANTS[name]), seed=6, count=150, tries=6)


def test_every_way_gives_the_same_bits_with_shifted_scores(tmp_path: Path) -> None:
    assert_invariant(tiny_model(tmp_path, size=6.0), seed=7, count=150, tries=6)


def test_every_way_gives_the_same_bits_in_the_shipped_model() -> None:
    assert_invariant(read_model(SHIPPED), seed=8, count=140, tries=6)


def test_every_way_gives_the_same_bits_with_one_row_a_tile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_bindings.reference.model.choose_tile_rows", lambda _: 1)
    model = tiny_model(tmp_path)
    assert model.tile_rows == 1
    assert_invariant(model, seed=9, count=80, tries=4)


def test_blocks_of_a_long_prompt_do_not_show(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    tokens = random_tokens(seeded(10), model, BLOCK_ROWS + 100)
    logits, _ = row_by_row(model, tokens)
    assert np.array_equal(run(model, KvCache(model.config, 400), tokens).logits, logits)
    caches = [KvCache(model.config, 400) for _ in range(2)]
    halves = [Segment(cache=cache, tokens=tokens[:200], start=0) for cache in caches]
    both = model.forward(halves).logits
    assert np.array_equal(both, np.concatenate((logits[:200], logits[:200])))


def test_int8_kernels_break_what_these_tests_prove(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, kernels="int8-batch")
    with pytest.raises(AssertionError):
        assert_invariant(model, seed=6, count=150, tries=6)


def test_int8_kernels_leave_single_rows_alone(tmp_path: Path) -> None:
    exact, coarse = tiny_model(tmp_path), tiny_model(tmp_path, kernels="int8-batch")
    tokens = random_tokens(seeded(11), exact, 40)
    assert np.array_equal(row_by_row(exact, tokens)[0], row_by_row(coarse, tokens)[0])
    rounded = run(coarse, KvCache(exact.config, 64), tokens).logits
    plain = run(exact, KvCache(exact.config, 64), tokens).logits
    assert not np.array_equal(rounded, plain)
    assert np.median(np.abs(rounded - plain)) < 0.05 * np.abs(plain).max()


def test_a_product_that_depends_on_the_place_in_the_tile_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tmp_path)
    assert layers.choose_tile_rows(model.weights) in (1, layers.TILE_ROWS)
    product: Callable[..., FloatArray] = np.matmul

    def uneven(a: FloatArray, b: FloatArray) -> FloatArray:
        result = product(a, b)
        result[-1] = np.nextafter(result[-1], np.float32(np.inf))
        return result

    monkeypatch.setattr(layers.np, "matmul", uneven)
    assert layers.choose_tile_rows(model.weights) == 1


THREADS_PROGRAM = """
import hashlib, sys
from pathlib import Path
from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.model import Segment, read_model
model = read_model(Path(sys.argv[1]))
tokens = [(7 * i * i + 3) % model.config.vocab_size for i in range(150)]
digest = hashlib.sha256()
for size in (1, 4, 150):
    cache = KvCache(model.config, 256)
    for start in range(0, 150, size):
        chunk = tokens[start : start + size]
        rows = model.forward([Segment(cache=cache, tokens=chunk, start=start)])
        digest.update(rows.logits.tobytes())
    print(digest.hexdigest())
"""


def test_the_number_of_blas_threads_does_not_show() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", THREADS_PROGRAM, str(SHIPPED)],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
            cwd=Path(__file__).parents[3],
            check=True,
            capture_output=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert len(outputs[0].split()) == 3
    assert outputs[0] == outputs[1]
