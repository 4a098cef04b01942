"""What is drawn depends on the seed alone, and reaches everything."""

from collections import Counter
from dataclasses import replace

from harness.plan import build_plan
from harness.selfcheck.draws import (
    DEPTHS,
    MAX_CONVERSATIONS,
    MAX_TOKENS,
    draw_defects,
    draw_healthy,
    shuffle_cells,
)
from tests.harness.run_builders import make_scenario
from tests.harness.selfcheck.selfcheck_samples import make_control, make_defect

SCENARIOS = (make_scenario("a", turns=1), make_scenario("b"), make_scenario("long", cap=500))


def test_one_seed_draws_the_same_again_and_another_seed_does_not():
    draws = [draw_healthy(SCENARIOS, 7, number) for number in range(30)]
    assert draws == [draw_healthy(SCENARIOS, 7, number) for number in range(30)]
    assert draws != [draw_healthy(SCENARIOS, 8, number) for number in range(30)]


def test_the_draws_reach_every_scenario_every_depth_and_every_order():
    draws = [draw_healthy(SCENARIOS, 1, number) for number in range(60)]
    assert Counter(draw.scenario.name for draw in draws) == {"a": 20, "b": 20, "long": 20}
    assert {draw.depth for draw in draws} == set(DEPTHS)
    orders = {tuple(c.id for c in draw.scenario.conversations) for draw in draws if draw.scenario.name == "a"}
    assert orders == {("copy-1", "code-1"), ("code-1", "copy-1")}


def test_a_drawn_run_stays_short_but_has_a_conversation():
    for number in range(30):
        scenario = draw_healthy(SCENARIOS, 3, number).scenario
        assert 1 <= len(scenario.conversations) <= MAX_CONVERSATIONS
        assert scenario.worst_case_tokens <= MAX_TOKENS or len(scenario.conversations) == 1


def test_a_draw_of_many_conversations_is_said_in_one_line():
    (talk,) = make_scenario(turns=1).conversations[:1]
    many = tuple(replace(talk, id=f"draw-{number}") for number in range(120))
    draw = replace(
        draw_healthy(SCENARIOS, 1, 0), scenario=replace(make_scenario("sampled"), conversations=many)
    )
    assert draw.what.endswith(": " + ", ".join(f"draw-{number}" for number in range(8)) + " and 112 more")


def test_shuffled_cells_are_the_same_cells():
    plan = build_plan([make_scenario()], repetitions=1)
    shuffled = [shuffle_cells(plan, 1, number).cells for number in range(10)]
    assert all(set(cells) == set(plan.cells) and len(cells) == len(plan.cells) for cells in shuffled)
    assert len(set(shuffled)) > 1


def test_so_many_of_each_class_are_drawn_and_no_controls():
    defects = [make_defect(f"state-{i}", "state") for i in range(5)]
    defects += [make_defect(f"void-{i}", "void") for i in range(2)]
    defects += [make_defect("gone", "grammar", available=False), make_control()]
    drawn = draw_defects(defects, 1, 3)
    assert Counter(defect.verdict for defect in drawn) == {"state": 3, "void": 2}
    assert drawn == draw_defects(defects, 1, 3)
    assert any(draw_defects(defects, seed, 3) != drawn for seed in range(2, 10))
