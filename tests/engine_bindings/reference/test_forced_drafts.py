"""Forced drafts: verification finds what was asked for, and the text is what it is without them."""

import pytest

from engine_bindings.errors import UsageError
from engine_bindings.reference.forced_drafts import ForcedDrafter
from engine_bindings.reference.sampling import Sampling
from engine_bindings.reference.settings import ForceAccept, read_settings
from tests.engine_bindings.reference.defects.arms import QUESTIONS, Arm, cold_text, render, submitting
from tests.engine_bindings.reference.engine_fakes import Bench

PROMPT = [1, 2, 3, 4, 5]
EXPECTED: dict[ForceAccept, list[int]] = {
    "accept": [3, 3, 3, 3, 3, 3, 3, 3],
    "reject": [0, 0, 0, 0, 0, 0, 0, 0],
    "alternate": [3, 0, 3, 0, 3, 0, 3, 0],
    "cycle": [0, 1, 2, 3, 0, 1, 2, 3],
}


def make_bench(pattern: ForceAccept, depth: int = 3, **options: object) -> Bench:
    bench = Bench(depth=depth, **options)  # type: ignore[arg-type]
    bench.engine.drafter = ForcedDrafter(bench.model, pattern)
    return bench


@pytest.mark.parametrize("pattern", EXPECTED)
def test_verification_finds_the_pattern(pattern: ForceAccept) -> None:
    bench = make_bench(pattern, context_tokens=400)
    turn = bench.start(PROMPT, 1000)
    counts = []
    for _ in range(8):
        before = turn.accepted
        bench.engine.step()
        counts.append(turn.accepted - before)
    assert counts == EXPECTED[pattern]
    assert turn.drafted == 24
    assert bench.recorder.tokens[1] == bench.model.continue_greedily(PROMPT, turn.emitted)


@pytest.mark.parametrize("pattern", EXPECTED)
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_the_text_is_the_same_at_every_cap(pattern: ForceAccept, depth: int) -> None:
    for cap in range(1, 3 * depth + 3):
        bench = make_bench(pattern, depth)
        text = bench.answer(PROMPT, cap)
        assert text == bench.model.continue_greedily(PROMPT, cap)
        bench.assert_kv_is([*PROMPT, *text])


@pytest.mark.parametrize("pattern", EXPECTED)
def test_sampled_text_is_the_same_too(pattern: ForceAccept) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9)
    expected = Bench(seed=3).answer(PROMPT, 30, sampling=sampling)
    assert make_bench(pattern, seed=3).answer(PROMPT, 30, sampling=sampling) == expected


@pytest.mark.parametrize("pattern", EXPECTED)
def test_the_packaged_model_follows_the_pattern(pattern: ForceAccept) -> None:
    real = Arm(None).real(REF_FORCE_ACCEPT=pattern)
    prompt = real.encode(render(QUESTIONS[1]))
    text, turn = real.answer(prompt, 40)
    assert text == cold_text(prompt, 40)
    rate = turn.accepted / turn.drafted
    assert rate == {"accept": 1.0, "reject": 0.0}.get(pattern, rate)
    assert (0 < rate < 1) is (pattern in ("alternate", "cycle"))


def test_the_guard_does_not_pause_what_is_forced() -> None:
    environ = {"REF_FORCE_ACCEPT": "reject", "COLI_MTP_GUARD_PCT": "90"}
    session = Arm(None).serve(submitting(max_tokens=60), **environ)
    assert session.profiles()[0].forwards == session.done(1).stat.emitted_tokens == 60


def test_an_unknown_pattern_is_named() -> None:
    with pytest.raises(UsageError, match="REF_FORCE_ACCEPT='some' is not one of accept, reject"):
        read_settings({"REF_FORCE_ACCEPT": "some"})
    assert read_settings({"REF_FORCE_ACCEPT": "reject"}, force_accept="cycle").force_accept == "cycle"
