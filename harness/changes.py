"""What differs between two builds of a run: the variable under test, and any other that should not differ."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.plan import Arm, Plan
from harness.transcript import CellRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One variable with its value in the baseline and in another build."""

    variable: str
    baseline: str
    build: str
    value: str


def list_changes(
    plan: Plan, records: Iterable[CellRecord], identities: Mapping[str, Mapping[str, str]]
) -> tuple[Change, ...]:
    """Return what differs between the baseline and each other build.

    Args:
        plan: of a run with several builds; without them nothing is returned.
        records: their pins tell the settings that each arm really ran with.
        identities: for each build, what its engine and model are, by variable.
    """
    if not plan.builds:
        return ()
    first, *others = (build.name for build in plan.builds)
    settings = _collect_settings(plan, records)
    changes = []
    for name in others:
        base, own = identities.get(first, {}), identities.get(name, {})
        changes += [
            Change(variable=variable, baseline=base.get(variable, "?"), build=name, value=value)
            for variable, value in own.items()
            if base.get(variable) != value
        ]
        changes += _compare_settings(name, settings, first)
    return tuple(changes)


def _collect_settings(plan: Plan, records: Iterable[CellRecord]) -> dict[tuple[str, Arm], dict[str, str]]:
    """Return the settings of each build's arms; an arm goes by the name that it has in every build."""
    settings: dict[tuple[str, Arm], dict[str, str]] = {}
    planned = frozenset(plan.cells)
    for record in records:
        if record.spec in planned:
            arm = record.spec.arm
            own = settings.setdefault((arm.build, Arm(path=arm.path, depth=arm.depth, slots=arm.slots)), {})
            own.update((pin.name, pin.value) for pin in record.pins)
    return settings


def _compare_settings(
    name: str, settings: Mapping[tuple[str, Arm], Mapping[str, str]], first: str
) -> list[Change]:
    found: dict[Change, None] = {}
    for (build, arm), own in settings.items():
        base = settings.get((first, arm))
        if build != name or base is None:
            continue
        for variable in sorted(own.keys() | base.keys()):
            before, value = base.get(variable, "not set"), own.get(variable, "not set")
            if before != value:
                found[Change(variable=variable, baseline=before, build=name, value=value)] = None
    return list(found)


def describe_changes(plan: Plan, changes: Iterable[Change]) -> tuple[str, ...]:
    """Return what was changed between the builds, and a warning unless it is exactly one variable."""
    if not plan.builds:
        return ()
    told = []
    first = plan.builds[0].name
    for build in plan.builds[1:]:
        own = [change for change in changes if change.build == build.name]
        names = list(dict.fromkeys(change.variable for change in own))
        subject = f"{first} to {build.name or 'this engine'}"
        if not own:
            told.append(f"{subject}: nothing differs, so this shows the noise of one engine against itself")
            continue
        said = ", ".join(f"{c.variable} {c.baseline} to {c.value}" for c in own)
        told.append(f"{subject} changes {said}")
        if len(names) > 1:
            told.append(
                f"warning: {len(names)} variables differ, so no difference can be put down to one of them"
            )
    return tuple(told)
