"""Where a run that may end early has ended: what it left out was never wanted."""

from collections.abc import Iterable
from dataclasses import replace

from harness.plan import CellSpec, Plan
from harness.schedule import digest_plan, is_timed
from harness.transcript import CellRecord


def end_early(plan: Plan, records: Iterable[CellRecord]) -> Plan:
    """Return the plan of a run that its stopping rule ended, without the timed cells that were not run."""
    run = {record.spec for record in records}
    cells = tuple(spec for spec in plan.cells if spec in run or not is_timed(plan, spec))
    if plan.speed is None or cells == plan.cells or digest_plan(plan) != plan.speed.digest:
        return plan
    ended = replace(plan, cells=cells)
    return replace(ended, speed=replace(plan.speed, digest=digest_plan(ended)))


def list_looks(plan: Plan) -> frozenset[CellSpec]:
    """Return the cells behind which the run may end: the last of each row of arms, or none."""
    if plan.speed is None or not plan.speed.sequential:
        return frozenset()
    last = {(spec.scenario, spec.repetition): spec for spec in plan.cells if is_timed(plan, spec)}
    return frozenset(last.values())
