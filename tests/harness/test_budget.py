"""A plan is cut to its budget, says what it leaves out, and probes are paid from the rest."""

from dataclasses import replace

import pytest

from engine_bindings.errors import UsageError
from harness.budget import cut_plan, describe_price, end_at_fault, select_affordable
from harness.plan import CellSpec, Plan, ProbeMark
from harness.probes import Probe, price_probes
from harness.transcript import CellRecord, TurnRecord
from tests.harness.run_builders import CHAT_OFF, judge_run, make_plan, make_scenario, run_healthy


def test_a_plan_within_its_budget_is_left_alone():
    plan = make_plan()
    cut = cut_plan(plan, plan.worst_case_tokens)
    assert (cut.cells, cut.left_out) == (plan.cells, ())


def test_repetitions_go_first_and_then_the_last_conversations():
    plan = make_plan(make_scenario("first"), make_scenario("second"))
    cut = cut_plan(plan, plan.worst_case_tokens // 4 - 1)
    assert cut.repetitions == 1
    assert cut.left_out == (
        "left out to keep to the budget: every repetition but the first",
        "left out to keep to the budget: conversation 'code-1' of 'second'",
        "left out to keep to the budget: scenario 'second'",
        "left out to keep to the budget: conversation 'code-1' of 'first'",
    )
    assert cut.worst_case_tokens <= plan.worst_case_tokens // 4 - 1


def test_what_was_left_out_is_in_the_notes_and_the_rest_can_pass():
    plan = cut_plan(make_plan(), 200)
    comparison, verdict = judge_run(plan, run_healthy(plan))
    assert verdict.status == "pass"
    assert set(plan.left_out) <= set(comparison.notes)


def test_a_budget_for_less_than_one_conversation_is_refused_with_the_price():
    with pytest.raises(UsageError, match="takes 192 tokens on the 4 arms"):
        cut_plan(make_plan(), 191)


def test_probes_run_while_they_fit():
    plan = cut_plan(make_plan(), 300)
    mark = ProbeMark(kind="cold", conversation="copy-1", turn=0)
    spec = CellSpec(arm=CHAT_OFF, scenario="quick", repetition=0, probe=mark)
    probe = Probe(spec=spec, scenario=make_scenario(turns=1), settings=())
    assert probe.worst_case_tokens == 48
    assert select_affordable(plan, (probe, probe), 252) == ((probe,), (probe,))
    assert select_affordable(make_plan(), (probe, probe), 10**9) == ((probe, probe), ())


def run_with_a_flip(budget_tokens: int) -> tuple[Plan, tuple[CellRecord, ...]]:
    """Return a run of 768 tokens in which drafts flip a token, with so many tokens to spend."""

    def flip(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        first = (turn.conversation, turn.turn) == ("copy-1", 0)
        return replace(turn, text=b"X" + turn.text[1:]) if first and spec.arm.depth else turn

    plan = replace(make_plan(), budget_tokens=budget_tokens)
    return plan, run_healthy(plan, flip)


def test_probes_that_do_not_fit_are_noted_and_the_finding_says_so():
    plan, records = run_with_a_flip(780)
    comparison, verdict = judge_run(plan, records)
    why = "the evidence is missing because the next probes take 36 tokens and the budget of 780 has 12 left"
    keys = "'serve/0 quick 0 cold copy-1.1', 'serve/3 quick 0 cold copy-1.1'"
    assert f"not run to keep to the budget: {keys}; {why}" in comparison.notes
    assert verdict.status == "inconclusive"
    assert why in verdict.sentence
    assert all(why in finding.reason for finding in comparison.findings if finding.wanted)


@pytest.mark.parametrize("budget_tokens", [768 + 36, 10**6])
def test_probes_that_fit_are_no_note(budget_tokens: int):
    plan, records = run_with_a_flip(budget_tokens)
    comparison, _ = judge_run(plan, records)
    assert not any("budget" in note for note in comparison.notes)
    assert not any("budget" in finding.reason for finding in comparison.findings)


def test_the_price_names_cells_probes_and_budget():
    assert describe_price(cut_plan(make_plan(), 900)) == (
        "768 decoded at most, 337 more at most to look into one difference; never more than 900 in all"
    )


def test_the_price_counts_what_may_have_to_be_run_again():
    once = make_plan(repetitions=1)
    # Everything before the difference on both arms, where no arm was repeated.
    assert price_probes(once) == 337 + 2 * 96
    # A cell of 96 that ends behind four fifths for nothing, and three that end behind half.
    assert describe_price(end_at_fault(once)).endswith(
        "220 more at most for cells that end early and prove nothing"
    )


def test_a_run_that_ends_at_its_first_fault_begins_with_what_is_cheap_and_drafts():
    plan = make_plan(make_scenario("dear", cap=48), make_scenario("cheap"), repetitions=2)
    ordered = end_at_fault(plan)
    assert ordered.until == "fault"
    assert sorted(spec.key for spec in ordered.cells) == sorted(spec.key for spec in plan.cells)
    arms = ("serve/3", "serve/0", "chat/3", "chat/0")
    assert [spec.key for spec in ordered.cells] == [
        f"{arm} {scenario} {repetition}"
        for repetition in (0, 1)
        for scenario in ("cheap", "dear")
        for arm in arms
    ]
