"""Which states of the machine are told, and that healthy ones are not."""

from dataclasses import replace

import pytest

from harness.circumstances import MAX_OTHERS_CORES, MIN_CELL_S, note_circumstances, others_cores
from harness.transcript import CellRecord, Conditions
from tests.harness.run_builders import make_plan, run_healthy

BEFORE = Conditions(
    clock_s=100.0,
    busy_cpu_s=1000.0,
    own_cpu_s=10.0,
    load_average=0.1,
    governors=("performance",),
    boost=True,
    throttle_events=4,
    temperature_c=50.0,
    memory_available_bytes=1 << 33,
    swap_used_bytes=0,
)
AFTER = replace(BEFORE, clock_s=110.0, busy_cpu_s=1010.0, own_cpu_s=20.0)


def note(*pairs: tuple[Conditions, Conditions]) -> list[str]:
    """Return the notes on a run whose cells have these conditions in turn, the last for all that are left."""
    plan = make_plan()
    records = run_healthy(plan)
    chosen = [pairs[min(i, len(pairs) - 1)] for i in range(len(records))]
    cells = [replace(r, before=b, after=a) for r, (b, a) in zip(records, chosen, strict=True)]
    return note_circumstances(plan, {record.spec: record for record in cells})


def test_quiet_machine_needs_no_note():
    assert note((BEFORE, AFTER)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"governors": ("powersave",)}, "the governor of the processor changed during the run: performance"),
        ({"boost": False}, "boost changed during the run: on in cell 'chat/0 quick 0', off"),
    ],
)
def test_setting_of_the_machine_that_changed_is_told(changes: dict[str, object], words: str) -> None:
    other = replace(BEFORE, **changes)  # type: ignore[arg-type]
    (told,) = note((BEFORE, AFTER), (other, AFTER))
    assert told.startswith(words)
    assert "not comparable" in told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"throttle_events": 7}, "throttled during cell 'chat/0 quick 0' (3 times)"),
        ({"swap_used_bytes": 1 << 30}, "swapped out during cell 'chat/0 quick 0' (1024 MiB)"),
        ({"busy_cpu_s": 1030.0}, "kept the processors busy during cell 'chat/0 quick 0' (2.0 of them)"),
    ],
)
def test_disturbed_cell_is_told_with_the_amount(changes: dict[str, object], words: str) -> None:
    (told,) = note((BEFORE, replace(AFTER, **changes)), (BEFORE, AFTER))  # type: ignore[arg-type]
    assert words in told


def test_many_disturbed_cells_are_counted():
    (told,) = note((BEFORE, replace(AFTER, throttle_events=9)))
    assert "and 5 more" in told


def test_what_is_not_shown_is_not_judged():
    blind = replace(BEFORE, throttle_events=None, governors=(), boost=None)
    assert note((BEFORE, AFTER), (blind, replace(AFTER, throttle_events=None))) == []


def test_cells_of_another_run_are_not_told_of():
    plan = make_plan()
    records = [
        replace(r, reused_from="runs/old", before=BEFORE, after=replace(AFTER, throttle_events=9))
        for r in run_healthy(plan)
    ]
    latest: dict[object, CellRecord] = {record.spec: record for record in records}
    assert note_circumstances(plan, latest) == []  # type: ignore[arg-type]


def test_processor_time_of_others_is_what_is_left():
    quiet = replace(AFTER, busy_cpu_s=BEFORE.busy_cpu_s + 10 + 10 * MAX_OTHERS_CORES)
    assert others_cores(BEFORE, quiet) == pytest.approx(MAX_OTHERS_CORES)
    assert others_cores(BEFORE, replace(AFTER, clock_s=BEFORE.clock_s + MIN_CELL_S / 2)) is None
    assert others_cores(BEFORE, replace(AFTER, busy_cpu_s=BEFORE.busy_cpu_s)) == 0
