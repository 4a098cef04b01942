"""The decode loop on a fake model: one text at every depth, exact KV after every end, counts that add up."""

from collections.abc import Sequence

import pytest

from engine_bindings.reference.generate import Turn
from engine_bindings.reference.rules import PREFILL_CHUNK_TOKENS, Rules
from engine_bindings.reference.sampling import Sampling
from tests.engine_bindings.reference.engine_fakes import GREEDY, VOCAB, Bench, FakeModel

PROMPT = [1, 2, 3, 4, 5]
DEPTHS = range(9)
WARM = Sampling(temperature=1.0, top_p=0.9)


def assert_counts(turn: Turn) -> None:
    assert turn.forwards == turn.emitted - turn.accepted
    assert turn.accepted <= turn.drafted


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_depth_emits_the_greedy_text_at_every_cap(depth: int) -> None:
    for cap in range(1, 2 * depth + 4):
        bench = Bench(depth=depth)
        turn = bench.start(PROMPT, cap)
        while not bench.engine.step():
            pass
        text = bench.model.continue_greedily(PROMPT, cap)
        assert bench.recorder.tokens[1] == text
        assert (turn.finish, turn.emitted) == ("length", cap)
        bench.assert_kv_is([*PROMPT, *text])
        assert_counts(turn)


@pytest.mark.parametrize("depth", DEPTHS)
def test_drafts_are_accepted_and_rejected(depth: int) -> None:
    bench = Bench(depth=depth)
    turn = bench.start(PROMPT, 60)
    while not bench.engine.step():
        pass
    if depth:
        assert 0 < turn.accepted < turn.drafted
        assert bench.model.forwards - 1 == turn.forwards < 60
    else:
        assert (turn.drafted, turn.forwards) == (0, 60)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_stop_ends_the_turn_wherever_it_falls_in_a_block(depth: int) -> None:
    text = FakeModel().continue_greedily(PROMPT, 24)
    for stop in sorted(set(text)):
        expected = text[: text.index(stop)]
        bench = Bench(depth=depth, stops=frozenset({stop}))
        turn = bench.start(PROMPT, 24)
        while not bench.engine.step():
            pass
        assert bench.recorder.tokens[1] == expected
        assert turn.finish == "stop"
        bench.assert_kv_is([*PROMPT, *expected])
        assert_counts(turn)


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
def test_a_stop_just_behind_the_cap_is_not_looked_at(depth: int) -> None:
    text = FakeModel().continue_greedily(PROMPT, 24)
    at = next(i for i in range(2, 24) if text[i] not in text[:i])
    bench = Bench(depth=depth, stops=frozenset({text[at]}))
    turn = bench.start(PROMPT, at)
    while not bench.engine.step():
        pass
    assert turn.finish == "length"
    assert Bench(depth=depth, stops=frozenset({text[at]})).answer(PROMPT, at + 1) == text[:at]


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
@pytest.mark.parametrize("context_tokens", range(8, 30, 3))
def test_the_context_end_is_a_length_end_and_drafts_are_cut_to_it(depth: int, context_tokens: int) -> None:
    bench = Bench(depth=depth, context_tokens=context_tokens)
    turn = bench.start(PROMPT, 1000)
    while not bench.engine.step():
        pass
    room = context_tokens - len(PROMPT) - 1
    assert bench.recorder.tokens[1] == bench.model.continue_greedily(PROMPT, room)
    assert turn.finish == "length"
    assert_counts(turn)


@pytest.mark.parametrize("depth", [0, 3])
def test_a_context_without_room_ends_at_once(depth: int) -> None:
    bench = Bench(depth=depth, context_tokens=6)
    turn = bench.start(PROMPT, 10)
    assert bench.engine.step() == [turn]
    assert (turn.finish, turn.emitted, turn.forwards) == ("length", 0, 0)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_end_from_outside_keeps_what_was_emitted(depth: int, steps: int) -> None:
    bench = Bench(depth=depth)
    turn = bench.start(PROMPT, 100)
    for _ in range(steps):
        bench.engine.step()
    bench.engine.end(turn, "stopped")
    text = bench.recorder.tokens[1]
    assert text == bench.model.continue_greedily(PROMPT, len(text))
    assert len(text) >= steps
    bench.assert_kv_is([*PROMPT, *text])
    assert not bench.engine.active
    assert_counts(turn)


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
def test_the_next_turn_finds_prompt_and_answer_in_the_kv(depth: int) -> None:
    bench = Bench(depth=depth)
    prompt = list(PROMPT)
    for cap in (1, 4, 9):
        prompt = [*prompt, *bench.answer(prompt, cap), 7, 8]
        turn = bench.start(prompt, 1)
        assert turn.cached_tokens == len(prompt) - 2
        assert turn.prefill_tokens == 2
        bench.engine.end(turn, "cancelled")


@pytest.mark.parametrize("depth", [0, 3])
def test_reuse_of_any_prefix_gives_the_cold_text(depth: int) -> None:
    bench = Bench(depth=depth)
    text = bench.answer(PROMPT, 20)
    for kept in range(len(PROMPT) + len(text) + 1):
        prompt = [*(PROMPT + text)[:kept], 9, 9, 1]
        answer = bench.answer(prompt, 12)
        assert answer == Bench(depth=depth).answer(prompt, 12)
        assert bench.answer(PROMPT, 20) == text


@pytest.mark.parametrize("depth", [0, 3])
def test_an_identical_prompt_computes_its_last_row_again(depth: int) -> None:
    bench = Bench(depth=depth)
    text = bench.answer(PROMPT, 5)
    turn = bench.start(PROMPT, 5)
    assert (turn.cached_tokens, turn.prefill_tokens) == (5, 0)
    while not bench.engine.step():
        pass
    assert bench.recorder.tokens[1] == text


def test_drafts_do_not_depend_on_how_the_prompt_was_cached() -> None:
    cold, warm = Bench(depth=3), Bench(depth=3)
    prompt = [*PROMPT, *warm.answer(PROMPT, 7), 3, 3]
    turns = [bench.start(prompt, 40) for bench in (cold, warm)]
    for bench in (cold, warm):
        while not bench.engine.step():
            pass
    assert (turns[0].drafted, turns[0].accepted) == (turns[1].drafted, turns[1].accepted)
    assert turns[0].cached_tokens != turns[1].cached_tokens


def test_a_long_prompt_is_computed_in_chunks_without_overlap() -> None:
    bench = Bench(depth=2, context_tokens=2000)
    prompt = [i % VOCAB for i in range(2 * PREFILL_CHUNK_TOKENS + 3)]
    text = bench.answer(prompt, 6)
    assert text == bench.model.continue_greedily(prompt, 6)
    bench.assert_kv_is([*prompt, *text])


def test_slots_that_run_together_give_what_each_gives_alone() -> None:
    prompts = [[i, i + 1, i + 2] for i in range(5)]
    bench = Bench(slots=5)
    for i, prompt in enumerate(prompts):
        bench.start(prompt, 3 + 4 * i, request_id=i, slot=i)
        bench.engine.step()
    ended: list[Turn] = []
    while bench.engine.active:
        ended += bench.engine.step()
    for i, prompt in enumerate(prompts):
        text = bench.recorder.tokens[i]
        assert text == bench.model.continue_greedily(prompt, 3 + 4 * i)
        bench.assert_kv_is([*prompt, *text], slot=i)
    assert [turn.request.request_id for turn in ended][-1] == 4
    for turn in ended:
        assert_counts(turn)


def test_a_step_runs_one_forward_for_all_slots() -> None:
    bench = Bench(slots=3)
    for i in range(3):
        bench.start(PROMPT, 10, request_id=i, slot=i)
    before = bench.model.forwards
    bench.engine.step()
    assert bench.model.forwards == before + 1


def test_a_turn_that_must_not_speculate_drafts_nothing() -> None:
    bench = Bench(depth=3)
    turn = bench.start(PROMPT, 20, speculate=False)
    while not bench.engine.step():
        pass
    assert (turn.drafted, turn.forwards) == (0, 20)


def test_the_guard_pauses_drafts_and_the_text_stays() -> None:
    bench = Bench(depth=3, guard_percent=99, context_tokens=1000, model=FakeModel(miss_every=2))
    turn = bench.start(PROMPT, 400)
    while not bench.engine.step():
        pass
    assert bench.recorder.pauses >= 1
    assert turn.drafted < 100
    assert bench.recorder.tokens[1] == bench.model.continue_greedily(PROMPT, 400)
    assert_counts(turn)


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_margins_are_told_for_every_chosen_token_alike_at_every_depth(depth: int) -> None:
    text = FakeModel().continue_greedily(PROMPT, 24)
    stop = next(token for i, token in enumerate(text) if i > 10 and token not in text[:i])
    plain, deep = (Bench(depth=d, margins=True, stops=frozenset({stop})) for d in (0, depth))
    emitted = plain.answer(PROMPT, 24)
    assert deep.answer(PROMPT, 24) == emitted
    assert deep.recorder.margins == plain.recorder.margins
    assert [m.top1_id for m in plain.recorder.margins] == [*emitted, stop]
    assert all(m.top1_logit >= m.top2_logit for m in plain.recorder.margins)


@pytest.mark.parametrize("depth", DEPTHS)
def test_sampled_text_is_the_same_at_every_depth(depth: int) -> None:
    for seed in range(5):
        expected = Bench(seed=seed).answer(PROMPT, 30, sampling=WARM)
        assert Bench(depth=depth, seed=seed).answer(PROMPT, 30, sampling=WARM) == expected


def test_sampled_text_does_not_depend_on_earlier_requests_or_neighbours() -> None:
    expected = Bench(seed=3).answer(PROMPT, 20, sampling=WARM)
    bench = Bench(seed=3, slots=2)
    bench.start([9, 8, 7], 40, request_id=5, slot=1, sampling=WARM)
    bench.engine.step()
    bench.start(PROMPT, 20, request_id=6, slot=0, sampling=WARM)
    while bench.engine.active:
        bench.engine.step()
    assert bench.recorder.tokens[6] == expected
    assert Bench(seed=4).answer(PROMPT, 20, sampling=WARM) != expected


def test_without_a_seed_two_turns_differ() -> None:
    bench = Bench()
    assert bench.answer(PROMPT, 40, sampling=WARM) != bench.answer(PROMPT, 40, sampling=WARM)


def test_the_picked_token_is_told_before_its_forward_and_accepted_ones_together() -> None:
    bench = Bench(depth=4, model=FakeModel(miss_every=1000))
    text = bench.answer(PROMPT, 10)
    assert [len(block) for block in bench.recorder.blocks] == [1, 4, 1, 4]
    assert [token for block in bench.recorder.blocks for token in block] == text


class TakesWrongRow(Rules):
    def next_row(self, accepted: int) -> int:
        return max(0, accepted - 1)


class AcceptsFirst(Rules):
    def count_accepted(self, drafts: Sequence[int], chosen: Sequence[int]) -> int:
        return max(super().count_accepted(drafts, chosen), min(1, len(drafts)))


class AdoptsOneMore(Rules):
    def match_prefix(self, history: Sequence[int], prompt: Sequence[int]) -> int:
        return min(super().match_prefix(history, prompt) + 1, len(history), len(prompt) - 1)


@pytest.mark.parametrize("rules", [TakesWrongRow(), AcceptsFirst()])
def test_replacing_one_rule_changes_the_text(rules: Rules) -> None:
    bench = Bench(depth=3, rules=rules)
    assert bench.answer(PROMPT, 40) != bench.model.continue_greedily(PROMPT, 40)


def test_replacing_the_prefix_rule_shows_in_the_second_turn() -> None:
    bench = Bench(rules=AdoptsOneMore())
    bench.answer(PROMPT, 10)
    prompt = [*PROMPT[:3], 9, 9, 9]
    assert bench.answer(prompt, 10) != bench.model.continue_greedily(prompt, 10)


def test_greedy_is_the_zero_of_temperature() -> None:
    assert GREEDY.greedy
    assert not WARM.greedy
