"""Draws of a sampled scenario: which are tested against which, and what the verdict makes of it."""

from dataclasses import replace

from harness.plan import CellSpec, Plan, build_plan
from harness.scenario import parse_scenario
from harness.transcript import TurnRecord
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
    assert "chat/0 and chat/3 draw from different distributions (p = 0.0001" in verdict.sentence


def test_too_few_draws_are_said_to_be_too_few():
    plan = make_drawn_plan(8)
    rows = judge_run(plan, run_healthy(plan))[0].distributions
    assert rows[0].sentence.endswith("too few to test, 30 are needed")


def test_an_arm_is_held_against_itself_at_any_temperature():
    def unsteady(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.scenario == "drawn" and spec.repetition:
            return replace(turn, text=b"x" + turn.text[1:])
        return turn

    plan = make_drawn_plan()
    comparison, verdict = judge_run(plan, run_healthy(plan, unsteady))
    assert {c.state for c in comparison.contrasts if c.contrast.kind == "self"} == {"different"}
    assert verdict.status == "inconclusive"
