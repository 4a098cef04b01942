"""Takes over cells that an earlier run measured: tokens and counts are the same again, times are not."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from engine_bindings.binding import Launch
from harness.pairing import select_latest
from harness.plan import CellSpec, Plan
from harness.schedule import is_timed
from harness.transcript import CellRecord


def select_reusable(
    plan: Plan,
    earlier: Plan,
    records: Iterable[CellRecord],
    *,
    run: str,
    launch_of: Callable[[CellSpec], Launch],
) -> tuple[CellRecord, ...]:
    """Return the records of an earlier run that stand for cells of this plan, marked as taken over.

    A cell is the same when its scenario, its command line and all its settings are. That engine and model
    are the same too is for the caller to check. Cells that are there for their times are run here.
    """
    same = {s.name for s in plan.scenarios if s in earlier.scenarios}
    wanted = set(plan.cells)
    return tuple(
        replace(record, reused_from=record.reused_from or run)
        for record in select_latest(records).values()
        if record.spec in wanted
        and not is_timed(plan, record.spec)
        and record.spec.scenario in same
        and record.is_complete
        and (record.argv, record.pins) == _started_by(launch_of(record.spec))
    )


def _started_by(launch: Launch) -> tuple[tuple[str, ...], object]:
    return launch.argv, launch.pins


def list_measured(plan: Plan, records: Iterable[CellRecord]) -> frozenset[CellSpec]:
    """Return the planned cells that need not be run: their last attempt gave all its turns."""
    latest = select_latest(records)
    return frozenset(spec for spec in plan.cells if spec in latest and latest[spec].is_complete)
