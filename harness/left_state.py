"""State that an engine keeps beyond its cell although a setting of the run forbids it."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from engine_bindings.binding import Pin
from harness.findings import Finding
from harness.plan import CellSpec, Plan
from harness.transcript import CellRecord

Records = Mapping[CellSpec, CellRecord]


def find_left_state(plan: Plan, latest: Records) -> tuple[Finding, ...]:
    """Return a finding for each arm that saved or resumed what a pin of its engine forbids.

    Every engine has a directory of its own, so a forbidden file harms no other cell of the run. Whoever
    starts two arms on one directory has the second one begin with the state of the first.
    """
    found: dict[tuple[object, ...], Finding] = {}
    for spec, record in latest.items():
        if plan.is_baseline(spec.arm):
            continue
        for rule, reason in _list_faults(record):
            finding = _build_finding(plan, spec, record, rule, reason)
            found.setdefault((spec.arm, rule), finding)
    return tuple(found.values())


def note_left_files(latest: Records) -> list[str]:
    """Return a remark on the files that engines left and no setting forbids, if there are any."""
    sizes: dict[str, list[int]] = {}
    for record in latest.values():
        for file in record.left_files:
            if _find_pin(record, file.name) is None:
                sizes.setdefault(file.name, []).append(file.size_bytes)
    if not sizes:
        return []
    named = ", ".join(
        f"{name} (in {len(own)} cells, {max(own):,} bytes at most)" for name, own in sorted(sizes.items())
    )
    return [f"engines left files in their own directories that no setting of the run forbids: {named}"]


def _list_faults(record: CellRecord) -> Iterator[tuple[str, str]]:
    for file in record.left_files:
        pin = _find_pin(record, file.name)
        if pin is not None:
            yield (
                "a file was left that a setting forbids",
                f"left {file.name} of {file.size_bytes:,} bytes in its model directory, "
                f"with {pin.name}={pin.value}",
            )
    forbidding = [pin for pin in record.pins if pin.forbids]
    if record.kv_resumed_tokens and forbidding:
        settings = " ".join(f"{pin.name}={pin.value}" for pin in forbidding)
        yield (
            "a saved conversation was resumed that a setting forbids",
            f"resumed a saved conversation of {record.kv_resumed_tokens} tokens in a fresh model directory, "
            f"with {settings}",
        )


def _find_pin(record: CellRecord, name: str) -> Pin | None:
    """Return the pin that forbids a file of that name."""
    pins = (pin for pin in record.pins if any(fnmatchcase(name, pattern) for pattern in pin.forbids))
    return next(pins, None)


def _build_finding(plan: Plan, spec: CellSpec, record: CellRecord, rule: str, reason: str) -> Finding:
    """Name the last turn of the cell as the place, for what was found when it had ended."""
    first = plan.scenario(spec.scenario).conversations[0].id
    last = record.turns[-1] if record.turns else None
    return Finding(
        verdict_class="prefix-reuse",
        effect="fail",
        rule=rule,
        contrast="",
        arms=(spec.arm,),
        scenario=spec.scenario,
        conversation=last.conversation if last else first,
        turn=last.turn if last else 0,
        reason=reason,
    )
