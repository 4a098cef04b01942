"""Every defect of the state shows its symptom, and the healthy engine does not."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.engine_bindings.reference.defects.arms import (
    PROMPT,
    QUESTIONS,
    Arm,
    ask_all,
    cold_text,
    drafts_worse,
    render,
)
from tests.engine_bindings.reference.engine_fakes import Bench, FakeModel

RIGHT = FakeModel().continue_greedily(PROMPT, 60)
FRESH_STOP = next(i for i in range(4, 60) if RIGHT[i] not in RIGHT[:i])


def text_differs(arm: Arm) -> bool:
    return arm.bench().answer(PROMPT, 60) != RIGHT


def text_differs_with_drafts_only(arm: Arm) -> bool:
    assert arm.bench(depth=0).answer(PROMPT, 60) == RIGHT
    return text_differs(arm)


def rounded_rows_change_a_later_text(arm: Arm) -> bool:
    return ask_all(arm.defect, pattern="reject")[0] != ask_all(None, depth=0)[0]


def boundary_is_said_twice(arm: Arm) -> bool:
    assert arm.bench(depth=0).answer(PROMPT, 40) == RIGHT[:40]
    said = arm.bench().answer(PROMPT, 40)
    assert said[:17] == RIGHT[:17]
    return said[16:20] == [RIGHT[16], *RIGHT[16:19]]


def second_turn_prefills_one_more(arm: Arm) -> bool:
    bench = arm.bench(depth=0)
    said = bench.answer(PROMPT, 10)
    turn = bench.start([*PROMPT, *said, 7, 8], 4)
    assert said == RIGHT[:10]
    return turn.prefill_tokens == 3


def stop_is_found_in_the_history(arm: Arm) -> bool:
    found = False
    for stop in sorted(set(RIGHT)):
        bench = arm.bench(stops=frozenset({stop}), miss_every=1000)
        said = bench.answer(PROMPT, 60)
        assert said == RIGHT[: RIGHT.index(stop)]
        turn = bench.start([*PROMPT, *said, stop, 0], 4)
        found |= turn.cached_tokens > len(PROMPT) + len(said)
    return found


def other_slots_draft_worse(arm: Arm) -> bool:
    assert ask_all(arm.defect, slot=0) == ask_all(None)
    return drafts_worse(arm, factor=0.5, slot=1)


def head_starts_from_rows_of_the_text_that_was_given_up(arm: Arm) -> bool:
    bench = arm.bench()
    bench.answer(PROMPT, 30)
    prompt = [*PROMPT[:3], *([9, 8] * 30)]
    assert bench.answer(prompt, 10) == bench.model.continue_greedily(prompt, 10)
    cold = Arm(None).bench()
    cold.answer(prompt, 10)
    rows, cold_rows = (b.engine.slots[0].cache.draft_rows for b in (bench, cold))
    return [token for token, _ in rows] != [token for token, _ in cold_rows]


def second_request_begins_with_the_first_ones_word(arm: Arm) -> bool:
    prompts = [PROMPT, [9, 9, 2], [6, 1]]
    quiet = arm.bench(depth=0)
    for prompt in prompts:
        assert quiet.answer(prompt, 8) == quiet.model.continue_greedily(prompt, 8)
    bench = arm.bench()
    said = [bench.answer(prompt, 8)[0] for prompt in prompts]
    right = [bench.model.continue_greedily(prompt, 1)[0] for prompt in prompts]
    assert len(set(right)) > 1
    assert said[0] == right[0]
    return said == [right[0], *right[:-1]]


def slots_say_each_others_words(arm: Arm) -> bool:
    assert arm.bench().answer(PROMPT, 20) == RIGHT[:20]
    bench = arm.bench(depth=0, slots=2)
    prompts = [PROMPT, [9, 9, 2]]
    for slot, prompt in enumerate(prompts):
        bench.start(prompt, 12, request_id=slot, slot=slot)
    while bench.engine.active:
        bench.engine.step()
    return any(
        bench.recorder.tokens[slot] != bench.model.continue_greedily(prompt, 12)
        for slot, prompt in enumerate(prompts)
    )


def a_later_request_with_the_prefix_is_wrong(arm: Arm) -> bool:
    wrong = False
    for question in QUESTIONS:
        real = arm.real()
        prompt = real.encode(render(question))
        first, _ = real.answer(prompt, 64)
        assert first == cold_text(prompt, 64)
        prompt += [*first, *real.encode(b"<|user|>And more?<|assistant|><think></think>")]
        wrong |= real.answer(prompt, 32)[0] != cold_text(prompt, 32)
    return wrong


def a_branch_takes_a_row_of_the_other(arm: Arm) -> bool:
    bench = arm.bench()
    bench.answer(PROMPT, 20)
    prompt = [*PROMPT[:3], 9, 9, 9]
    turn = bench.start(prompt, 20)
    while not bench.engine.step():
        pass
    differs = bench.recorder.tokens[1] != bench.model.continue_greedily(prompt, 20)
    assert differs == (turn.prefill_tokens == 2)
    return differs


def a_warm_answer_is_not_the_cold_one(arm: Arm) -> bool:
    differs = False
    for question in QUESTIONS:
        real = arm.real()
        prompt = real.encode(render(question))
        cold, _ = real.answer(prompt, 32)
        assert cold == cold_text(prompt, 32)
        warm, turn = real.answer(prompt, 32)
        assert turn.cached_tokens == len(prompt)
        differs |= warm != cold
    return differs


def a_long_prefix_hides_what_differs_behind_it(arm: Arm) -> bool:
    real = arm.real()
    differs = []
    for times in (1, 20):
        opening = "The quiet owl of Leo is near the bridge. " * times
        prompts = [real.encode(render(opening + end)) for end in ("red", "blue")]
        said = [real.answer(prompt, 4)[1].cached_tokens for prompt in prompts]
        common = next(i for i, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b)
        differs.append(said[1] != common)
    assert not differs[0]
    return differs[1]


SYMPTOMS: dict[str, Callable[[Arm], bool]] = {
    "keep-rejected-kv": text_differs_with_drafts_only,
    "restore-rounded-kv": rounded_rows_change_a_later_text,
    "wrong-logits-row": text_differs_with_drafts_only,
    "replay-base-minus-one": drafts_worse,
    "duplicate-boundary-token": boundary_is_said_twice,
    "cap-token-not-committed": second_turn_prefills_one_more,
    "post-stop-token-kept": stop_is_found_in_the_history,
    "stale-hidden-state": drafts_worse,
    "draft-over-trim": drafts_worse,
    "draft-row-missing": drafts_worse,
    "slot-zero-hard-coded": other_slots_draft_worse,
    "draft-kv-not-trimmed-on-reuse": head_starts_from_rows_of_the_text_that_was_given_up,
    "first-draft-unverified": text_differs_with_drafts_only,
    "cross-request-state": second_request_begins_with_the_first_ones_word,
    "row-permutation": slots_say_each_others_words,
    "poisoned-prefix": a_later_request_with_the_prefix_is_wrong,
    "adopt-one-row-too-many": a_branch_takes_a_row_of_the_other,
    "long-prefix-not-cut": a_long_prefix_hides_what_differs_behind_it,
    "prefix-dropped-on-hit": a_warm_answer_is_not_the_cold_one,
}


@pytest.mark.parametrize("name", SYMPTOMS)
def test_the_defect_shows_and_the_healthy_engine_does_not(name: str) -> None:
    assert SYMPTOMS[name](Arm(name))
    assert not SYMPTOMS[name](Arm(None))


def test_a_wrong_row_shows_behind_a_partial_accept_only() -> None:
    bench: Bench = Arm("wrong-logits-row").bench(miss_every=1000)
    assert bench.answer(PROMPT, 60) == RIGHT


def test_rounding_begins_with_the_first_rejection() -> None:
    keys = []
    for name, pattern in [
        (None, "reject"),
        ("restore-rounded-kv", "reject"),
        ("restore-rounded-kv", "accept"),
    ]:
        real = Arm(name).real(REF_FORCE_ACCEPT=pattern)
        prompt = real.encode(render(QUESTIONS[0]))
        real.answer(prompt, 12)
        keys.append(real.engine.slots[0].cache.keys[:-1, :, : len(prompt)].copy())
    right, rounded, untouched = keys
    assert (right == untouched).all()
    assert (right != rounded).any()
    assert np.allclose(right, rounded, rtol=2**-3, atol=0)
