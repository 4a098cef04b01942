"""Draws of a sampled scenario: which are tested against which, and what the verdict makes of it."""

from dataclasses import replace

import pytest

from harness.plan import CellSpec, Plan, build_plan
from harness.probes import plan_probes
from harness.scenario import Scenario, parse_scenario
from harness.transcript import TurnRecord
from harness.verdict import has_compared_arms
from tests.harness.run_builders import judge_run, make_scenario, run_healthy

TEXT = """
schema = 1
name = "drawn"
[defaults]
max_tokens = 2
temperature = 0.5
[[conversation]]
id = "c"
[[conversation.turn]]
user = "Say {draw}"
draws = 40
"""


def make_drawn_plan(draws: int = 40) -> Plan:
    drawn = parse_scenario(TEXT.replace("40", str(draws)), "s.toml", lambda name: "")
    return build_plan([drawn, make_scenario()])


def test_draws_are_numbered_conversations():
    scenario = make_drawn_plan().scenario("drawn")
    assert [c.id for c in scenario.conversations][::39] == ["c.draw-1", "c.draw-40"]
    assert scenario.conversations[39].turns[0].text == "Say 40"


def test_arms_that_draw_alike_pass_with_one_row_for_each_contrast_between_them():
    plan = make_drawn_plan()
    comparison, verdict = judge_run(plan, run_healthy(plan))
    assert [(row.contrast, row.group, row.test.pairs) for row in comparison.distributions] == [
        ("path off", "c", 40),
        ("path on", "c", 40),
        ("speculation chat", "c", 40),
        ("speculation serve", "c", 40),
    ]
    assert verdict.status == "pass"


def test_another_distribution_fails_and_says_so():
    def lean(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        often = spec.scenario == "drawn" and spec.arm.depth and int(turn.conversation.split("-")[1]) % 2
        return replace(turn, text=b"always") if often else turn

    plan = make_drawn_plan()
    comparison, verdict = judge_run(plan, run_healthy(plan, lean))
    assert {row.contrast for row in comparison.distributions if row.test.differs} == {
        "speculation chat",
        "speculation serve",
    }
    assert verdict.status == "fail"
    assert verdict.sentence.startswith(
        "FAIL: state: chat/0 and chat/3 in drawn, c, turn 1: draw from different distributions (p = 0.0001"
    )


def test_too_few_draws_are_said_to_be_too_few_and_prove_nothing():
    plan = make_drawn_plan(8)
    comparison, verdict = judge_run(plan, run_healthy(plan))
    assert comparison.distributions[0].sentence.endswith("too few to test, 30 are needed")
    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "unproven")
    assert "8 draws" in verdict.sentence


def parse_drawn(text: str = TEXT) -> Scenario:
    return parse_scenario(text, "s.toml", lambda name: "")


def test_a_sampled_scenario_alone_passes_and_says_what_was_tested():
    plan = build_plan([parse_drawn()])
    comparison, verdict = judge_run(plan, run_healthy(plan))
    assert {c.state for c in comparison.contrasts if c.contrast.kind != "self"} == {"sampled"}
    assert verdict.status == "pass"
    assert verdict.sentence == (
        "PASS: sampled answers at depth 0 and 3: 4 tests of 40 draws show no other distribution, error rate "
        "0.001 each, and each arm repeats its own (4 arms, 160 pairs, 320 tokens compared)"
    )
    assert not has_compared_arms(comparison)


def test_it_does_not_say_that_arms_repeat_themselves_when_they_ran_once():
    plan = build_plan([parse_drawn()], repetitions=1)
    _, verdict = judge_run(plan, run_healthy(plan))
    assert verdict.status == "pass"
    assert "repeats its own" not in verdict.sentence


def test_a_pass_beside_other_scenarios_tells_of_the_tests_too():
    plan = make_drawn_plan()
    comparison, verdict = judge_run(plan, run_healthy(plan))
    assert "gives the same tokens" in verdict.sentence
    assert "; 4 tests of 40 draws show no other distribution, error rate 0.001 each)" in verdict.sentence
    assert has_compared_arms(comparison)


def test_sampled_answers_without_draws_prove_nothing():
    plan = build_plan([parse_drawn(TEXT.replace("draws = 40", ""))])
    _, verdict = judge_run(plan, run_healthy(plan))
    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "unproven")
    assert "no turn has draws that could be tested" in verdict.sentence


TWICE = (
    TEXT
    + """
[[conversation]]
id = "twice"
[[conversation.turn]]
user = "Say"
[[conversation.turn]]
user = "Say"
after = 0
same_as = [1]
"""
)


@pytest.mark.parametrize(("draws_repeat", "state"), [(True, "undecided"), (False, "sampled")])
def test_one_prompt_and_seed_twice_in_one_process_give_one_answer_where_the_engine_says_so(
    draws_repeat: bool, state: str
):
    def move_on(_: CellSpec, turn: TurnRecord) -> TurnRecord:
        second = (turn.conversation, turn.turn) == ("twice", 1)
        return replace(turn, text=b"xxxx" + turn.text[4:]) if second else turn

    plan = replace(build_plan([parse_drawn(TWICE)]), draws_repeat=draws_repeat)
    records = run_healthy(plan, move_on)
    comparison, verdict = judge_run(plan, records)
    assert {c.state for c in comparison.contrasts if c.contrast.kind == "within"} == {state}
    assert plan_probes(plan, comparison, records) == ()
    if draws_repeat:
        assert (verdict.status, verdict.verdict_class) == ("inconclusive", "nondeterministic")
    else:
        assert verdict.status == "pass"


def test_an_arm_is_held_against_itself_at_any_temperature():
    def unsteady(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.scenario == "drawn" and spec.repetition:
            return replace(turn, text=b"x" + turn.text[1:])
        return turn

    plan = make_drawn_plan()
    comparison, verdict = judge_run(plan, run_healthy(plan, unsteady))
    assert {c.state for c in comparison.contrasts if c.contrast.kind == "self"} == {"different"}
    assert verdict.status == "inconclusive"
