"""When a running cell is ended early: for what it shows, where that saves tokens, and once for each thing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.plan import CellSpec, Plan
from harness.stopping import StopJudge, reserve_tokens
from harness.transcript import CellRecord, Stop, TurnRecord
from tests.harness.run_builders import (
    CHAT_ON,
    SERVE_OFF,
    SERVE_ON,
    Bend,
    make_plan,
    make_scenario,
    run_healthy,
)


def flip(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    """Change the first answer of serve mode with drafts."""
    hit = spec.arm == SERVE_ON and (turn.conversation, turn.turn) == ("copy-1", 0)
    return replace(turn, text=b"XXXX" + turn.text[4:]) if hit else turn


def flip_turn(number: int) -> Bend:
    """Change an answer of serve mode with drafts, counted from 1 over two conversations of five turns."""

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        place = 5 * (turn.conversation == "code-1") + turn.turn + 1
        hit = spec.arm == SERVE_ON and place == number
        return replace(turn, text=b"XXXX" + turn.text[4:]) if hit else turn

    return bend


def plan_of(turns: int = 2) -> Plan:
    return make_plan(make_scenario(turns=turns), repetitions=1)


def split(records: Sequence[CellRecord], spec: CellSpec) -> tuple[list[CellRecord], CellRecord]:
    """Return the records before a cell, and its own."""
    own = next(record for record in records if record.spec == spec)
    return [record for record in records if record is not own], own


def check(plan: Plan, bend: Bend, turns: int, judge: StopJudge | None = None) -> Stop | None:
    """Show a judge so many turns of serve/3 behind all other cells; return what it says of the last."""
    spec = CellSpec(arm=SERVE_ON, scenario="quick", repetition=0)
    before, own = split(run_healthy(plan, bend), spec)
    partial = replace(own, turns=own.turns[:turns])
    return (judge or StopJudge(plan)).check(before, partial, partial.turns[-1:])


def test_a_cell_ends_behind_the_turn_that_differs_and_says_from_what():
    assert check(plan_of(), flip, 1) == Stop(
        conversation="copy-1", turn=0, reason="tokens is not as in chat/3", turns_left=3
    )


def test_turns_behind_a_difference_are_no_news():
    assert check(plan_of(turns=4), flip, 2) is None


def test_what_equals_the_other_arms_goes_on():
    assert check(plan_of(), lambda _, turn: turn, 1) is None


def test_what_was_looked_into_once_is_not_looked_into_again():
    judge = StopJudge(plan_of())
    assert check(plan_of(), flip, 1, judge) is not None
    assert check(plan_of(), flip, 1, judge) is None


@pytest.mark.parametrize(("turns", "stops"), [(8, True), (9, False)])
def test_a_cell_is_ended_only_where_that_saves_a_quarter_of_what_it_took(turns: int, stops: bool):
    assert (check(plan_of(turns=5), flip_turn(turns), turns) is not None) == stops


@pytest.mark.parametrize(("turns", "stops"), [(5, True), (6, False)])
def test_after_a_stop_that_proved_nothing_it_must_save_as_much_as_it_took(turns: int, stops: bool):
    judge = StopJudge(plan_of(turns=5))
    assert check(plan_of(turns=5), flip, 1, judge) is not None
    assert (check(plan_of(turns=5), flip_turn(turns), turns, judge) is not None) == stops


def test_a_count_that_cannot_be_right_needs_no_other_cell():
    def overcount(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, accepted_tokens=(turn.drafted_tokens or 0) + 1) if spec.arm == SERVE_ON else turn

    plan = plan_of()
    spec = CellSpec(arm=SERVE_ON, scenario="quick", repetition=0)
    _, own = split(run_healthy(plan, overcount), spec)
    partial = replace(own, turns=own.turns[:1])
    stop = StopJudge(plan).check([], partial, partial.turns)
    assert stop is not None
    assert stop.reason.startswith("accepted ")


def test_an_arm_that_has_not_drafted_yet_shows_nothing():
    def idle(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        turn = flip(spec, turn)
        if spec.arm != SERVE_ON:
            return turn
        return replace(turn, drafted_tokens=0, accepted_tokens=0, forwards=turn.emitted_tokens)

    assert check(plan_of(), idle, 1) is None


def test_sampled_answers_differ_by_design():
    plan = make_plan(make_scenario(turns=2, temperature=0.8), repetitions=1)
    assert check(plan, flip, 1) is None


@pytest.mark.parametrize(("room", "stops"), [(0, True), (-1, False)])
def test_a_budget_leaves_room_to_run_the_cell_again(room: int, stops: bool):
    plan = plan_of()
    cell = plan.scenarios[0].worst_case_tokens
    # Three cells are done, one turn of the fourth too, and the whole fourth may be needed once more.
    plan = replace(plan, budget_tokens=3 * cell + 24 + cell + room)
    assert (check(plan, flip, 1) is not None) == stops


def test_cells_that_are_not_at_their_end_are_reserved_for():
    plan = plan_of()
    records = run_healthy(plan)
    cell = plan.scenarios[0].worst_case_tokens
    stopped = replace(records[0], stop=Stop(conversation="copy-1", turn=0, reason="", turns_left=3))
    assert reserve_tokens(plan, records) == 0
    assert reserve_tokens(plan, records[:3]) == cell
    assert reserve_tokens(plan, (stopped, *records[1:])) == cell
    assert reserve_tokens(plan, (stopped, *records[1:], replace(records[0], attempt=1))) == 0


def test_both_arms_of_a_contrast_see_it():
    plan = plan_of()
    records = run_healthy(plan, flip)
    for arm in (CHAT_ON, SERVE_OFF):
        before, own = split(records, CellSpec(arm=arm, scenario="quick", repetition=0))
        partial = replace(own, turns=own.turns[:1])
        stop = StopJudge(plan).check(before, partial, partial.turns)
        assert stop is not None
        assert stop.reason == "tokens is not as in serve/3"
