"""Guides in the decode loop on fakes, and constraints by the real library on the shipped tokenizer."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_bindings.reference.constraint import (
    FORBIDDEN,
    STUCK,
    UNGUIDED,
    Constraint,
    Draft,
    DraftSource,
    Guide,
    Opening,
)
from engine_bindings.reference.generate import Turn
from engine_bindings.reference.grammar import GrammarCompiler, SafeMatcher
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.sampling import Sampling, score_token
from tests.engine_bindings.reference.engine_fakes import GREEDY, VOCAB, Bench, FakeModel
from tests.engine_bindings.reference.engine_sessions import cached_checkpoint
from tests.engine_bindings.reference.grammar_fakes import (
    CLOSING,
    END,
    FakeMatcher,
    fake_constraint,
    may_follow,
)

PROMPT = [1, 2, 3, 4, 5]
DEPTHS = range(9)
SALTS = range(12)
STOPS = frozenset({END})
WARM = Sampling(temperature=1.0, top_p=0.9)
SCHEMA = b'{"type":"object","properties":{"kind":{"enum":["fox","stone"]},"size":{"type":"integer"},"tags":'
SCHEMA += (
    b'{"type":"array","items":{"type":"string"}}},"required":["kind","size"],"additionalProperties":false}'
)


def run(guide: Guide, *, depth: int, cap: int = 60, **details: Any) -> tuple[Bench, Turn]:
    bench = Bench(depth=depth, stops=STOPS, seed=5)
    turn = bench.start(PROMPT, cap, guide=guide, **details)
    while not bench.engine.step():
        pass
    return bench, turn


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_constrained_text_is_the_same_at_every_depth_and_obeys(depth: int, sampling: Sampling) -> None:
    for salt in SALTS:
        _, plain = run(fake_constraint(salt=salt), depth=0, sampling=sampling)
        bench, turn = run(fake_constraint(salt=salt), depth=depth, sampling=sampling)
        text = bench.recorder.tokens[1]
        assert text == plain.slot.history[len(PROMPT) :]
        assert may_follow(text, salt=salt)
        assert (turn.finish, turn.emitted) == (plain.finish, plain.emitted) == ("stop", len(text))
        assert turn.forwards == turn.emitted - turn.accepted
        assert (turn.forwards < turn.emitted) == (depth > 0)
        bench.assert_kv_is([*PROMPT, *text])


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_matcher_has_taken_what_was_emitted_after_every_step(depth: int) -> None:
    for salt in SALTS:
        matcher = FakeMatcher(salt=salt)
        bench = Bench(depth=depth, stops=STOPS)
        guide = Constraint(matcher, vocab_size=VOCAB, ends=STOPS)
        bench.start(PROMPT, 25, guide=guide)
        assert matcher.tokens == []
        while bench.engine.active:
            bench.engine.step()
            assert matcher.tokens == bench.recorder.tokens[1]


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
@pytest.mark.parametrize("cap", [1, 2, 5, 11])
def test_every_end_leaves_the_matcher_where_the_text_is(depth: int, cap: int) -> None:
    matcher = FakeMatcher()
    bench, turn = run(Constraint(matcher, vocab_size=VOCAB, ends=STOPS), depth=depth, cap=cap)
    assert matcher.tokens == bench.recorder.tokens[1]
    assert (turn.finish, turn.emitted) == ("length", cap)


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_drafts_against_the_grammar_never_take_a_row(depth: int) -> None:
    class Watched(FakeModel):
        def forward(self, segments: Any, *, logits_for: str = "all") -> Any:
            for segment in segments if logits_for == "all" else ():
                text = segment.cache.rows[len(PROMPT) : segment.start]
                assert may_follow([*text, *segment.tokens], salt=0)
                widths.append(len(segment.tokens))
            return super().forward(segments, logits_for=logits_for)

    widths: list[int] = []
    bench = Bench(depth=depth, stops=STOPS, model=Watched())
    turn = bench.start(PROMPT, 60, guide=fake_constraint())
    while not bench.engine.step():
        pass
    assert 1 < max(widths) <= 1 + depth
    assert turn.drafted > turn.forced_drafted > 0
    assert turn.drafted == sum(widths) - len(widths)


@pytest.mark.parametrize("depth", [0, 3])
def test_the_end_may_come_where_the_grammar_may_end_and_must_where_it_must(depth: int) -> None:
    lengths = set()
    for salt in range(40):
        _, turn = run(fake_constraint(salt=salt), depth=depth)
        lengths.add(turn.emitted)
        assert turn.finish == "stop"
        _, whole = run(fake_constraint(salt=salt, to_the_last=True), depth=depth, ignore_stops=True)
        assert (whole.finish, whole.emitted) == ("stop", 30)
    assert min(lengths) < max(lengths) == 30


def test_stops_are_text_when_they_are_ignored_and_nothing_constrains() -> None:
    text = FakeModel().continue_greedily(PROMPT, 60)
    assert END in text
    for depth in (0, 3):
        bench, turn = run(UNGUIDED, depth=depth, ignore_stops=True)
        assert (bench.recorder.tokens[1], turn.finish) == (text, "length")


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_grammar_begins_behind_its_opening_also_inside_an_accepted_block(depth: int) -> None:
    inside = 0
    for salt in range(40):
        prompt = [*PROMPT, salt % VOCAB, salt % 7]
        texts = []
        for used in (0, depth):
            bench = Bench(depth=used, stops=STOPS, model=FakeModel(miss_every=6))
            turn = bench.start(prompt, 120, guide=fake_constraint(salt=salt, opening=True))
            while not bench.engine.step():
                pass
            texts.append(bench.recorder.tokens[1])
        assert texts[0] == texts[1]
        free, body = texts[1][: texts[1].index(CLOSING)], texts[1][texts[1].index(CLOSING) + 1 :]
        assert END not in free
        assert may_follow(body, salt=salt)
        assert turn.finish == "stop"
        inside += any(CLOSING in block[:-1] for block in bench.recorder.blocks)
    assert (inside > 0) == (depth > 1)


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
def test_scores_are_those_of_the_raw_rows_at_every_depth(depth: int) -> None:
    bench, turn = run(fake_constraint(salt=3), depth=depth, alternatives=4)
    text, picks = bench.recorder.tokens[1], bench.recorder.picks
    assert len(picks) == len(text)
    for place, (token, pick) in enumerate(zip(text, picks, strict=True)):
        row = bench.model.logits([*PROMPT, *text[:place]])
        assert pick.score == score_token(row, token, 4)
    origins = [pick.origin for pick in picks]
    assert origins.count("p") == turn.forwards
    assert origins.count("g") == turn.forced_accepted
    assert origins.count("d") == turn.accepted - turn.forced_accepted


def test_nothing_is_scored_unless_it_is_asked_for() -> None:
    bench, _ = run(UNGUIDED, depth=3)
    assert bench.recorder.picks == []


@pytest.mark.parametrize("depth", [1, 3])
def test_margins_are_those_among_the_tokens_that_may_come(depth: int) -> None:
    margins = []
    for used in (0, depth):
        bench = Bench(depth=used, stops=STOPS, margins=True)
        bench.start(PROMPT, 60, guide=fake_constraint(salt=2))
        while not bench.engine.step():
            pass
        margins.append(bench.recorder.margins)
        chosen = [margin.top1_id for margin in margins[-1]]
        assert chosen == [*bench.recorder.tokens[1], END]
    assert margins[0] == margins[1]
    assert any(margin.top2_logit == FORBIDDEN for margin in margins[0])


def test_the_depth_of_a_request_is_never_more_than_the_engines() -> None:
    for asked, expected in ((0, 1), (2, 3), (8, 5), (None, 5)):
        bench = Bench(depth=4, model=FakeModel(miss_every=1000))
        bench.start(PROMPT, 40, depth=asked)
        while not bench.engine.step():
            pass
        assert max(len(block) for block in bench.recorder.blocks) == max(1, expected - 1)


def test_a_seed_of_its_own_makes_a_request_repeatable() -> None:
    texts = []
    for seed in (7, 7, 8):
        bench = Bench(depth=2, seed=seed)
        bench.start(PROMPT, 40, sampling=WARM, seed=99 if seed == 7 else None)
        while not bench.engine.step():
            pass
        texts.append(bench.recorder.tokens[1])
    assert texts[0] == texts[1] == Bench(seed=99).answer(PROMPT, 40, sampling=WARM) != texts[2]


@pytest.mark.parametrize("depth", [0, 3])
def test_a_source_of_drafts_never_changes_the_text(depth: int) -> None:
    expected = Bench(depth=0, stops=STOPS).answer(PROMPT, 60)
    accepted = 0
    for salt in range(60):
        source = DraftSource(FakeMatcher(salt=salt), span_tokens=6)
        bench, turn = run(source, depth=depth, speculate=False)
        assert bench.recorder.tokens[1] == expected
        assert turn.forwards == turn.emitted - turn.accepted
        assert turn.drafted == turn.forced_drafted
        accepted += turn.accepted
    assert accepted > 0


def test_a_source_of_drafts_waits_for_its_text_and_starts_over_when_it_is_left() -> None:
    matcher = FakeMatcher()
    start = matcher.allowed()
    other = next(token for token in range(VOCAB) if token not in start)
    source = DraftSource(matcher, span_tokens=6)
    source.take([other, other])
    assert source.force(6) == Draft()
    source.take([start[0]])
    assert matcher.tokens == [start[0]]
    wrong = next(token for token in range(VOCAB) if token not in matcher.allowed() and token not in start)
    source.take([wrong])
    assert matcher.tokens == []
    assert source.force(6) == Draft()
    source.take([start[0], start[0]])
    assert matcher.tokens[0] == start[0]


class OneMaskForAllRows(Rules):
    def grammar_drafts(self, drafts: Any) -> Any:
        return ()


class GrammarSkipsDrafts(Rules):
    def grammar_takes(self, emitted: Any, rejected: Any) -> Any:
        return emitted[:1]


@pytest.mark.parametrize("rules", [OneMaskForAllRows(), GrammarSkipsDrafts()])
def test_a_wrong_rule_breaks_the_grammar(rules: Rules) -> None:
    broken = 0
    for salt in SALTS:
        bench = Bench(depth=3, stops=STOPS, rules=rules)
        bench.start(PROMPT, 60, guide=fake_constraint(salt=salt))
        while not bench.engine.step():
            pass
        text = bench.recorder.tokens[1]
        plain = run(fake_constraint(salt=salt), depth=0)[0].recorder.tokens[1]
        broken += text != plain
    assert broken > 0


# The real library


@lru_cache(maxsize=1)
def compiler() -> GrammarCompiler:
    checkpoint = cached_checkpoint("invariant")
    return GrammarCompiler(checkpoint.model_dir, vocab_size=checkpoint.config.vocab_size, ends=[623])


def real_constraint(*, opening: bool = False) -> Constraint:
    tokenizer = cached_checkpoint("invariant").tokenizer
    closing = tokenizer.id_of("</think>")
    assert closing is not None
    return Constraint(
        compiler().compile(SCHEMA).start(),
        vocab_size=cached_checkpoint("invariant").config.vocab_size,
        ends=frozenset({623}),
        opening=Opening(closing=closing, barred=tokenizer.special_ids) if opening else None,
    )


def describe(guide: Constraint) -> tuple[bytes, tuple[int, ...]]:
    """What a guide would allow and force next."""
    row = np.zeros((1, cached_checkpoint("invariant").config.vocab_size), np.float32)
    return (guide.limit(row, ()) == 0).tobytes(), guide.check((), 8).tokens


@settings(max_examples=60, deadline=None)
@given(data=st.data(), opening=st.booleans(), depth=st.integers(1, 6))
def test_trying_and_undoing_leaves_a_fresh_matchers_state(
    data: st.DataObject, opening: bool, depth: int
) -> None:
    tokenizer = cached_checkpoint("invariant").tokenizer
    guesses = tokenizer.encode(b'so</think>{"kind": "fox", "size": 12, "tags": ["a", "b"]}')
    text = guesses if opening else guesses[guesses.index(tokenizer.id_of("</think>") or 0) + 1 :]
    guide, emitted, place = real_constraint(opening=opening), [], 0
    while place < len(text):
        ahead = [*text[place : place + data.draw(st.integers(0, depth))], *data.draw(IDS)]
        draft = guide.check(ahead, depth)
        assert len(draft.tokens) <= depth
        guide.limit(np.zeros((1 + len(draft.tokens), 640), np.float32), draft.tokens)
        step = data.draw(st.integers(1, 3))
        guide.take(text[place : place + step])
        emitted += text[place : place + step]
        place += step
        fresh = real_constraint(opening=opening)
        fresh.take(emitted)
        assert guide.failure == fresh.failure == ""
        assert describe(guide) == describe(fresh)


IDS = st.lists(st.integers(0, 639), max_size=3)


def test_a_finished_document_can_only_end() -> None:
    tokenizer = cached_checkpoint("invariant").tokenizer
    guide = real_constraint()
    guide.take(tokenizer.encode(b'{"kind": "stone", "size": 4}'))
    row = guide.limit(np.ones((1, 640), np.float32), ())[0]
    assert np.flatnonzero(row == 1).tolist() == [623]
    assert guide.check([5, 623], 4) == Draft()


def test_an_emitted_token_against_the_grammar_is_named() -> None:
    guide = real_constraint()
    guide.take([5])
    assert guide.failure == "token 5 was emitted against the grammar"


def test_a_draft_that_the_grammar_refuses_may_not_come_in_its_row_and_nothing_is_raised() -> None:
    guide = real_constraint()
    rows = guide.limit(np.ones((2, 640), np.float32), [5])
    assert rows[0][5] == FORBIDDEN
    assert describe(guide) == describe(real_constraint())


class Refuses(FakeMatcher):
    """Forces one token and then refuses it, as a library does whose tokenizer disagrees with it."""

    def allowed(self) -> list[int]:
        return [3]

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return 0

    def compute_ff_tokens(self) -> list[int]:
        return [3, 3]


@pytest.mark.parametrize("depth", [0, 2, 3])
def test_a_forced_token_that_is_refused_ends_the_turn_with_a_reason(depth: int) -> None:
    bench, turn = run(Constraint(Refuses(), vocab_size=VOCAB, ends=STOPS), depth=depth)
    assert turn.finish == "failed"
    assert turn.guide.failure == "token 3 was emitted against the grammar"
    bench.assert_kv_is([*PROMPT, *bench.recorder.tokens[1]])


@pytest.mark.parametrize("depth", [0, 3])
def test_a_grammar_that_is_stuck_ends_the_turn_as_failed(depth: int) -> None:
    class Stuck(FakeMatcher):
        def is_accepting(self) -> bool:
            return False

    bench, turn = run(Constraint(Stuck(length=4), vocab_size=VOCAB, ends=STOPS), depth=depth)
    assert (turn.finish, turn.guide.failure) == ("failed", STUCK)
    bench.assert_kv_is([*PROMPT, *bench.recorder.tokens[1]])


def test_a_broken_matcher_ends_the_turn_and_is_named() -> None:
    class Breaks(FakeMatcher):
        def compute_bitmask(self) -> bytes:
            if len(self.tokens) == 4:
                raise ValueError("too complex\nmore of it")
            return super().compute_bitmask()

    guide = Constraint(SafeMatcher(Breaks()), vocab_size=VOCAB, ends=STOPS)
    bench, turn = run(guide, depth=0)
    assert (turn.finish, turn.emitted, guide.failure) == ("failed", 4, "too complex")
    bench.assert_kv_is([*PROMPT, *bench.recorder.tokens[1]])
