"""What the state of the machine says against the times of a run: told as notes, as no token depends on it."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from harness.plan import CellSpec, Plan
from harness.transcript import CellRecord, Conditions

# So many processors kept busy by others slow an engine that uses all of them.
MAX_OTHERS_CORES = 0.5
# A short cell says little of the load beside it: processor time is counted in hundredths of a second.
MIN_CELL_S = 1.0
MAX_SWAP_GROWTH_BYTES = 64 << 20
MAX_NAMED_CELLS = 3


def note_circumstances(plan: Plan, latest: Mapping[CellSpec, CellRecord]) -> list[str]:
    """Return what may have changed the times of cells, or makes those of two arms incomparable."""
    cells = [latest[spec] for spec in plan.cells if spec in latest and not latest[spec].reused_from]
    return [
        *_note_differing(cells, "the governor of the processor", lambda c: ", ".join(c.governors)),
        *_note_differing(cells, "boost", lambda c: {True: "on", False: "off", None: ""}[c.boost]),
        *_note_cells(cells, "the processor throttled", _throttled),
        *_note_cells(cells, "memory was swapped out", _swapped),
        *_note_cells(cells, "other programs kept the processors busy", _disturbed),
    ]


def _note_differing(
    cells: Iterable[CellRecord], what: str, read: Callable[[Conditions], str]
) -> Iterator[str]:
    """Yield a note when a setting of the machine was not the same in all cells."""
    seen: dict[str, str] = {}
    for cell in cells:
        if cell.before is not None and (value := read(cell.before)):
            seen.setdefault(value, cell.spec.key)
    if len(seen) > 1:
        said = ", ".join(f"{value} in cell {key!r}" for value, key in seen.items())
        yield f"{what} changed during the run: {said}; times of these cells are not comparable"


def _note_cells(
    cells: Iterable[CellRecord], what: str, measure: Callable[[Conditions, Conditions], str]
) -> Iterator[str]:
    told = [
        f"cell {cell.spec.key!r} ({amount})"
        for cell in cells
        if cell.before is not None and cell.after is not None and (amount := measure(cell.before, cell.after))
    ]
    if told:
        more = f" and {len(told) - MAX_NAMED_CELLS} more" if len(told) > MAX_NAMED_CELLS else ""
        yield f"{what} during {', '.join(told[:MAX_NAMED_CELLS])}{more}: their times are too long"


def _throttled(before: Conditions, after: Conditions) -> str:
    if before.throttle_events is None or after.throttle_events is None:
        return ""
    events = after.throttle_events - before.throttle_events
    return f"{events} times" if events > 0 else ""


def _swapped(before: Conditions, after: Conditions) -> str:
    growth = after.swap_used_bytes - before.swap_used_bytes
    return f"{growth / 2**20:.0f} MiB" if growth > MAX_SWAP_GROWTH_BYTES else ""


def _disturbed(before: Conditions, after: Conditions) -> str:
    cores = others_cores(before, after)
    return f"{cores:.1f} of them" if cores is not None and cores > MAX_OTHERS_CORES else ""


def others_cores(before: Conditions, after: Conditions) -> float | None:
    """Return how many processors others kept busy on average; None for too short a time.

    All processor time of the machine, less that of the harness and of the engines it waited for.
    """
    wall_s = after.clock_s - before.clock_s
    if wall_s < MIN_CELL_S:
        return None
    others_s = (after.busy_cpu_s - before.busy_cpu_s) - (after.own_cpu_s - before.own_cpu_s)
    return max(0.0, others_s / wall_s)
