"""The shipped checkpoint against other implementations (see tools/train_reference/record_oracle.py)."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.model import Model, Segment, read_model

SHIPPED = Path(__file__).parents[3] / "engine_bindings" / "reference" / "checkpoint"
TOLERANCE = 1e-3

FloatArray = NDArray[np.float32]


class Oracle:
    """The recorded arrays, and our own rows of the same texts."""

    def __init__(self) -> None:
        with np.load(Path(__file__).parent / "data" / "oracle.npz") as file:
            self.recorded = {name: file[name] for name in file.files}
        self.model: Model = read_model(SHIPPED)
        self.starts = np.cumsum([0, *self.recorded["lengths"]])
        self.tokens = [int(token) for token in self.recorded["tokens"]]
        rows = [
            self.compute(start, end) for start, end in zip(self.starts[:-1], self.starts[1:], strict=True)
        ]
        self.logits = np.concatenate([logits for logits, _ in rows])
        self.hidden = np.concatenate([hidden for _, hidden in rows])

    def compute(self, start: int, end: int) -> tuple[FloatArray, FloatArray]:
        cache = KvCache(self.model.config, end - start)
        rows = self.model.forward([Segment(cache=cache, tokens=self.tokens[start:end], start=0)])
        return rows.logits, rows.hidden


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


def test_the_best_logits_of_every_position_agree(oracle: Oracle) -> None:
    ids = oracle.recorded["top_ids"].astype(int)
    assert len(ids) == len(oracle.tokens) > 1000
    ours = np.take_along_axis(oracle.logits, ids, axis=1)
    np.testing.assert_allclose(ours, oracle.recorded["top_logits"], rtol=0, atol=TOLERANCE)


def test_the_best_token_of_every_position_agrees(oracle: Oracle) -> None:
    assert np.array_equal(oracle.logits.argmax(axis=1), oracle.recorded["top_ids"][:, 0])


def test_whole_rows_agree(oracle: Oracle) -> None:
    ours = oracle.logits[oracle.recorded["full_at"]]
    np.testing.assert_allclose(ours, oracle.recorded["full_logits"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("name", "filled"), [("mtp", True), ("mtp_empty", False)])
def test_draft_chains_agree(oracle: Oracle, name: str, filled: bool) -> None:
    recorded = oracle.recorded
    for number, at in enumerate(recorded["mtp_at"]):
        start = int(oracle.starts[np.searchsorted(oracle.starts, at, "right") - 1])
        first = start if filled else int(at)
        cache = KvCache(oracle.model.config, 512)
        after, hidden = oracle.tokens[first + 1 : at + 2], oracle.hidden[first : at + 1]
        draft = oracle.model.draft_with_logits(cache, after, hidden, first - start, 4)
        assert list(draft.tokens) == list(recorded[f"{name}_tokens"][number])
        ours = np.take_along_axis(draft.logits, recorded[f"{name}_top_ids"][number].astype(int), axis=1)
        np.testing.assert_allclose(ours, recorded[f"{name}_top_logits"][number], rtol=0, atol=TOLERANCE)
