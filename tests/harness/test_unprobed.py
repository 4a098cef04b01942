"""Differences that no probe can look into: what is proven by them, and what stays open."""

from dataclasses import replace

import pytest

from harness.contrasts import ContrastResult, FoundDifference
from harness.identity import Difference
from harness.plan import Arm, Contrast
from harness.unprobed import name_unprobed
from tests.harness.run_builders import CHAT_ON, SERVE_OFF, judge_run, make_plan, run_healthy

SLOTS = Contrast(name="slots 2", kind="slots", a=SERVE_OFF, b=replace(SERVE_OFF, slots=2))
WITHIN = Contrast(name="within chat/3", kind="within", a=CHAT_ON, b=CHAT_ON)
EMPTY = judge_run(make_plan(), run_healthy(make_plan()))[0].contrasts[0]


def result_of(contrast: Contrast, *differences: Difference) -> ContrastResult:
    found = FoundDifference(
        scenario="s",
        conversation="c",
        turn=1,
        repetitions_a=(0,),
        repetitions_b=(0,),
        differences=differences,
    )
    return replace(EMPTY, contrast=contrast, found=(found,))


TOKENS = Difference(field="tokens", byte_offset=3, a="'x'", b="'y'")
REFUSED = Difference(field="finish_reason", a="stop", b="refused")
FINISH = Difference(field="finish_reason", a="stop", b="length")
COUNT = Difference(field="token_count", a="3", b="4")


@pytest.mark.parametrize(
    ("contrast", "differences", "verdict_class", "effect"),
    [
        (WITHIN, (TOKENS, FINISH), "unproven", "open"),
        (SLOTS, (TOKENS,), "unproven", "open"),
        (WITHIN, (TOKENS, REFUSED), "prompt-mismatch", "fail"),
        (SLOTS, (FINISH,), "finish-reason", "fail"),
        (WITHIN, (COUNT,), "counters", "fail"),
    ],
)
def test_only_what_rounding_cannot_explain_is_proven(
    contrast: Contrast, differences: tuple[Difference, ...], verdict_class: str, effect: str
):
    (finding,) = name_unprobed([result_of(contrast, *differences)])
    assert (finding.verdict_class, finding.effect) == (verdict_class, effect)
    assert (finding.contrast, finding.place) == (contrast.name, "s, c, turn 2")


def test_nothing_is_said_about_an_arm_that_does_not_equal_itself():
    arm: Arm = SLOTS.b
    unsteady = result_of(Contrast(name="self", kind="self", a=arm, b=arm), TOKENS)
    (finding,) = name_unprobed([unsteady, result_of(SLOTS, COUNT)])
    assert (finding.verdict_class, finding.effect) == ("nondeterministic", "open")
    assert "serve/0x2 does not give its own answer again" in finding.reason
