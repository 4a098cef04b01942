"""Counts that cannot be right fail with the counter named, though every text is."""

from dataclasses import replace

import pytest

from engine_bindings.binding import UNKNOWN_DEPTH
from harness.counters import CHECKS, CountedTurn, find_count_faults
from harness.grammar import Grammar
from harness.pairing import select_latest
from harness.plan import Arm, CellSpec, build_plan
from harness.transcript import Delivery, TurnRecord
from tests.harness.run_builders import (
    CHAT_ON,
    SERVE_ON,
    SERVED,
    judge_run,
    make_plan,
    make_scenario,
    run_healthy,
)


def test_a_healthy_run_has_no_finding():
    plan = make_plan()
    comparison, verdict = judge_run(plan, run_healthy(plan))
    assert (comparison.findings, verdict.verdict_class) == ((), "identical")


MORE_ACCEPTED = {"drafted_tokens": 3}
NO_SUM = {"forwards": 9, "drafted_tokens": 27, "accepted_tokens": 18}
TOO_DEEP = {"drafted_tokens": 40}
NO_PROMPT = {"cached_tokens": 0, "prefill_tokens": 1}
OVER_PROMPT = {"cached_tokens": 1000, "prefill_tokens": None}
OVER_ANSWER = {"forwards": None, "drafted_tokens": None, "accepted_tokens": 28}
OVER_CAP = {"emitted_tokens": 25, "forwards": 7, "token_lengths": None}
UNDER_CAP = {"emitted_tokens": 22, "accepted_tokens": 16, "token_lengths": None}


@pytest.mark.parametrize(
    ("changes", "verdict_class", "words"),
    [
        (MORE_ACCEPTED, "counters", "accepted 18 of 3 drafts"),
        (NO_SUM, "counters", "9 forwards and 18 accepted drafts do not give 24 tokens"),
        (TOO_DEEP, "counters", "drafted 40 in 6 forwards of at most 3 drafts"),
        (OVER_PROMPT, "counters", "cached_tokens 1000 of a prompt of"),
        (OVER_ANSWER, "counters", "accepted 28 drafts in an answer of 24 tokens"),
        (NO_PROMPT, "counters", "cached_tokens 0 and prefill_tokens 1"),
        (OVER_CAP, "stop-or-cap", "25 tokens at a cap of 24"),
        (UNDER_CAP, "finish-reason", "finish_reason length after 22 of 24 tokens"),
    ],
)
def test_a_count_that_cannot_be_right_is_named(changes: dict[str, object], verdict_class: str, words: str):
    plan = replace(make_plan(), context_tokens=4096)

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, **changes) if spec.arm.depth else turn  # type: ignore[arg-type]

    verdict = judge_run(plan, run_healthy(plan, bend))[1]
    assert (verdict.status, verdict.verdict_class) == ("fail", verdict_class)
    assert words in verdict.sentence


@pytest.mark.parametrize(("size_bytes", "found"), [(24 * 256 + 64, False), (24 * 256 + 65, True)])
def test_a_text_has_enough_tokens(size_bytes: int, found: bool):
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=b"a" * size_bytes, token_lengths=None)

    comparison, _ = judge_run(plan, run_healthy(plan, bend))
    assert (
        any(f"emitted_tokens 24 for an answer of {size_bytes}" in f.reason for f in comparison.findings)
        == found
    )


@pytest.mark.parametrize(("depth", "accepted"), [(3, 27), (UNKNOWN_DEPTH, 88)])
def test_drafts_right_behind_the_end_may_be_counted(depth: int, accepted: int):
    plan = make_plan()
    counted = CountedTurn(
        arm=Arm(path="chat", depth=depth),
        asked=plan.scenarios[0].conversations[0].turns[0],
        turn=replace(run_healthy(plan)[0].turns[0], accepted_tokens=accepted),
        before=None,
        context_tokens=None,
        span_drafts=False,
    )
    (check,) = (check for name, _, check in CHECKS if name == "more accepted than came")

    assert check(counted) is None
    assert check(replace(counted, turn=replace(counted.turn, accepted_tokens=accepted + 1))) is not None


def test_frames_and_count_must_agree():
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, token_lengths=(8, *turn.token_lengths[2:])) if turn.token_lengths else turn

    comparison, _ = judge_run(plan, run_healthy(plan, bend))
    assert any("23 tokens were sent and emitted_tokens says 24" in f.reason for f in comparison.findings)


def test_a_head_that_is_never_right_is_no_head():
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, forwards=24, drafted_tokens=70, accepted_tokens=0) if spec.arm.depth else turn

    verdict = judge_run(plan, run_healthy(plan, bend))[1]
    assert (verdict.status, verdict.verdict_class) == ("fail", "counters")
    assert "accepted_tokens 0 of 560 drafts" in verdict.sentence


@pytest.mark.parametrize(("repeats", "status"), [(True, "fail"), (False, "pass")])
def test_forwards_of_both_paths_are_compared_where_they_repeat(repeats: bool, status: str):
    plan = replace(make_plan(), counters_repeat=repeats)

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, forwards=9, accepted_tokens=15) if spec.arm == SERVE_ON else turn

    verdict = judge_run(plan, run_healthy(plan, bend))[1]
    assert verdict.status == status
    if repeats:
        assert verdict.verdict_class == "counters"
        assert "forwards 6 in chat/3, 9 in serve/3" in verdict.reasons[0]


def test_a_prompt_that_goes_on_finds_the_last_one_in_the_cache():
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        lost = spec.arm == CHAT_ON and turn.turn == 1
        return replace(turn, cached_tokens=0, prefill_tokens=turn.prompt_tokens) if lost else turn

    comparison, verdict = judge_run(plan, run_healthy(plan, bend))
    assert (verdict.status, verdict.verdict_class) == ("fail", "prefix-reuse")
    assert any("at least 6 of the last prompt expected" in f.reason for f in comparison.findings)


@pytest.mark.parametrize(("binds", "status"), [(True, "fail"), (False, "pass")])
def test_spans_of_a_grammar_that_only_drafts_may_differ_between_the_paths(binds: bool, status: str):
    # The answers reach their cap, so that nothing but their counts can fail.
    grammar = Grammar(kind="gbnf", text='root ::= "a"\n', binds=binds)
    plan = replace(make_plan(make_scenario("words", grammar=grammar)), counters_repeat=True)

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        longer = {"forwards": 4, "drafted_tokens": 24, "accepted_tokens": 20}
        return replace(turn, **longer) if spec.arm == CHAT_ON else turn  # type: ignore[arg-type]

    verdict = judge_run(plan, run_healthy(plan, bend))[1]
    assert verdict.status == status


@pytest.mark.parametrize(
    ("shown", "changes", "found"),
    [
        (17, {}, True),
        (18, {}, False),
        (6, {"entry": "messages"}, False),
        (6, {"prompt": b"another prompt"}, False),
    ],
)
def test_an_answer_must_come_back_as_about_the_tokens_that_were_counted(
    shown: int, changes: dict[str, object], found: bool
):
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm != CHAT_ON or turn.turn == 0:
            return turn
        # The first prompt has ten tokens or more, and its answer 24 by the count.
        first = (turn.cached_tokens or 0) - 24
        prompt = {"prompt_tokens": first + shown, "cached_tokens": first, "prefill_tokens": shown}
        return replace(turn, **prompt, **changes)  # type: ignore[arg-type]

    comparison, _ = judge_run(plan, run_healthy(plan, bend))
    said = [
        f.reason for f in comparison.findings if f.rule == "more tokens than come back in the next prompt"
    ]
    assert bool(said) == found
    assert all(reason.startswith("emitted_tokens was 24 in the turn before") for reason in said)


def test_an_arm_of_unknown_depth_may_draft_as_much_as_it_likes():
    plan = build_plan((make_scenario(),), capabilities=SERVED)
    records = run_healthy(plan, lambda _, turn: replace(turn, drafted_tokens=900, accepted_tokens=0))

    assert not [f for f in find_count_faults(plan, select_latest(records)) if "depth" in f.rule]


def _go_on(turn: TurnRecord, reads: int, *, tokens: int | None = 2) -> TurnRecord:
    late = tuple(Delivery(at_ns=turn.sent_ns + 100 + i, size_bytes=8, tokens=tokens) for i in range(reads))
    return replace(turn, deliveries=late, asked_to_end_ns=turn.sent_ns + 50)


@pytest.mark.parametrize(("reads", "heard"), [(1, True), (16, True), (17, False), (60, False)])
def test_an_engine_that_goes_on_after_a_stop_is_named(reads: int, heard: bool):
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return _go_on(turn, reads) if spec.arm == SERVE_ON else turn

    comparison, verdict = judge_run(plan, run_healthy(plan, bend))
    found = [f for f in comparison.findings if f.rule == "a stop that is not heard"]
    assert bool(found) is not heard
    if found:
        assert (verdict.status, verdict.verdict_class) == ("fail", "stop-or-cap")


def test_what_was_on_its_way_in_few_reads_proves_nothing():
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return _go_on(turn, 8, tokens=500) if spec.arm == SERVE_ON else turn

    assert not judge_run(plan, run_healthy(plan, bend))[0].findings


@pytest.mark.parametrize(("blind_turns", "status"), [(13, "pass"), (14, "fail")])
def test_a_head_that_goes_blind_in_a_cell_is_named(blind_turns: int, status: str):
    plan = make_plan(make_scenario(turns=15))

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        blind = spec.arm.depth and turn.conversation == "code-1" and turn.turn >= 15 - blind_turns
        return replace(turn, forwards=24, drafted_tokens=19, accepted_tokens=0) if blind else turn

    comparison, verdict = judge_run(plan, run_healthy(plan, bend))
    assert verdict.status == status
    if status == "fail":
        rules = {(f.rule, f.place, f.reason.split(";")[0]) for f in comparison.findings}
        reason = "accepted_tokens 0 of 266 drafts from there on"
        assert ("no draft is kept any more", "quick, code-1, turn 2", reason) in rules
