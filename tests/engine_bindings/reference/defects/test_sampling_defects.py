"""Every defect of sampling, counters and grammars shows its symptom, and the healthy engine does not."""

from collections.abc import Callable

import pytest

from engine_bindings.reference.sampling import Sampling
from tests.engine_bindings.reference.defects.arms import PROMPT, Arm, submitting
from tests.engine_bindings.reference.engine_fakes import FakeModel
from tests.engine_bindings.reference.grammar_fakes import fake_constraint
from tests.engine_bindings.reference.test_sampling import chi_square

RIGHT = FakeModel().continue_greedily(PROMPT, 60)
WARM = Sampling(temperature=0.8, top_p=0.9)
SALTS = range(12)


def the_distribution_is_another(arm: Arm) -> bool:
    assert arm.bench().answer(PROMPT, 60) == RIGHT
    return chi_square(arm.rules(), 3) > 18.5  # p = 0.001 with 4 degrees of freedom


def drafts_let_more_tokens_through(arm: Arm) -> bool:
    narrow = Sampling(temperature=2.0, top_p=0.001)
    assert arm.bench(depth=0, seed=5).answer(PROMPT, 60, sampling=narrow) == RIGHT
    return arm.bench(seed=5).answer(PROMPT, 60, sampling=narrow) != RIGHT


def a_seed_gives_two_texts(arm: Arm) -> bool:
    first, second = (arm.bench(seed=5).answer(PROMPT, 30, sampling=WARM) for _ in range(2))
    return first != second


def a_prompt_gets_another_text_in_the_same_process(arm: Arm) -> bool:
    assert not a_seed_gives_two_texts(arm)
    bench = arm.bench(seed=5)
    return bench.answer(PROMPT, 30, sampling=WARM) != bench.answer(PROMPT, 30, sampling=WARM)


def accepted_drafts_are_certain(arm: Arm) -> bool:
    bench = arm.bench()
    bench.start(PROMPT, 40, alternatives=0)
    while not bench.engine.step():
        pass
    picks = bench.recorder.picks
    assert all(pick.score.logprob < 0 for pick in picks if pick.origin == "p")
    drafts = [pick.score.logprob for pick in picks if pick.origin == "d"]
    assert len(set(drafts)) == 1 or min(drafts) < max(drafts) < 0
    return set(drafts) == {0.0}


def reuse_is_reported_as_none(arm: Arm) -> bool:
    bench = arm.bench()
    prompt = [*PROMPT, *bench.answer(PROMPT, 10), 7, 8]
    turn = bench.start(prompt, 4)
    assert turn.prefill_tokens == 2
    return turn.cached_tokens + turn.prefill_tokens != len(prompt)


def count(arm: Arm) -> tuple[int, int, int, int]:
    bench = arm.bench()
    turn = bench.start(PROMPT, 60)
    while not bench.engine.step():
        pass
    assert bench.recorder.tokens[1] == RIGHT
    return turn.emitted, turn.drafted, turn.accepted, turn.forwards


def fewer_are_drafted_than_accepted(arm: Arm) -> bool:
    emitted, drafted, accepted, forwards = count(arm)
    assert accepted == emitted - forwards
    return drafted < accepted


def more_are_accepted_than_emitted(arm: Arm) -> bool:
    emitted, drafted, accepted, forwards = count(arm)
    assert accepted <= drafted
    return accepted > emitted - forwards


def break_grammars(arm: Arm, *, opening: bool, depth: int) -> int:
    """How many of some constrained turns say what their grammar does not allow."""
    broken = 0
    for salt in SALTS:
        bench = arm.bench(depth=depth, miss_every=4)
        guide = fake_constraint(salt=salt, opening=opening)
        bench.start([*PROMPT, salt], 60, guide=guide)
        while not bench.engine.step():
            pass
        broken += bool(guide.failure)
    return broken


def the_grammar_starts_late(arm: Arm) -> bool:
    assert break_grammars(arm, opening=True, depth=0) == 0
    return break_grammars(arm, opening=True, depth=3) > 0


def rejected_drafts_move_the_grammar(arm: Arm) -> bool:
    assert break_grammars(arm, opening=False, depth=0) == 0
    return break_grammars(arm, opening=False, depth=3) > 0


def serve_mode_drops_the_grammar(arm: Arm) -> bool:
    grammar = b'root ::= "zq" [0-9] "qz"'
    script = submitting(max_tokens=12, before=b"OPTIONS 1 constrain=1\n", grammar=grammar)
    return not arm.serve(script).text(1).startswith(b"zq")


SYMPTOMS: dict[str, Callable[[Arm], bool]] = {
    "wrong-q": the_distribution_is_another,
    "top-p-ignored-on-drafts": drafts_let_more_tokens_through,
    "seed-ignored": a_seed_gives_two_texts,
    "shared-rng": a_prompt_gets_another_text_in_the_same_process,
    "logprob-zero": accepted_drafts_are_certain,
    "cached-tokens-zero": reuse_is_reported_as_none,
    "accept-denominator": fewer_are_drafted_than_accepted,
    "accept-sum-not-prefix": more_are_accepted_than_emitted,
    "grammar-starts-late": the_grammar_starts_late,
    "matcher-advanced-by-rejected": rejected_drafts_move_the_grammar,
    "grammar-ignored-on-path": serve_mode_drops_the_grammar,
}


@pytest.mark.parametrize("name", SYMPTOMS)
def test_the_defect_shows_and_the_healthy_engine_does_not(name: str) -> None:
    assert SYMPTOMS[name](Arm(name))
    assert not SYMPTOMS[name](Arm(None))
