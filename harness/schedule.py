"""The timed cells of a plan: pairs in balanced order, each cell in a fresh process, settled before the first
runs.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine_bindings.errors import UsageError
from harness.plan import Arm, CellSpec, Contrast, Plan
from harness.record_json import to_dict
from harness.scenario import Scenario
from harness.speed_plan import FIXED, SEQUENTIAL, SpeedPlan

REPETITIONS_OF_BLOCK = 2


def list_speed_contrasts(plan: Plan) -> tuple[Contrast, ...]:
    """Return the contrasts whose speed can be judged: of builds that run here, or else of depths."""
    live = [c for c in plan.contrasts if not (plan.is_recorded(c.a) or plan.is_recorded(c.b))]
    builds = tuple(contrast for contrast in live if contrast.kind == "build")
    return builds or tuple(contrast for contrast in live if contrast.kind == "speculation")


def is_timed(plan: Plan, spec: CellSpec) -> bool:
    """Say whether a cell is there for its times; the first repetition warms the machine up."""
    return (
        plan.speed is not None
        and spec.probe is None
        and spec.repetition > 0
        and spec.arm.label in plan.speed.arms
    )


def number_block(spec: CellSpec) -> tuple[str, int]:
    """Return the block of a timed cell: its scenario, and which two of its repetitions."""
    return spec.scenario, (spec.repetition - 1) // REPETITIONS_OF_BLOCK


def add_timed_cells(
    plan: Plan,
    *,
    pairs: int,
    alpha: float,
    bound_percent: float,
    sequential: bool,
    seed: int,
    only: Sequence[str] = (),
) -> Plan:
    """Return the plan with the timed cells behind the others.

    Args:
        plan: what decides whether the tokens are the same.
        pairs: timed pairs of cells of each contrast, at least; rounded up to whole blocks of every scenario.
        alpha: how often equal arms may be called different.
        bound_percent: how much slower is let pass.
        sequential: the run may end early.
        seed: of the order.
        only: labels of arms; a contrast is judged when it has one of them. Empty for all.

    Raises:
        UsageError: no contrast to judge, an arm that is in none, or more tokens than the budget.
    """
    contrasts = _select_contrasts(plan, only)
    arms = tuple(dict.fromkeys(arm for contrast in contrasts for arm in (contrast.a, contrast.b)))
    scenarios = _list_scenarios(plan, arms)
    in_block = len(scenarios) * REPETITIONS_OF_BLOCK
    blocks = -(-pairs // in_block)
    repetitions = blocks * REPETITIONS_OF_BLOCK
    first = [spec for spec in plan.cells if spec.arm not in arms or spec.repetition == 0]
    timed = _order_timed(_group_arms(contrasts), scenarios, blocks, seed)
    timed_plan = replace(plan, repetitions=max(plan.repetitions, 1 + repetitions), cells=(*first, *timed))
    speed = SpeedPlan(
        contrasts=tuple(contrast.name for contrast in contrasts),
        arms=tuple(arm.label for arm in arms),
        pairs=repetitions * len(scenarios),
        repetitions=repetitions,
        alpha=alpha,
        bound_percent=bound_percent,
        sequential=sequential,
        seed=seed,
        stopping_rule=SEQUENTIAL if sequential else FIXED,
    )
    timed_plan = replace(timed_plan, speed=speed)
    _check_budget(timed_plan)
    return replace(timed_plan, speed=replace(speed, digest=digest_plan(timed_plan)))


def digest_plan(plan: Plan) -> str:
    """Return the SHA-256 of all that was settled about speed, with the prompts and the order."""
    if plan.speed is None:
        return ""
    settled = {
        "prompts": [to_dict(scenario) for scenario in plan.scenarios],
        "order": [spec.key for spec in plan.cells if is_timed(plan, spec)],
        "speed": to_dict(replace(plan.speed, digest="")),
    }
    return hashlib.sha256(json.dumps(settled, sort_keys=True).encode()).hexdigest()


def _select_contrasts(plan: Plan, only: Sequence[str]) -> list[Contrast]:
    found = list_speed_contrasts(plan)
    known = {arm.label for contrast in found for arm in (contrast.a, contrast.b)}
    if not found:
        raise UsageError("no two arms whose speed can be compared", hint="two builds, or a depth above 0")
    if unknown := [label for label in only if label not in known]:
        raise UsageError(
            f"no arm {unknown[0]!r} whose speed can be judged", hint=f"one of {', '.join(sorted(known))}"
        )
    return [c for c in found if not only or c.a.label in only or c.b.label in only]


def _list_scenarios(plan: Plan, arms: Sequence[Arm]) -> list[Scenario]:
    """Return the scenarios that all the arms run and whose answers can be held against each other."""
    run = {(spec.arm, spec.scenario) for spec in plan.cells}
    able = [
        scenario
        for scenario in plan.scenarios
        if scenario.temperature == 0 and all((arm, scenario.name) in run for arm in arms)
    ]
    if not able:
        names = ", ".join(arm.label for arm in arms)
        raise UsageError(f"no scenario that can be timed on {names}", hint="one at temperature 0")
    return able


def _group_arms(contrasts: Sequence[Contrast]) -> list[list[Arm]]:
    """Return arms that are held against the same one beside each other, that one first."""
    groups: dict[Arm, list[Arm]] = {}
    for contrast in contrasts:
        groups.setdefault(contrast.a, [contrast.a]).append(contrast.b)
    return list(groups.values())


def _order_timed(
    groups: Sequence[Sequence[Arm]], scenarios: Sequence[Scenario], blocks: int, seed: int
) -> list[CellSpec]:
    """Order each block A B B A or B A A B, so that a linear drift adds the same to both arms.

    Of each two blocks one is of either kind, and a coin says which comes first: a disturbance in step with
    any fixed order would pass for an effect.
    """
    generator = np.random.default_rng(seed)
    cells: list[CellSpec] = []
    flipped = False
    for number in range(blocks * len(scenarios)):
        block, index = divmod(number, len(scenarios))
        flipped = bool(generator.integers(2)) if number % 2 == 0 else not flipped
        row = [arm for group in groups for arm in (group[::-1] if flipped else group)]
        for repetition, order in ((1, row), (2, row[::-1])):
            cells += [
                CellSpec(
                    arm=arm,
                    scenario=scenarios[index].name,
                    repetition=block * REPETITIONS_OF_BLOCK + repetition,
                )
                for arm in order
            ]
    return cells


def _check_budget(plan: Plan) -> None:
    if plan.budget_tokens is not None and plan.worst_case_tokens > plan.budget_tokens:
        raise UsageError(
            f"--budget {plan.budget_tokens}: "
            f"with the timed pairs the plan takes {plan.worst_case_tokens:,} tokens",
            hint="fewer --pairs, a shorter scenario, or one arm with --timed",
        )
