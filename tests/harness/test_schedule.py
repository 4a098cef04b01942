"""The order of timed cells, and what is settled before the first one."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.errors import UsageError
from harness.budget import cut_plan
from harness.builds import add_baseline, join_builds
from harness.early_end import list_looks
from harness.plan import Build, Plan
from harness.schedule import add_timed_cells, digest_plan, is_timed, list_speed_contrasts, number_block
from harness.speed_plan import FIXED, SEQUENTIAL
from tests.harness.run_builders import make_plan, make_scenario, run_healthy


def time(plan: Plan, **changes: object) -> Plan:
    options: dict[str, object] = {
        "pairs": 8,
        "alpha": 0.01,
        "bound_percent": 1.0,
        "sequential": False,
        "seed": 0,
        "only": ("pr:serve/3",) if plan.builds else (),
    }
    return add_timed_cells(plan, **{**options, **changes})  # type: ignore[arg-type]


def join() -> Plan:
    return join_builds([Build(name=name, engine="reference") for name in ("main", "pr")], [make_plan()] * 2)


def timed_builds(plan: Plan) -> list[str]:
    return [spec.arm.build for spec in plan.cells if is_timed(plan, spec)]


@given(st.integers(0, 1000), st.integers(1, 30))
def test_every_block_is_balanced_and_both_kinds_come_alike(seed: int, pairs: int):
    plan = time(join(), seed=seed, pairs=pairs)
    names = timed_builds(plan)
    blocks = [tuple(names[start : start + 4]) for start in range(0, len(names), 4)]
    kinds = Counter(blocks)
    assert set(kinds) <= {("main", "pr", "pr", "main"), ("pr", "main", "main", "pr")}
    assert abs(kinds["main", "pr", "pr", "main"] - kinds["pr", "main", "main", "pr"]) <= 1
    assert pairs <= len(names) // 2 < pairs + 2


def test_the_seed_decides_the_order():
    orders = {tuple(timed_builds(time(join(), seed=seed))) for seed in range(20)}
    assert len(orders) > 2
    assert time(join(), seed=3) == time(join(), seed=3)


def test_the_first_repetition_of_every_arm_stays_in_front():
    plan = time(join())
    numbers = [number for number, spec in enumerate(plan.cells) if is_timed(plan, spec)]
    assert numbers == list(range(numbers[0], len(plan.cells)))
    assert {spec.repetition for spec in plan.cells[numbers[0] :]} == set(range(1, 9))
    # Arms that are not timed keep their repetitions; those that are have one that warms up.
    before = Counter(spec.arm.label for spec in plan.cells[: numbers[0]])
    assert before["main:chat/0"] == 2
    assert before["pr:serve/3"] == 1
    assert len(set(plan.cells)) == len(plan.cells)


def test_a_block_holds_one_scenario():
    plan = join_builds(
        [Build(name=name, engine="reference") for name in ("main", "pr")],
        [make_plan(make_scenario("one"), make_scenario("two"))] * 2,
    )
    plan = time(plan, pairs=6)
    assert plan.speed is not None
    assert (plan.speed.pairs, plan.speed.repetitions) == (8, 4)
    cells = [spec for spec in plan.cells if is_timed(plan, spec)]
    for start in range(0, len(cells), 4):
        assert len({number_block(spec) for spec in cells[start : start + 4]}) == 1


def test_builds_are_judged_before_depths():
    assert [c.kind for c in list_speed_contrasts(join())] == ["build"] * 4
    assert [c.name for c in list_speed_contrasts(make_plan())] == ["speculation chat", "speculation serve"]
    plan = make_plan()
    baseline, _ = add_baseline(plan, plan, run_healthy(plan), "earlier")
    assert [c.kind for c in list_speed_contrasts(baseline)] == ["speculation"] * 2


def test_three_builds_stay_balanced_beside_their_baseline():
    plan = join_builds([Build(name=name, engine="reference") for name in "abc"], [make_plan()] * 3)
    names = timed_builds(time(plan, only=("a:serve/0",), pairs=2))
    assert names in (list("abccba"), list("cbaabc"))


def test_the_digest_holds_all_that_was_settled():
    plan = time(join())
    assert plan.speed is not None
    assert plan.speed.digest == digest_plan(plan)
    others = [
        time(join(), **change)
        for change in (
            {"seed": 1},
            {"alpha": 0.02},
            {"bound_percent": 2.0},
            {"sequential": True},
            {"pairs": 10},
        )
    ]
    digests = {plan.speed.digest, *(other.speed.digest for other in others if other.speed)}
    assert len(digests) == 6
    worded = replace(plan, scenarios=(make_scenario(cap=25),))
    assert digest_plan(worded) != plan.speed.digest
    assert digest_plan(replace(plan, cells=plan.cells[:-1])) != plan.speed.digest


def test_the_stopping_rule_is_written_down():
    fixed, early = time(join()), time(join(), sequential=True)
    assert fixed.speed is not None
    assert early.speed is not None
    assert (fixed.speed.stopping_rule, early.speed.stopping_rule) == (FIXED, SEQUENTIAL)
    assert list_looks(fixed) == frozenset()
    looks = [early.cells.index(spec) for spec in list_looks(early)]
    first = next(number for number, spec in enumerate(early.cells) if is_timed(early, spec))
    assert sorted(looks) == list(range(first + 1, len(early.cells), 2))


def test_what_cannot_be_timed_is_refused():
    with pytest.raises(UsageError, match="no arm 'pr:serve/9'"):
        time(join(), only=("pr:serve/9",))
    with pytest.raises(UsageError, match="no scenario that can be timed"):
        time(make_plan(make_scenario(temperature=0.7)))
    with pytest.raises(UsageError, match="the plan takes"):
        time(cut_plan(make_plan(), 1000))
