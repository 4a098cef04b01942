from pathlib import Path

import numpy as np
import pytest

from engine_bindings.errors import UsageError
from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.model import Model, Segment, read_model
from tests.engine_bindings.reference.naive_model import NaiveModel
from tests.engine_bindings.reference.tiny_checkpoint import (
    seeded,
    tiny_config,
    tiny_tensors,
    write_checkpoint,
)

DEPTH = 4
COUNT = 40


class Conversation:
    """A tiny model with a computed prompt, and the token that follows it."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.model: Model = read_model(write_checkpoint(folder, **changes))
        rng = seeded(1)
        self.tokens = [rng.randrange(53) for _ in range(COUNT + 1)]
        self.cache = KvCache(self.model.config, 64)
        segment = Segment(cache=self.cache, tokens=self.tokens[:-1], start=0)
        self.hidden = self.model.forward([segment]).hidden

    def draft(self, start: int, end: int = COUNT, depth: int = DEPTH) -> list[int]:
        after = self.tokens[start + 1 : end + 1]
        return self.model.draft(self.cache, after, self.hidden[start:end], start, depth)


@pytest.fixture
def talk(tmp_path: Path) -> Conversation:
    return Conversation(tmp_path)


@pytest.mark.parametrize("first", [0, 17, COUNT - 1])
@pytest.mark.parametrize("changes", [{}, {"norm_topk_prob": False, "num_experts_per_tok": 3}])
def test_drafts_equal_the_naive_twin(tmp_path: Path, first: int, changes: dict[str, object]) -> None:
    talk = Conversation(tmp_path, **changes)
    config = tiny_config(**changes)
    tokens, logits = NaiveModel(config, tiny_tensors(config)).draft(talk.tokens, first, DEPTH)
    after, hidden = talk.tokens[first + 1 :], talk.hidden[first:]
    draft = talk.model.draft_with_logits(talk.cache, after, hidden, first, DEPTH)
    assert list(draft.tokens) == tokens
    np.testing.assert_allclose(draft.logits, np.array(logits), rtol=0, atol=2e-4)
    assert talk.draft(first) == tokens


def test_absorbing_in_parts_gives_the_same_drafts(talk: Conversation) -> None:
    whole = talk.draft(0)
    talk.cache.truncate_draft(0)
    for start, end in ((0, 1), (1, 13), (13, 30)):
        talk.model.absorb(talk.cache, talk.tokens[start + 1 : end + 1], talk.hidden[start:end], start)
    assert (talk.cache.draft_start, talk.cache.draft_end) == (0, 30)
    assert talk.draft(30) == whole


def test_speculative_rows_are_replaced_by_verified_ones(talk: Conversation) -> None:
    talk.draft(0, 30, depth=8)
    assert talk.cache.draft_end == 30
    mended = talk.draft(30)
    talk.cache.truncate_draft(0)
    assert mended == talk.draft(0)


def test_a_gap_begins_a_new_window(talk: Conversation) -> None:
    talk.model.absorb(talk.cache, talk.tokens[1:11], talk.hidden[:10], 0)
    joined = talk.draft(20)
    assert talk.cache.draft_start == 20
    talk.cache.truncate_draft(0)
    assert joined == talk.draft(20)


def test_no_depth_absorbs_only(talk: Conversation) -> None:
    assert talk.draft(0, depth=0) == []
    assert talk.draft(0, depth=1) == talk.draft(0, depth=4)[:1]


def test_drafts_end_with_the_context(talk: Conversation) -> None:
    cache = KvCache(talk.model.config, COUNT + 2)
    assert len(talk.model.draft(cache, talk.tokens[1:], talk.hidden, 0, 8)) == 3


def test_drafting_leaves_the_main_layers_alone(talk: Conversation) -> None:
    before = talk.cache.keys[:-1].copy()
    talk.draft(0)
    assert np.array_equal(talk.cache.keys[:-1], before)
    assert talk.cache.length == COUNT


def test_a_checkpoint_without_a_head_cannot_draft(tmp_path: Path) -> None:
    model = read_model(write_checkpoint(tmp_path, num_nextn_predict_layers=0))
    assert not model.has_mtp
    with pytest.raises(UsageError, match="no MTP layer"):
        model.draft(KvCache(model.config, 8), [1], np.zeros((1, 20), np.float32), 0, 1)
