"""Controls differ where they say, by the margin that they say, and at one place for every depth."""

from collections.abc import Sequence

import pytest

from engine_bindings.reference.defects.controls import FAMILY_MARGIN, TINY_MARGIN
from tests.engine_bindings.reference.defects.arms import Arm
from tests.engine_bindings.reference.engine_fakes import Bench

PROMPTS = [[i, i + 1, i + 2, 5] for i in range(8)]
LENGTH = 120


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def answer(bench: Bench, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
    """The tokens, and the margin of each."""
    bench.recorder.margins.clear()
    tokens = list(bench.answer(prompt, LENGTH))
    return tokens, [margin.top1_logit - margin.top2_logit for margin in bench.recorder.margins]


@pytest.mark.parametrize(("name", "margin"), [("near-tie", TINY_MARGIN), ("kernel-switch", FAMILY_MARGIN)])
def test_the_width_decides_ties_and_the_place_does_not_move(name: str, margin: float) -> None:
    places = []
    for prompt in PROMPTS:
        plain, margins = answer(Arm(name).bench(depth=0, margins=True), prompt)
        found = set()
        for depth in (1, 2, 3, 8):
            deep, deep_margins = answer(Arm(name).bench(depth=depth, margins=True), prompt)
            place = first_difference(plain, deep)
            found.add(place)
            if place is not None:
                assert margins[place] == pytest.approx(margin, rel=0.01)
                assert deep_margins[place] == pytest.approx(margin, rel=0.01)
        assert len(found) == 1
        places += found
    assert any(place is not None for place in places)


def test_a_reused_prefix_decides_ties() -> None:
    found = []
    for prompt in PROMPTS:
        bench = Arm("cold-warm-tie").bench(depth=0, margins=True)
        (cold, margins), (warm, _) = answer(bench, prompt), answer(bench, prompt)
        assert cold == answer(Arm("cold-warm-tie").bench(depth=3, margins=True), prompt)[0]
        place = first_difference(cold, warm)
        if place is not None:
            assert margins[place] == pytest.approx(TINY_MARGIN, rel=0.01)
            found.append(place)
    assert found


def test_a_neighbour_decides_ties() -> None:
    found = []
    for prompt in PROMPTS:
        alone, margins = answer(Arm("batch-tie").bench(depth=0, margins=True), prompt)
        bench = Arm("batch-tie").bench(depth=0, slots=2)
        for slot in range(2):
            bench.start(prompt, LENGTH, request_id=slot, slot=slot)
        while bench.engine.active:
            bench.engine.step()
        assert bench.recorder.tokens[0] == bench.recorder.tokens[1]
        place = first_difference(alone, bench.recorder.tokens[0])
        if place is not None:
            assert margins[place] == pytest.approx(TINY_MARGIN, rel=0.01)
            found.append(place)
    assert found
