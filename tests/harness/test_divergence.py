"""The decision table: for every class the evidence that gives it, and the evidence that is one step short."""

from dataclasses import replace

import pytest

from harness.divergence import NUMERICS_GAP, RULES, decide, describe
from harness.findings import DepthOutcome, Evidence, Noise, Rerun, Score, TurnEnd
from harness.identity import Difference, Field
from harness.plan import DEFAULT_TIE_GAP
from tests.harness.run_builders import CHAT_OFF, CHAT_ON, SERVE_OFF, SERVE_ON

TEXT = Difference(field="tokens", byte_offset=20, token_index=5, context="'abc'", a="'x'", b="'y'")
AGAIN = Rerun(outcome="same", repeats_a=True, repeats_b=True)
GONE = Rerun(outcome="none", repeats_a=True, repeats_b=False)
CHANGED = Rerun(outcome="none", repeats_a=False, repeats_b=True)
QUIET = Noise(tokens=20, median=0.0, largest=0.0)
LENGTH = TurnEnd(finish="length", emitted_tokens=24, cached_tokens=0)
STOP = TurnEnd(finish="stop", emitted_tokens=7, cached_tokens=0)
REUSED = replace(LENGTH, cached_tokens=30)
SAME = (DepthOutcome(depth=1, outcome="same", byte_offset=20),)
MOVED = (*SAME, DepthOutcome(depth=2, outcome="elsewhere", byte_offset=9))
ABSENT = (DepthOutcome(depth=1, outcome="none", byte_offset=None),)


def count(field: Field, a: int | str, b: int | str) -> Difference:
    return Difference(field=field, a=str(a), b=str(b))


def make(*differences: Difference, **changes: object) -> Evidence:
    evidence = Evidence(
        kind="speculation",
        a=CHAT_OFF,
        b=CHAT_ON,
        differences=differences,
        policy="explain",
        tie_gap=DEFAULT_TIE_GAP,
        cap_tokens=24,
        end_a=LENGTH,
        end_b=LENGTH,
    )
    return replace(evidence, **changes)  # type: ignore[arg-type]


def path(*differences: Difference, **changes: object) -> Evidence:
    return make(*differences, kind="path", **{"a": CHAT_ON, "b": SERVE_ON, **changes})


def typed(**changes: object) -> Evidence:
    """Return a first typed line that chat mode answers otherwise than serve mode answers its prompt."""
    return path(TEXT, **{"prompts_equal": None, "replay": AGAIN, **changes})


def tie(**changes: object) -> Evidence:
    """Return a proven near-tie."""
    known = {"cold": AGAIN, "gap_a": 1e-4, "gap_b": 1e-4, "swapped": True, "depths": SAME}
    return make(TEXT, **{**known, **changes})


def within(*differences: Difference, **changes: object) -> Evidence:
    """Return two turns of one cell: the first stands for the arm's own answer when asked cold."""
    known = {"a": CHAT_ON, "b": CHAT_ON, "cold": CHANGED, "replay": AGAIN}
    return make(*differences, kind="within", **{**known, **changes})


def slots(*differences: Difference, **changes: object) -> Evidence:
    known = {"a": SERVE_OFF, "b": replace(SERVE_OFF, slots=2), "cold": GONE, "replay": AGAIN}
    return make(*differences, kind="slots", **{**known, **changes})


def moved(*differences: Difference, **changes: object) -> Evidence:
    """Return one turn on both paths that answered in another context each, so that one found a prefix."""
    known = {"a": CHAT_OFF, "b": SERVE_OFF, "prefix_moved": True, "end_b": REUSED, "cold": GONE}
    return path(*differences, **{**known, **changes})


FLIPPED = {"gap_a": 1e-4, "gap_b": 1e-4, "swapped": True, "noise": QUIET}
REFUSED = count("finish_reason", "stop", "refused")

CASES = {
    "nothing differs": (make(), "identical", "none"),
    "a cell failed": (make(TEXT, failed="it died"), "failed", "fail"),
    "an arm is void": (make(TEXT, void="no sign of drafts"), "void", "open"),
    "an arm does not equal itself": (tie(unsteady=("chat/3",)), "nondeterministic", "open"),
    "seen once": (path(TEXT, unrepeated=("chat/3",)), "unproven", "open"),
    "seen once, gone when repeated": (path(TEXT, unrepeated=("chat/3",), cold=GONE), "unproven", "open"),
    "seen once, then again": (path(TEXT, unrepeated=("chat/3",), cold=AGAIN), "state", "fail"),
    "other prompts": (path(TEXT, prompts_equal=False), "prompt-mismatch", "fail"),
    "other tokens of a prompt": (path(TEXT, count("prompt_tokens", 9, 8)), "prompt-mismatch", "fail"),
    "a typed line read otherwise": (
        path(TEXT, count("prefill_tokens", 9, 8), prompts_equal=None),
        "prompt-mismatch",
        "fail",
    ),
    "a typed line, not asked as its prompt": (typed(missing=("cold",), gap_a=9.0), "unproven", "open"),
    "a typed line that is another prompt": (typed(exact=CHANGED, gap_a=9.0), "prompt-mismatch", "fail"),
    "a typed line and its prompt, both changed": (
        typed(exact=replace(GONE, repeats_a=False), gap_a=9.0),
        "state",
        "fail",
    ),
    "a typed line whose prompt differs too": (typed(exact=AGAIN, gap_a=9.0), "state", "fail"),
    "a stream with a token less": (path(TEXT, stream="serve/3 sent 5 and counted 6"), "counters", "fail"),
    "a tie that stays put": (tie(), "near-tie", "explained"),
    "a tie at the end": (tie(shorter="b", end_b=STOP), "near-tie", "explained"),
    "a tie, but ties fail": (tie(policy="fail"), "near-tie", "fail"),
    "a tie without another depth": (tie(depths=()), "unproven", "open"),
    "a tie that no other depth shows": (tie(depths=ABSENT), "unproven", "open"),
    "a tie that moves": (tie(depths=MOVED), "unproven", "open"),
    "no margin, stays put": (tie(gap_a=None, gap_b=None), "unproven", "open"),
    "no margin, moves": (tie(gap_a=None, gap_b=None, depths=MOVED), "state", "fail"),
    "a tie on one side only": (tie(gap_b=0.01), "numerics", "open"),
    "another kernel": (tie(gap_a=1e-3, gap_b=1e-3), "numerics", "open"),
    "another kernel, but ties fail": (tie(gap_a=1e-3, gap_b=1e-3, policy="fail"), "numerics", "fail"),
    "another kernel that moves": (tie(gap_a=1e-3, gap_b=1e-3, depths=MOVED), "state", "fail"),
    "another kernel that moves, between builds of other drafts": (
        tie(kind="build", gap_a=1e-3, gap_b=1e-3, depths=MOVED, other_blocks=True),
        "numerics",
        "open",
    ),
    "no margin, moves, between builds of other drafts": (
        tie(kind="build", gap_a=None, gap_b=None, depths=MOVED, other_blocks=True),
        "unproven",
        "open",
    ),
    "too far for rounding, between builds of other drafts": (
        tie(kind="build", gap_a=NUMERICS_GAP * 1.01, depths=MOVED, other_blocks=True),
        "state",
        "fail",
    ),
    "too far for rounding": (tie(gap_a=NUMERICS_GAP * 1.01), "state", "fail"),
    "a tie between the paths at depth 0": (
        path(TEXT, a=CHAT_OFF, b=SERVE_OFF, cold=AGAIN, gap_a=1e-4),
        "numerics",
        "fail",
    ),
    "a tie between the paths with drafts": (path(TEXT, cold=AGAIN, gap_a=1e-4), "state", "fail"),
    "ends at the cap too early": (
        make(TEXT, shorter="b", end_b=replace(STOP, finish="length")),
        "stop-or-cap",
        "fail",
    ),
    "passes over a stop, scored": (
        make(TEXT, shorter="a", end_a=STOP, score=Score(agrees="a", shown="the end", gap=2.0)),
        "stop-or-cap",
        "fail",
    ),
    "passes over a stop, not scored": (make(TEXT, shorter="a", end_a=STOP), "stop-or-cap", "open"),
    "passes over a stop between the paths": (path(TEXT, shorter="a", end_a=STOP), "stop-or-cap", "fail"),
    "stops where no stop is due": (
        tie(shorter="b", end_b=STOP, score=Score(agrees="a", shown="'x'", gap=2.0), gap_a=2.0),
        "state",
        "fail",
    ),
    "chooses no stop where one is due": (
        tie(shorter="a", end_a=STOP, alike=False, gap_a=2.0),
        "state",
        "fail",
    ),
    "chooses the stop and goes on": (
        tie(shorter="a", end_a=STOP, alike=True, swapped=False, gap_a=2.0),
        "stop-or-cap",
        "fail",
    ),
    "gone without the prefix": (
        make(TEXT, cold=CHANGED, replay=AGAIN, end_b=REUSED),
        "prefix-reuse",
        "fail",
    ),
    "gone without the prefix, with drafts only": (
        make(TEXT, cold=GONE, replay=AGAIN, end_b=REUSED),
        "state",
        "fail",
    ),
    "gone without the prefix, but a tie": (
        tie(cold=GONE, replay=AGAIN, end_b=REUSED),
        "near-tie",
        "explained",
    ),
    "gone without the prefix, small, but no rounding when cold": (
        tie(cold=CHANGED, replay=AGAIN, end_b=REUSED, gap_a=0.1, cold_noise=QUIET),
        "prefix-reuse",
        "fail",
    ),
    "gone without the prefix, small, with rounding when cold": (
        tie(cold=CHANGED, replay=AGAIN, end_b=REUSED, gap_a=0.1, cold_noise=replace(QUIET, largest=0.1)),
        "numerics",
        "open",
    ),
    "gone without what ran before": (make(TEXT, cold=GONE), "state", "fail"),
    "gone without what ran before, without drafts and on a prefix of it": (
        make(TEXT, cold=CHANGED, end_a=REUSED, same_undrafted=("chat/0",)),
        "prefix-reuse",
        "fail",
    ),
    "gone without what ran before, and without drafts it is the same": (
        path(TEXT, cold=GONE, end_b=REUSED, same_undrafted=("serve/3",)),
        "prefix-reuse",
        "fail",
    ),
    "gone without what ran before, and without drafts it is another": (
        path(TEXT, cold=GONE, end_b=REUSED),
        "state",
        "fail",
    ),
    "gone without what ran before, without drafts and on no prefix": (
        make(TEXT, cold=CHANGED, end_b=REUSED, same_undrafted=("chat/0",)),
        "state",
        "fail",
    ),
    "gone without what ran before, not replayed": (
        make(TEXT, cold=GONE, missing=("replay",)),
        "unproven",
        "open",
    ),
    "no margin, but the score is far apart": (
        tie(gap_a=None, gap_b=None, score=Score(agrees="a", shown="'x'", gap=2.0)),
        "state",
        "fail",
    ),
    "a tie on another prefix": (within(TEXT, **FLIPPED), "near-tie", "explained"),
    "a tie at the first token": (within(TEXT, **{**FLIPPED, "noise": None}), "near-tie", "explained"),
    "a tie on another prefix, but ties fail": (within(TEXT, **FLIPPED, policy="fail"), "near-tie", "fail"),
    "a tie beside another request": (slots(TEXT, **FLIPPED), "near-tie", "explained"),
    "a tie whose other side is not shown": (
        slots(TEXT, gap_a=1e-4, swapped=False),
        "unproven",
        "open",
    ),
    "a tie behind margins that are far apart": (
        within(TEXT, **{**FLIPPED, "noise": replace(QUIET, largest=0.01)}),
        "numerics",
        "open",
    ),
    "another kernel on another prefix": (within(TEXT, gap_a=1e-3, gap_b=1e-3), "numerics", "open"),
    "another kernel beside another request": (slots(TEXT, gap_a=1e-3), "numerics", "open"),
    "another kernel beside another request, but ties fail": (
        slots(TEXT, gap_a=1e-3, policy="fail"),
        "numerics",
        "fail",
    ),
    "a tie in another context": (moved(TEXT, **FLIPPED), "near-tie", "explained"),
    "a tie in another context, but ties fail": (moved(TEXT, **FLIPPED, policy="fail"), "near-tie", "fail"),
    "a tie between the paths in one context": (
        moved(TEXT, **FLIPPED, prefix_moved=False),
        "numerics",
        "fail",
    ),
    "another kernel in another context": (moved(TEXT, gap_a=1e-3, gap_b=1e-3), "numerics", "open"),
    "too far for rounding in another context": (moved(TEXT, gap_a=9.0), "prefix-reuse", "fail"),
    "too far for rounding in another context, with drafts": (
        moved(TEXT, gap_a=9.0, a=CHAT_ON, b=SERVE_ON),
        "state",
        "fail",
    ),
    "in another context, what ran before not asked again": (
        moved(TEXT, missing=("again",)),
        "state",
        "fail",
    ),
    "another prefix, not asked again": (within(TEXT, cold=None, replay=None), "unproven", "open"),
    "another prefix, without a margin": (within(TEXT), "unproven", "open"),
    "a tie on another prefix that does not come back": (
        within(TEXT, replay=GONE, gap_cold=1e-4),
        "unproven",
        "open",
    ),
    "too far for rounding on another prefix": (within(TEXT, gap_a=9.0), "prefix-reuse", "fail"),
    "too far for rounding when cold": (within(TEXT, replay=None, gap_cold=9.0), "prefix-reuse", "fail"),
    "too far for rounding, without drafts not known": (
        within(TEXT, gap_cold=9.0, undrafted_unknown=True),
        "prefix-reuse",
        "fail",
    ),
    "too far for rounding, with drafts only": (within(TEXT, gap_cold=9.0, by_drafts=True), "state", "fail"),
    "too far for rounding beside another request": (slots(TEXT, gap_cold=9.0), "state", "fail"),
    "too far for rounding beside another request, not asked alone yet": (
        slots(TEXT, gap_cold=9.0, cold=None, missing=("cold",)),
        "unproven",
        "open",
    ),
    "too far for rounding without the prefix, in one slot": (
        slots(TEXT, gap_cold=9.0, cold=CHANGED, end_a=REUSED),
        "prefix-reuse",
        "fail",
    ),
    "too far for rounding beside another request, no prefix": (
        slots(TEXT, gap_cold=9.0, cold=CHANGED),
        "state",
        "fail",
    ),
    "too far for rounding, but seen once": (
        slots(TEXT, gap_cold=9.0, replay=None, unrepeated=("serve/0x2",)),
        "unproven",
        "open",
    ),
    "stops on another prefix": (
        within(TEXT, shorter="a", end_a=STOP, gap_cold=9.0),
        "prefix-reuse",
        "fail",
    ),
    "a refusal that is not given": (within(TEXT, REFUSED), "prompt-mismatch", "fail"),
    "another draw from one seed": (within(TEXT, sampled=True), "nondeterministic", "open"),
    "another count of turns of one cell": (within(count("drafted_tokens", 8, 9)), "counters", "fail"),
    "another finish reason with several slots": (
        slots(count("finish_reason", "stop", "length")),
        "finish-reason",
        "fail",
    ),
    "another finish reason": (path(count("finish_reason", "stop", "length")), "finish-reason", "fail"),
    "another prefix": (path(count("cached_tokens", 30, 0)), "prefix-reuse", "fail"),
    "another prefill": (path(count("prefill_tokens", 3, 33)), "prefix-reuse", "fail"),
    "other forwards": (path(count("forwards", 8, 9)), "counters", "fail"),
    "other token counts": (path(count("token_count", 8, 9)), "counters", "fail"),
}


@pytest.mark.parametrize("name", CASES)
def test_evidence_gives_its_class(name: str):
    evidence, verdict_class, effect = CASES[name]
    _, decision = decide(evidence)
    assert (decision.verdict_class, decision.effect) == (verdict_class, effect)
    assert decision.reason


def test_every_rule_decides_some_case():
    assert {decide(evidence)[0] for evidence, *_ in CASES.values()} == {name for name, _ in RULES}


def test_a_counter_is_named_with_both_values():
    assert decide(path(count("forwards", 8, 9)))[1].reason == (
        "the same text, but forwards 8 in chat/3, 9 in serve/3"
    )


def test_turns_of_one_cell_are_not_told_apart_by_their_arm():
    assert decide(within(count("drafted_tokens", 9, 12)))[1].reason == (
        "the same text, but drafted_tokens 9 in the answer, 12 in what it must equal"
    )
    assert "0.0001 in the answer, 0.0001 in what it must equal" in describe(within(TEXT, **FLIPPED))[0]


def test_only_open_questions_ask_for_probes():
    missing = ("cold", "depth")
    wanted = {name: decide(replace(e, missing=missing))[1].wanted for name, (e, *_) in CASES.items()}
    for name in ("a tie that stays put", "another kernel", "no margin, moves", "another prefix"):
        assert wanted[name] == ()
    for name in ("a tie without another depth", "a tie between the paths with drafts", "seen once"):
        assert wanted[name] == missing


def test_evidence_is_told_in_words_and_numbers():
    evidence = tie(
        depths=MOVED,
        noise=Noise(tokens=5, median=0.01, largest=0.25),
        score=Score(agrees="b", shown="'y'", gap=0.125),
    )
    assert describe(evidence) == (
        "margin between the two best logits: 0.0001 in chat/0, 0.0001 in chat/3, "
        "the same two candidates in the other order",
        "over the 5 tokens before, the margins of the two arms are 0.01 in the median, 0.25 at most apart",
        "the turn alone in a fresh process shows it again",
        "first difference at other draft depths: 1: at the same place, 2: at byte 9",
        "the common part scored cold without drafts goes on with 'y', as in chat/3, margin 0.125",
    )
