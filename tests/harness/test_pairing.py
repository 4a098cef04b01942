"""Which turns are held against which, and what is missing for them."""

from dataclasses import replace

import pytest

from harness.comparison import Comparison
from harness.pairing import pair_cells, select_latest
from harness.plan import CellSpec, Plan, build_plan
from harness.scenario import Conversation, Turn
from harness.transcript import Failure, Stop, TurnRecord
from tests.harness.run_builders import (
    CHAT_OFF,
    SERVE_OFF,
    SERVE_ON,
    judge_run,
    make_plan,
    make_scenario,
    run_healthy,
)

FAILURE = Failure(code="engine-died", message="died", hint="")


def test_every_contrast_gets_the_turns_of_both_arms_in_order():
    plan = make_plan()
    pairing = pair_cells(plan, run_healthy(plan))
    off = next(item for item in pairing.contrasts if item.contrast.name == "path off")
    assert [(p.a.conversation, p.a.turn, p.cell_a.repetition) for p in off.pairs] == [
        (conversation, turn, repetition)
        for repetition in (0, 1)
        for conversation in ("copy-1", "code-1")
        for turn in (0, 1)
    ]
    assert {(p.cell_a.arm, p.cell_b.arm) for p in off.pairs} == {(CHAT_OFF, SERVE_OFF)}
    assert all(p.cell_a.repetition == p.cell_b.repetition for p in off.pairs)


def test_an_arm_is_held_against_its_own_first_repetition():
    plan = make_plan(repetitions=3)
    own = pair_cells(plan, run_healthy(plan)).contrasts[0]
    assert {(p.cell_a.repetition, p.cell_b.repetition) for p in own.pairs} == {(0, 1), (0, 2)}


def test_one_repetition_leaves_nothing_to_hold_an_arm_against():
    plan = make_plan(repetitions=1)
    own = pair_cells(plan, run_healthy(plan)).contrasts[0]
    assert (own.pairs, own.missing) == ((), ())


def test_the_last_attempt_at_a_cell_counts():
    plan = make_plan()
    good = run_healthy(plan)
    failed = replace(good[0], failure=FAILURE, turns=())
    records = (failed, *good[1:], replace(good[0], attempt=1))
    assert select_latest(records)[good[0].spec].failure is None
    assert not any(item.missing for item in pair_cells(plan, records).contrasts)


def test_what_is_missing_is_named_with_its_reason():
    plan = make_plan()
    records = list(run_healthy(plan))
    records[0] = replace(records[0], failure=FAILURE)
    del records[2]
    off = next(c for c in pair_cells(plan, records).contrasts if c.contrast.name == "path off")
    assert [(m.cell.key, m.reason, m.pairs) for m in off.missing] == [("chat/0 quick 0", "failed", 4)]
    own = next(c for c in pair_cells(plan, records).contrasts if c.contrast.name == "self serve/0")
    assert [(m.cell.key, m.reason) for m in own.missing] == [("serve/0 quick 0", "not measured")]
    records[1] = replace(records[1], turns=records[1].turns[:-1])
    own = next(c for c in pair_cells(plan, records).contrasts if c.contrast.name == "self chat/3")
    assert [m.reason for m in own.missing] == ["turns missing"]


def test_the_turn_after_a_stop_string_has_an_uncertain_prefix():
    plan = make_plan()
    records = run_healthy(
        plan, lambda _, turn: replace(turn, finish="stop-string") if turn.turn == 0 else turn
    )
    pairs = pair_cells(plan, records).contrasts[0].pairs
    assert [pair.prefix_uncertain for pair in pairs] == [False, True, False, True]


def plan_with_a_relation() -> Plan:
    """Plan a conversation whose third turn must answer what the first answered."""
    turns = (
        Turn(kind="user", text="a", max_tokens=24),
        Turn(kind="user", text="b", max_tokens=24),
        Turn(kind="user", text="a", max_tokens=24, after=0, same_as=(1,)),
    )
    talk = Conversation(id="copy-1", category="copy", system=None, turns=turns)
    return build_plan([make_scenario("branches", conversations=(talk,))], repetitions=2)


def test_declared_relations_are_held_within_each_cell():
    plan = plan_with_a_relation()
    within = [c for c in pair_cells(plan, run_healthy(plan)).contrasts if c.contrast.kind == "within"]
    assert [c.contrast.name for c in within] == [
        "within chat/0",
        "within chat/3",
        "within serve/0",
        "within serve/3",
    ]
    for item in within:
        assert [(p.cell_a == p.cell_b, p.a.turn, p.b.turn, p.answers_only) for p in item.pairs] == [
            (True, 2, 2, True)
        ] * 2
    assert judge_run(plan, run_healthy(plan))[1].status == "pass"


def test_a_broken_relation_is_open_and_names_its_arm():
    def spoil(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if turn.turn == 2:
            return replace(turn, text=b"X" + turn.text[1:])
        return turn

    plan = plan_with_a_relation()
    comparison, verdict = judge_run(plan, run_healthy(plan, spoil))
    assert verdict.status == "inconclusive"
    assert "within chat/0 differs in branches, copy-1, turn 3" in verdict.sentence
    assert {finding.verdict_class for finding in comparison.findings} == {"unproven"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"drafted_tokens": 1}, "drafted_tokens"),
        ({"accepted_tokens": 2, "forwards": 22}, "forwards"),
        ({"text": b"", "emitted_tokens": 0, "finish": "stop", "token_lengths": None}, "tokens"),
        ({"finish": "stop"}, "finish_reason"),
    ],
)
def test_one_request_twice_ends_and_drafts_alike_whatever_was_cached(change: dict[str, object], field: str):
    def spoil(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        spoilt = spec.arm.depth and turn.turn == 2
        return replace(turn, **change) if spoilt else turn  # type: ignore[arg-type]

    plan = replace(plan_with_a_relation(), counters_repeat=True)
    comparison, _ = judge_run(plan, run_healthy(plan, spoil))
    assert name_fields(comparison) == {"within chat/3": field, "within serve/3": field}
    unsure, _ = judge_run(replace(plan, counters_repeat=False), run_healthy(plan, spoil))
    assert bool(name_fields(unsure)) == (field in ("tokens", "finish_reason"))


def name_fields(comparison: Comparison) -> dict[str, str]:
    """Return the first field that differs in each contrast within a cell."""
    within = [c for c in comparison.contrasts if c.contrast.kind == "within" and c.found]
    return {c.contrast.name: c.found[0].differences[0].field for c in within}


def test_with_another_cap_an_answer_may_end_and_draft_otherwise():
    plan = plan_with_a_relation()
    (scenario,) = plan.scenarios
    (talk,) = scenario.conversations
    shorter = replace(talk, turns=(*talk.turns[:2], replace(talk.turns[2], max_tokens=20)))
    plan = replace(plan, scenarios=(replace(scenario, conversations=(shorter,)),), counters_repeat=True)
    comparison, verdict = judge_run(plan, run_healthy(plan))
    assert all(c.pairs_checked for c in comparison.contrasts if c.contrast.kind == "within")
    assert verdict.status == "pass"


def test_an_answer_of_as_many_tokens_as_its_cap_was_perhaps_cut_whatever_it_says():
    def deny(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if turn.turn != 2:
            return replace(turn, finish="stop")
        short = {"text": turn.text[:80], "emitted_tokens": 20, "token_lengths": (4,) * 20}
        return replace(turn, finish="stop", **short)  # type: ignore[arg-type]

    def fields_at(cap_tokens: int) -> dict[str, str]:
        plan = plan_with_a_relation()
        (scenario,) = plan.scenarios
        (talk,) = scenario.conversations
        talk = replace(talk, turns=(*talk.turns[:2], replace(talk.turns[2], max_tokens=cap_tokens)))
        plan = replace(plan, scenarios=(replace(scenario, conversations=(talk,)),))
        return name_fields(judge_run(plan, run_healthy(plan, deny))[0])

    assert fields_at(20) == {}
    assert set(fields_at(21).values()) == {"tokens"}


def test_no_relation_no_contrast_within():
    plan = make_plan()
    assert all(contrast.kind != "within" for contrast in plan.contrasts)


@pytest.mark.parametrize(("goes_on", "one_path"), [(False, {False}), (True, {True})])
def test_the_prefix_after_a_cancel_is_compared_on_one_path_and_up_to_the_answer_only(
    goes_on: bool, one_path: set[bool]
) -> None:
    ask = Turn(kind="prompt", text="p", max_tokens=24)
    turns = (replace(ask, cancel_after_tokens=5), replace(ask, text="p and on" if goes_on else "p"))
    conversation = Conversation(id="cut", category="prefix", system=None, turns=turns)

    def cancel(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, finish="cancelled") if turn.turn == 0 else turn

    plan = make_plan(make_scenario(conversations=(conversation,)))
    pairing = pair_cells(plan, run_healthy(plan, cancel))
    uncertain = {
        c.contrast.name: {pair.prefix_uncertain for pair in c.pairs if pair.a.turn == 1}
        for c in pairing.contrasts
    }
    assert uncertain["path on"] == {True}
    assert uncertain["speculation serve"] == uncertain[f"self {SERVE_ON.label}"] == one_path


def test_a_conversation_in_a_context_of_its_own_begins_with_another_prefix_on_the_other_path():
    first, second = make_scenario().conversations
    scenario = make_scenario(conversations=(first, replace(second, slot=1)))
    plan = replace(build_plan([scenario], repetitions=2), context_paths=("chat",))
    moved = {
        c.contrast.name: [(p.a.conversation, p.a.turn) for p in c.pairs if p.prefix_moved]
        for c in pair_cells(plan, run_healthy(plan)).contrasts
    }
    assert moved["path on"] == [("code-1", 0)] * 2
    assert moved["self chat/3"] == moved["speculation chat"] == moved["speculation serve"] == []
    unnamed = replace(plan, context_paths=())
    assert not any(p.prefix_moved for c in pair_cells(unnamed, run_healthy(plan)).contrasts for p in c.pairs)


def test_what_a_cell_finds_in_a_cache_that_was_not_emptied_is_not_compared():
    plan = make_plan()
    pairs = {
        cold: [
            pair.prefix_uncertain
            for contrast in pair_cells(replace(plan, cold_cells=cold), run_healthy(plan)).contrasts
            for pair in contrast.pairs
        ]
        for cold in (True, False)
    }

    assert not any(pairs[True])
    assert all(pairs[False])


def stop_behind(turn: int) -> Stop:
    return Stop(conversation="copy-1", turn=turn, reason="tokens is not as in chat/3", turns_left=3 - turn)


def test_a_cell_that_was_ended_early_is_compared_as_far_as_it_went_and_never_passes():
    plan = make_plan(repetitions=1)
    records = run_healthy(plan)
    stopped = replace(records[-1], turns=records[-1].turns[:1], stop=stop_behind(0))
    records = (*records[:-1], stopped)
    pairs = next(item for item in pair_cells(plan, records).contrasts if item.contrast.name == "path on")
    assert [(p.a.conversation, p.a.turn) for p in pairs.pairs] == [("copy-1", 0)]
    assert [(m.cell, m.reason, m.pairs) for m in pairs.missing] == [(stopped.spec, "ended early", 3)]
    comparison, verdict = judge_run(plan, records)
    assert (verdict.status, comparison.cells_measured) == ("inconclusive", 3)
    note = "cell 'serve/3 quick 0' was ended early at copy-1 turn 1: tokens is not as in chat/3; "
    assert note + "3 turns were not asked" in comparison.notes


def test_a_cell_that_was_run_again_to_its_end_counts_and_must_equal_itself():
    def differs(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=b"XXXX" + turn.text[4:])

    plan = make_plan(repetitions=1)
    records = run_healthy(plan)
    whole = replace(records[-1], attempt=1)
    for bend, status in ((lambda _, turn: turn, "pass"), (differs, "inconclusive")):
        first = tuple(bend(whole.spec, turn) for turn in whole.turns[:1])
        stopped = replace(whole, attempt=0, turns=first, stop=stop_behind(0))
        comparison, verdict = judge_run(plan, (*records[:-1], stopped, whole))
        assert (verdict.status, comparison.cells_measured) == (status, 4)
        assert any("no fault was proven by it, so the cell was run again" in n for n in comparison.notes)
    assert verdict.verdict_class == "nondeterministic"
    assert "serve/3 does not equal itself in quick, copy-1, turn 1" in verdict.sentence
