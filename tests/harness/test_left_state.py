"""Files and contexts that outlive a cell: faults where a setting forbids them, remarks where none does."""

from dataclasses import replace

import pytest

from engine_bindings.binding import ArmSettings, Pin, apply_overrides
from engine_bindings.colibri_family import build_pins
from harness.left_state import find_left_state
from harness.pairing import select_latest
from harness.transcript import CellRecord, LeftFile
from tests.harness.run_builders import CHAT_ON, judge_run, make_plan, run_healthy

PIN = Pin(name="KVSAVE", value="0", reason="r", forbids=(".coli_kv", ".coli_kv.*"))


def spoil(record: CellRecord, *names: str, **changes: object) -> CellRecord:
    files = tuple(LeftFile(name=name, size_bytes=1234) for name in names)
    changed = replace(record, pins=(PIN,), left_files=files)
    return replace(changed, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [".coli_kv", ".coli_kv.1"])
def test_context_that_was_saved_against_the_setting_is_a_fault_of_the_prefix(name: str) -> None:
    plan = make_plan()
    records = tuple(spoil(r, name) if r.spec.arm == CHAT_ON else r for r in run_healthy(plan))

    comparison, verdict = judge_run(plan, records)

    assert (verdict.status, verdict.verdict_class) == ("fail", "prefix-reuse")
    assert f"left {name} of 1,234 bytes in its model directory, with KVSAVE=0" in verdict.sentence
    assert [finding.arms for finding in comparison.findings] == [(CHAT_ON,)]


def test_files_that_no_setting_forbids_are_remarks() -> None:
    plan = make_plan()
    records = tuple(spoil(r, ".coli_usage", ".coli_kvx", "sub/.coli_kv") for r in run_healthy(plan))

    comparison, verdict = judge_run(plan, records)

    assert verdict.status == "pass"
    (note,) = (note for note in comparison.notes if "left files" in note)
    assert ".coli_usage (in 8 cells, 1,234 bytes at most)" in note


@pytest.mark.parametrize(("pins", "faults"), [((PIN,), 1), ((), 0)])
def test_context_that_was_resumed_is_a_fault_where_saving_is_forbidden(
    pins: tuple[Pin, ...], faults: int
) -> None:
    plan = make_plan()
    first, *others = run_healthy(plan)

    found = find_left_state(plan, select_latest((spoil(first, pins=pins, kv_resumed_tokens=73), *others)))

    assert [finding.verdict_class for finding in found] == ["prefix-reuse"] * faults


def test_cell_without_a_turn_has_a_place_too() -> None:
    plan = make_plan()
    (finding,) = find_left_state(plan, select_latest([spoil(run_healthy(plan)[0], ".coli_kv", turns=())]))

    assert (finding.conversation, finding.turn) == ("copy-1", 0)


@pytest.mark.parametrize(("value", "forbids"), [("1", ()), ("0", PIN.forbids)])
def test_user_who_switches_saving_on_allows_its_files(value: str, forbids: tuple[str, ...]) -> None:
    pins = build_pins(ArmSettings(path="chat", depth=0, cap_tokens=8))

    changed = apply_overrides(pins, {"KVSAVE": value})

    assert next(pin.forbids for pin in changed if pin.name == "KVSAVE") == forbids
