"""The prefill table: what is expected of each turn, and what is a fault."""

from dataclasses import replace

import pytest

from harness.prefill import PrefillRow
from harness.scenario import Scenario
from harness.transcript import TurnRecord
from tests.harness.run_builders import CHAT_ON, Bend, judge_run, make_plan, make_scenario, run_healthy


def healthy(_: object, turn: TurnRecord) -> TurnRecord:
    return turn


def table(bend: Bend = healthy, scenario: Scenario | None = None) -> dict[tuple[str, str, int], PrefillRow]:
    plan = make_plan(scenario or make_scenario())
    rows = judge_run(plan, run_healthy(plan, bend))[0].prefill
    return {(row.arm.label, row.conversation, row.turn): row for row in rows}


def declare(prompt_tokens: int, cached_tokens: int) -> Scenario:
    scenario = make_scenario()
    first = scenario.conversations[0]
    turn = replace(first.turns[1], expect_prompt_tokens=prompt_tokens, expect_cached_tokens=cached_tokens)
    return replace(
        scenario,
        conversations=(replace(first, turns=(first.turns[0], turn)), *scenario.conversations[1:]),
    )


def test_a_turn_that_continues_the_last_one_finds_its_prompt_and_answer_in_the_cache():
    rows = table()
    before, row = rows["chat/0", "copy-1", 0], rows["chat/0", "copy-1", 1]
    assert (before.expected_cached_tokens, before.state) == (None, "no expectation")
    assert row.expected_cached_tokens == (before.prompt_tokens or 0) + 24 == row.cached_tokens
    assert (row.state, row.declared) == ("as expected", False)
    assert row.repetitions == (0, 1)


def test_another_prefix_than_derived_is_only_a_remark():
    row = table(lambda _, t: replace(t, cached_tokens=t.cached_tokens and t.cached_tokens - 1))[
        "chat/0", "copy-1", 1
    ]
    assert row.state == "not as derived"


@pytest.mark.parametrize(("cached", "state"), [(38, "as expected"), (37, "wrong")])
def test_a_declared_prefix_is_a_must_when_the_prompt_has_the_declared_length(cached: int, state: str):
    row = table(scenario=declare(48, cached))["chat/0", "copy-1", 1]
    assert (row.prompt_tokens, row.cached_tokens) == (48, 38)
    assert (row.state, row.declared, row.expected_cached_tokens) == (state, True, cached)


def test_a_declared_prefix_of_another_tokenizer_is_set_aside_and_noted():
    plan = make_plan(declare(50, 37))
    comparison, verdict = judge_run(plan, run_healthy(plan))
    row = next(row for row in comparison.prefill if row.turn == 1)
    assert (row.declared, row.state, row.expected_cached_tokens) == (False, "as expected", 38)
    assert verdict.status == "pass"
    assert any("another tokenizer" in note for note in comparison.notes)


@pytest.mark.parametrize(
    "changes",
    [{"finish": "stop-string"}, {"finish": "cancelled"}, {"emitted_tokens": None}, {"prompt_tokens": None}],
)
def test_nothing_is_derived_from_a_turn_whose_end_is_open(changes: dict[str, object]):
    def bend(_: object, turn: TurnRecord) -> TurnRecord:
        return replace(turn, **changes) if turn.turn == 0 else turn  # type: ignore[arg-type]

    plan = make_plan()
    records = run_healthy(plan)
    records = tuple(replace(r, turns=tuple(bend(None, t) for t in r.turns)) for r in records)
    rows = judge_run(plan, records)[0].prefill
    assert {row.expected_cached_tokens for row in rows} <= {None}


def test_nothing_is_derived_for_a_prompt_that_is_not_a_continuation():
    plan = make_plan()
    records = tuple(
        replace(r, turns=tuple(replace(t, prompt=b"new" + t.prompt) if t.turn else t for t in r.turns))
        for r in run_healthy(plan)
    )
    assert {row.state for row in judge_run(plan, records)[0].prefill} == {"no expectation"}


def test_a_typed_line_reports_no_prefix():
    row = table(lambda _, t: replace(t, prompt_tokens=None, cached_tokens=None))["serve/0", "copy-1", 1]
    assert (row.state, row.prefill_tokens) == ("not reported", 10)


def test_repetitions_that_disagree_have_rows_of_their_own():
    plan = make_plan()
    records = run_healthy(
        plan,
        lambda spec, t: (
            replace(t, cached_tokens=1)
            if (spec.repetition, spec.arm, t.turn, t.conversation) == (1, CHAT_ON, 1, "copy-1")
            else t
        ),
    )
    rows = [
        row
        for row in judge_run(plan, records)[0].prefill
        if (row.arm, row.conversation, row.turn) == (CHAT_ON, "copy-1", 1)
    ]
    assert [(row.repetitions, row.cached_tokens) for row in rows] == [((0,), 38), ((1,), 1)]


def test_rows_stand_in_the_order_of_the_scenario():
    plan = make_plan()
    rows = judge_run(plan, run_healthy(plan))[0].prefill
    assert [(row.conversation, row.turn) for row in rows[::4]] == [
        ("copy-1", 0),
        ("copy-1", 1),
        ("code-1", 0),
        ("code-1", 1),
    ]
    assert [row.arm.label for row in rows[:4]] == ["chat/0", "chat/3", "serve/0", "serve/3"]


def test_a_cache_of_blocks_may_reuse_less():
    plan = replace(make_plan(declare(48, 37)), exact_prefixes=False)
    rows = judge_run(plan, run_healthy(plan, lambda _, t: replace(t, cached_tokens=0)))[0].prefill

    assert {row.state for row in rows} == {"no expectation", "not as derived"}
    assert not any(row.declared or row.least_cached_tokens for row in rows)
