"""What a difference proves, and what leaves a contrast open."""

from dataclasses import replace

from harness.contrasts import ContrastResult, list_found
from harness.plan import CellSpec, Plan
from harness.transcript import TurnRecord
from tests.harness.run_builders import (
    CHAT_ON,
    SERVE_ON,
    Bend,
    judge_run,
    make_plan,
    make_scenario,
    run_healthy,
)


def results(plan: Plan, bend: Bend) -> dict[str, ContrastResult]:
    comparison, _ = judge_run(plan, run_healthy(plan, bend))
    return {result.contrast.name: result for result in comparison.contrasts}


def healthy(_: object, turn: TurnRecord) -> TurnRecord:
    return turn


def change_serve_on(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if (spec.arm, turn.conversation, turn.turn) != (SERVE_ON, "copy-1", 0):
        return turn
    return replace(turn, text=b"XXXX" + turn.text[4:])


def test_a_healthy_run_is_identical_everywhere():
    found = results(make_plan(), healthy)
    assert {result.state for result in found.values()} == {"identical"}
    assert found["path on"].pairs_checked == found["path on"].pairs_identical == 8
    assert found["path on"].tokens_compared == 8 * 24
    assert found["path on"].bytes_compared == 8 * 24 * 4


def test_a_changed_token_breaks_the_contrasts_of_its_arm_and_no_other():
    found = results(make_plan(), change_serve_on)
    broken = {name: result.state for name, result in found.items() if result.state != "identical"}
    # Between depths it might be a near-tie, as long as no probe has shown that it is none.
    assert broken == {"path on": "different", "speculation serve": "undecided"}


def test_after_the_first_difference_a_conversation_is_left_out_and_counted():
    result = results(make_plan(), change_serve_on)["path on"]
    assert (result.pairs_checked, result.pairs_identical, result.excluded_after_difference) == (6, 4, 2)
    (found,) = result.found
    assert (found.conversation, found.turn, found.repetitions_a, found.repetitions_b) == (
        "copy-1",
        0,
        (0, 1),
        (0, 1),
    )


def end_serve_on_otherwise(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if (spec.arm, turn.conversation) != (SERVE_ON, "copy-1"):
        return turn
    return replace(turn, finish="length" if turn.finish == "stop" else "stop")


def test_after_a_difference_that_leaves_the_answer_the_later_turns_are_compared_all_the_same():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        turn = end_serve_on_otherwise(spec, turn)
        changes = (spec.arm, turn.conversation, turn.turn) == (SERVE_ON, "copy-1", 1)
        return replace(turn, text=b"XXXX" + turn.text[4:]) if changes else turn

    result = results(make_plan(make_scenario(turns=3)), bend)["path on"]
    told = [(found.turn, [item.field for item in found.differences]) for found in result.found]
    assert told == [(0, ["finish_reason"]), (1, ["tokens", "finish_reason"])]
    assert (result.pairs_identical, result.excluded_after_difference, result.repeated_differences) == (
        6,
        2,
        0,
    )


def test_a_difference_of_the_same_kind_is_told_once_for_each_conversation():
    result = results(make_plan(make_scenario(turns=3)), end_serve_on_otherwise)["path on"]
    assert [found.turn for found in result.found] == [0]
    assert (result.pairs_checked, result.pairs_identical, result.repeated_differences) == (12, 6, 4)


def test_other_tokens_are_listed_before_other_counts_behind_the_first_difference():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm == SERVE_ON and turn.conversation == "code-1" and turn.turn == 1:
            return replace(turn, text=b"XXXX" + turn.text[4:])
        return end_serve_on_otherwise(spec, turn)

    listed = list_found(results(make_plan(), bend).values())
    assert [found.in_tokens for _, found in listed] == [False, True, True, False]


def test_with_one_repetition_a_difference_proves_nothing():
    result = results(make_plan(repetitions=1), change_serve_on)["path on"]
    assert result.state == "undecided"
    assert "cannot be told from nondeterminism" in result.reasons[0]
    assert results(make_plan(repetitions=1), healthy)["path on"].state == "identical"
    assert results(make_plan(repetitions=1), healthy)["self chat/0"].state == "not checked"


def test_an_arm_that_does_not_equal_itself_leaves_its_contrasts_open():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return change_serve_on(spec, turn) if spec.repetition == 1 else turn

    found = results(make_plan(), bend)
    assert found["self serve/3"].state == "different"
    assert (found["path on"].state, found["speculation serve"].state) == ("undecided", "undecided")
    assert "does not equal itself" in found["path on"].reasons[0]
    assert found["path off"].state == "identical"


def test_an_unsteady_arm_leaves_even_its_identical_scenarios_open():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        unsteady = (spec.arm, spec.repetition, turn.conversation, spec.scenario) == (
            CHAT_ON,
            1,
            "copy-1",
            "a",
        )
        return replace(turn, forwards=7, emitted_tokens=25) if unsteady else turn

    found = results(make_plan(make_scenario("a"), make_scenario("b")), bend)
    assert found["self chat/3"].found[0].differences[0].field == "token_count"
    assert found["speculation chat"].state == "undecided"


def test_void_cells_leave_their_contrasts_open_but_a_difference_elsewhere_stays_proven():
    def void_in_a(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm == SERVE_ON and spec.scenario == "a":
            return replace(turn, drafted_tokens=0, accepted_tokens=0, forwards=24)
        return turn

    plan = make_plan(make_scenario("a"), make_scenario("b"))
    result = results(plan, void_in_a)["path on"]
    assert (result.state, result.excluded_void, result.pairs_checked) == ("undecided", 8, 8)

    def both(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return void_in_a(spec, turn) if spec.scenario == "a" else change_serve_on(spec, turn)

    assert results(plan, both)["path on"].state == "different"


def test_a_difference_in_a_void_cell_is_none():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        changed = change_serve_on(spec, turn)
        if spec.arm == SERVE_ON:
            return replace(changed, drafted_tokens=0, accepted_tokens=0, forwards=24)
        return changed

    assert results(make_plan(), bend)["path on"].found == ()


def test_missing_cells_leave_a_contrast_open():
    plan = make_plan()
    records = run_healthy(plan)[:-1]
    comparison, _ = judge_run(plan, records)
    open_points = {r.contrast.name: r.reasons for r in comparison.contrasts if r.state == "undecided"}
    last = plan.cells[-1]
    assert open_points == {
        "path off": (f"4 turns left out: cell '{last.key}' not measured",),
        "speculation chat": (f"4 turns left out: cell '{last.key}' not measured",),
    }


def test_of_many_missing_cells_the_first_are_named():
    plan = make_plan(*(make_scenario(name) for name in "abcde"), repetitions=1)
    result = judge_run(plan, ())[0].contrasts[4]
    named = ", ".join(f"cell 'chat/0 {name} 0'" for name in "abc")
    assert result.reasons == (f"20 turns left out: {named} and 2 more not measured",)


def test_an_arm_without_a_second_run_is_not_checked_against_itself():
    plan = make_plan()
    own = judge_run(plan, run_healthy(plan)[:-1])[0].contrasts[0]
    assert own.state == "not checked"
    assert own.reasons == (f"4 turns left out: cell '{plan.cells[-1].key}' not measured",)


def test_sampled_turns_are_left_out_and_a_run_of_nothing_else_is_said_to_be_sampled():
    result = results(make_plan(make_scenario(temperature=0.7)), healthy)["path off"]
    assert (result.state, result.excluded_sampled, result.reasons) == (
        "sampled",
        8,
        (),
    )
    mixed = make_plan(make_scenario("a"), make_scenario("b", temperature=0.7))
    assert results(mixed, healthy)["path off"].state == "identical"


def test_speculation_that_could_draft_nothing_proves_nothing_about_speculation():
    found = results(make_plan(make_scenario(cap=1)), healthy)
    assert found["path on"].state == found["speculation chat"].state == "undecided"
    assert "could draft nothing" in found["path on"].reasons[0]
    assert found["path off"].state == "identical"
    assert (
        results(make_plan(make_scenario("a", cap=1), make_scenario("b")), healthy)["path on"].state
        == "identical"
    )


def test_fields_that_one_side_does_not_report_are_counted():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, prompt_tokens=None, cached_tokens=None) if spec.arm == CHAT_ON else turn

    result = results(make_plan(), bend)["path on"]
    assert [(count.field, count.pairs) for count in result.not_compared] == [
        ("cached_tokens", 8),
        ("prompt_tokens", 8),
    ]
    assert result.state == "identical"
