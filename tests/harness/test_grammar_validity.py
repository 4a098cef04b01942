"""Valid, invalid and unfinished answers, and what they do to the verdict."""

from dataclasses import replace

import pytest

from harness.comparison import Comparison
from harness.grammar import Grammar, build_checker
from harness.grammar_validity import check_answer
from harness.plan import CellSpec
from harness.transcript import TurnRecord
from harness.verdict import Verdict
from tests.harness.run_builders import (
    SERVE_OFF,
    SERVE_ON,
    Bend,
    judge_run,
    make_plan,
    make_scenario,
    make_turn,
    run_healthy,
)

GBNF = 'root ::= "{" [a-z0-9]+ "}"\n'


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"text": b"{a}"}, "valid", ""),
        ({"text": b"(a)"}, "invalid", "leaves the grammar at byte 0"),
        ({"text": b"{a", "finish": "length"}, "unfinished", ""),
        ({"text": b"(a", "finish": "length"}, "unfinished", ""),
        ({"text": b"(a", "emitted_tokens": 24}, "unfinished", ""),
        ({"text": b"(a", "emitted_tokens": None}, "invalid", "leaves the grammar at byte 0"),
        ({"text": b"{a", "finish": "stop-string"}, "unfinished", ""),
        ({"text": b"so</think>{a}", "prompt": b"p<think>"}, "valid", ""),
        ({"text": b"{a}", "prompt": b"p<think>"}, "invalid", "ends before its reasoning does"),
        ({"text": b"so</think>{a}"}, "invalid", "leaves the grammar at byte 0"),
    ],
)
def test_state_of_an_answer(changes: dict[str, object], state: str, reason: str) -> None:
    turn = make_turn(**({"finish": "stop", "emitted_tokens": 6} | changes))

    assert check_answer(build_checker("gbnf", GBNF), turn, cap_tokens=24) == (state, reason)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "invalid"),
        ({"text": b"{a}"}, "valid"),
        ({"emitted_tokens": 24}, "unfinished"),
        ({"prompt_tokens": 4030}, "unfinished"),
        ({"prompt_tokens": None}, "unfinished"),
        ({"finish": "stop-string"}, "unfinished"),
    ],
)
def test_an_answer_called_length_with_room_left_ended_by_itself(
    changes: dict[str, object], state: str
) -> None:
    turn = make_turn(**({"text": b"{a", "finish": "length", "emitted_tokens": 6} | changes))

    checked = check_answer(build_checker("gbnf", GBNF), turn, cap_tokens=24, context_tokens=4096)
    assert checked[0] == state


def valid(turn: TurnRecord) -> TurnRecord:
    """Return the turn with an answer of the language that ends by itself."""
    # One token less than the cap: a draft less was kept, or a forward less was made.
    accepted = turn.accepted_tokens or 0
    return replace(
        turn,
        text=b"{" + turn.text[:90] + b"}",
        finish="stop",
        emitted_tokens=23,
        token_lengths=None,
        accepted_tokens=accepted - 1 if accepted else turn.accepted_tokens,
        forwards=turn.forwards if accepted else (turn.forwards or 0) - 1,
    )


def all_valid(_: CellSpec, turn: TurnRecord) -> TurnRecord:
    return valid(turn)


def invalid_on_serve(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    good = valid(turn)
    broken = (spec.arm, turn.conversation, turn.turn) == (SERVE_ON, "code-1", 1)
    return replace(good, text=b"(" + good.text[1:]) if broken else good


def judge_grammar(bend: Bend, *, binds: bool = True, repetitions: int = 2) -> tuple[Comparison, Verdict]:
    scenario = make_scenario("words", grammar=Grammar(kind="gbnf", text=GBNF, binds=binds))
    plan = make_plan(scenario, repetitions=repetitions)
    return judge_run(plan, run_healthy(plan, bend))


def test_rows_count_the_answers_of_each_arm() -> None:
    comparison, verdict = judge_grammar(all_valid)

    assert verdict.status == "pass"
    assert [row.arm.label for row in comparison.validity] == ["chat/0", "chat/3", "serve/0", "serve/3"]
    assert {(row.answers, row.valid, row.unfinished) for row in comparison.validity} == {(8, 8, 0)}
    assert [round(row.forwards_per_token or 0, 3) for row in comparison.validity] == [1.0, 0.261] * 2


@pytest.mark.parametrize("repetitions", [1, 2])
def test_invalid_answer_fails_its_arm_by_name_even_when_it_ran_once(repetitions: int) -> None:
    comparison, verdict = judge_grammar(invalid_on_serve, repetitions=repetitions)

    assert verdict.status == "fail"
    place = "serve/3 in words, code-1, turn 2: leaves the grammar at byte 0"
    counts = f"({repetitions} of {4 * repetitions} finished answers are invalid)"
    assert verdict.sentence == f"FAIL: grammar: an answer breaks the grammar that binds it: {place} {counts}"
    assert verdict.verdict_class == "grammar"
    assert f"{place} {counts}" in verdict.reasons
    (row,) = [row for row in comparison.validity if row.invalid]
    assert (row.arm, row.valid) == (SERVE_ON, 3 * repetitions)


def test_an_answer_that_the_engine_gave_up_fails_its_arm_even_where_its_text_is_valid() -> None:
    def given_up(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        gives_up = (spec.arm, turn.conversation, turn.turn) == (SERVE_ON, "code-1", 1)
        return replace(valid(turn), finish="broken-grammar" if gives_up else "stop")

    _, verdict = judge_grammar(given_up)

    place = "serve/3 in words, code-1, turn 2: the engine gave it up because it broke the grammar"
    assert (verdict.status, verdict.verdict_class) == ("fail", "grammar")
    assert f"{place} (2 of 8 finished answers are invalid)" in verdict.sentence


def test_grammar_that_does_not_bind_is_reported_and_only_the_text_judged() -> None:
    def all_invalid(_: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(valid(turn), text=b"(no)", deliveries=())

    comparison, verdict = judge_grammar(all_invalid, binds=False)

    assert {(row.valid, len(row.invalid)) for row in comparison.validity} == {(0, 8)}
    assert verdict.status == "pass"


def test_text_changed_by_drafts_of_a_grammar_fails_the_contrast() -> None:
    comparison, verdict = judge_grammar(invalid_on_serve, binds=False)

    assert verdict.sentence.startswith("FAIL: state: serve mode does not give the same tokens as chat mode")
    assert sum(len(row.invalid) for row in comparison.validity) == 2


def test_arm_that_finished_no_answer_leaves_the_verdict_open() -> None:
    def endless(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return turn if spec.arm == SERVE_OFF else valid(turn)

    comparison, verdict = judge_grammar(lambda spec, turn: turn)
    assert {row.unfinished for row in comparison.validity} == {8}
    assert verdict.status == "inconclusive"
    assert "serve/3 in words finished no answer before its cap" in " ".join(verdict.reasons)

    assert judge_grammar(endless)[1].status == "fail"


def test_scenario_without_a_grammar_has_no_rows() -> None:
    plan = make_plan()

    assert judge_run(plan, run_healthy(plan))[0].validity == ()
