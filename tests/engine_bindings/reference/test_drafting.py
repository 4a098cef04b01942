"""The n-gram drafter, the MTP drafter's catching up, and the guard."""

from typing import Any

import pytest

from engine_bindings.reference.drafting import (
    ABSORB_CHUNK_TOKENS,
    PAUSE_FORWARDS,
    Guard,
    MtpDrafter,
    NgramDrafter,
    NoDrafter,
)
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.slot import Slot
from tests.engine_bindings.reference.engine_fakes import Bench, FakeModel


def make_slot(history: list[int]) -> Slot:
    cache: Any = None
    slot = Slot(index=0, cache=cache, context_tokens=100, hidden_size=1)
    slot.history = history
    return slot


@pytest.mark.parametrize(
    ("history", "token", "depth", "expected"),
    [
        ([1, 2, 3, 4, 1], 2, 2, [3, 4]),
        ([1, 2, 3, 4, 1], 2, 9, [3, 4, 1, 2]),
        ([1, 2, 3, 1, 2, 4, 1], 2, 1, [4]),
        ([1, 2, 3], 4, 2, []),
        ([5, 5], 5, 3, [5]),
        ([], 1, 3, []),
        ([1], 1, 3, []),
    ],
)
def test_ngrams_repeat_what_followed_the_newest_pair(
    history: list[int], token: int, depth: int, expected: list[int]
) -> None:
    assert NgramDrafter().propose(make_slot(history), token, depth) == expected


def test_no_drafter_drafts_nothing() -> None:
    assert NoDrafter().propose(make_slot([1, 2, 1]), 2, 3) == []


def test_ngram_drafts_leave_the_text_alone() -> None:
    bench = Bench(depth=4, model=FakeModel(vocab=3))
    bench.engine.drafter = NgramDrafter()
    turn = bench.start([0, 1, 0, 1, 2], 60)
    while not bench.engine.step():
        pass
    assert bench.recorder.tokens[1] == bench.model.continue_greedily([0, 1, 0, 1, 2], 60)
    assert 0 < turn.accepted < turn.drafted


def test_the_head_follows_the_prompt_during_prefill() -> None:
    bench = Bench(depth=2, context_tokens=2000)
    prompt = [i % 7 for i in range(2 * ABSORB_CHUNK_TOKENS + 10)]
    turn = bench.start(prompt, 8)
    cache: Any = turn.slot.cache
    assert len(cache.draft_rows) == turn.slot.draft_rows == len(prompt) - 1
    while not bench.engine.step():
        pass
    assert bench.model.drafted_from[0] == (len(prompt) - 1, len(prompt))
    assert len(cache.draft_rows) == turn.slot.draft_rows


def test_the_head_catches_up_in_chunks_with_what_it_did_not_follow() -> None:
    bench = Bench(depth=2, context_tokens=2000)
    prompt = [i % 7 for i in range(2 * ABSORB_CHUNK_TOKENS + 10)]
    bench.engine.end(bench.start(prompt, 8, speculate=False), "cancelled")
    assert bench.engine.slots[0].draft_rows == 0
    bench.answer(prompt, 8)
    assert bench.model.drafted_from[0][1] == len(prompt)


def test_a_resumed_context_starts_the_head_behind_it() -> None:
    model: Any = FakeModel()
    slot = make_slot([])
    slot.adopt_saved([1, 2, 3])
    assert MtpDrafter(model, Rules()).propose(slot, 4, 3) == []
    assert slot.draft_rows == 3


def test_the_guard_waits_for_its_window_and_then_pauses() -> None:
    guard = Guard(percent=70, window_tokens=24)
    guard.count(23, 0)
    assert not guard.starts_pause()
    guard.count(1, 0)
    assert guard.starts_pause()
    skipped = 0
    while guard.skips_forward():
        assert not guard.starts_pause()
        skipped += 1
    assert skipped == PAUSE_FORWARDS
    assert (guard.drafted, guard.accepted) == (0, 0)


@pytest.mark.parametrize(("accepted", "pauses"), [(16, True), (17, False)])
def test_the_guard_compares_exactly(accepted: int, pauses: bool) -> None:
    guard = Guard(percent=70, window_tokens=24)
    guard.count(24, accepted)
    assert guard.starts_pause() is pauses


def test_a_guard_of_zero_percent_never_pauses() -> None:
    guard = Guard(percent=0, window_tokens=4)
    guard.count(1000, 0)
    assert not guard.starts_pause()
