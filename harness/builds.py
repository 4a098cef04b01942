"""Several builds in one plan: their arms side by side, and the contrasts between them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from engine_bindings.errors import UsageError
from harness.pairing import select_latest
from harness.plan import Arm, Build, CellSpec, Contrast, Plan
from harness.transcript import CellRecord

BASELINE = "baseline"


def join_builds(builds: Sequence[Build], plans: Sequence[Plan]) -> Plan:
    """Return one plan that runs several builds, each as its own plan says, and holds them against the first.

    Of the first, the baseline, it is only checked that each arm equals itself: its own faults are no news
    to whoever changes it. Cells alternate between the builds (A B, B A, ...), so that drift hits both alike.

    Raises:
        UsageError: two builds of one name, or a build that has no arm in common with the baseline.
    """
    names = [build.name for build in builds]
    if len(set(names)) < len(names):
        raise UsageError(
            f"two builds have one name: {', '.join(names)}", hint="--engine LABEL=ENGINE, each its own"
        )
    owned = [_own(build.name, plan) for build, plan in zip(builds, plans, strict=True)]
    first, *others = owned
    contrasts = [contrast for contrast in first.contrasts if contrast.kind == "self"]
    for plan in others:
        contrasts += [*plan.contrasts, *hold_against(first.arms, plan.arms)]
    return replace(
        first,
        engine=", ".join(f"{build.name}={build.engine}" for build in builds),
        arms=tuple(arm for plan in owned for arm in plan.arms),
        contrasts=tuple(contrasts),
        cells=_alternate([plan.cells for plan in owned]),
        builds=tuple(builds),
        entries=tuple(entry for plan in owned for entry in plan.entries),
        token_paths=tuple(dict.fromkeys(path for plan in owned for path in plan.token_paths)),
        logprob_paths=tuple(dict.fromkeys(path for plan in owned for path in plan.logprob_paths)),
        context_paths=tuple(dict.fromkeys(path for plan in owned for path in plan.context_paths)),
        counters_repeat=all(plan.counters_repeat for plan in owned),
        draws_repeat=all(plan.draws_repeat for plan in owned),
        cold_cells=all(plan.cold_cells for plan in owned),
        exact_prefixes=all(plan.exact_prefixes for plan in owned),
        max_depth=min(plan.max_depth for plan in owned),
        context_tokens=_common_context(owned),
        left_out=tuple(
            f"{build.name}: {text}"
            for build, plan in zip(builds, plans, strict=True)
            for text in plan.left_out
        ),
    )


def add_baseline(
    plan: Plan, baseline: Plan, records: Sequence[CellRecord], run: str
) -> tuple[Plan, tuple[CellRecord, ...]]:
    """Hold the arms of a plan against those of an earlier run as well.

    Returns:
        The plan, whose baseline is recorded, and the records of the earlier run that belong to it. Cells that
        failed there and scenarios that are not the same ones are left out, and the plan says so.

    Raises:
        UsageError: the runs have no measured cell in common.
    """
    same = [s.name for s in plan.scenarios if s in baseline.scenarios]
    arms = {arm for arm in baseline.arms if arm in plan.arms}
    taken = tuple(
        _rename(record, BASELINE, run)
        for record in select_latest(records).values()
        if record.spec in baseline.cells
        and record.spec.arm in arms
        and record.spec.scenario in same
        and record.is_complete
    )
    if not taken:
        raise UsageError(
            f"--baseline {run}: no measured cell of it is in this plan",
            hint="a baseline is a run with the same scenarios and the same --depth",
        )
    builds = (
        Build(name=BASELINE, engine=plan.engine, recorded=True),
        Build(name="", engine=plan.engine, margin_pin=plan.margin_pin),
    )
    kept = tuple(dict.fromkeys(record.spec.arm for record in taken))
    first = replace(plan, arms=kept, contrasts=_self_contrasts(kept), entries=(), left_out=())
    different = [s.name for s in plan.scenarios if s.name not in {record.spec.scenario for record in taken}]
    notes = (
        (f"not held against the baseline, which has no such scenario: {', '.join(different)}",)
        if different
        else ()
    )
    joined = replace(
        plan,
        arms=(*kept, *plan.arms),
        contrasts=(*first.contrasts, *plan.contrasts, *hold_against(first.arms, plan.arms)),
        cells=(*(record.spec for record in taken), *plan.cells),
        builds=builds,
        left_out=(*plan.left_out, *notes),
    )
    return joined, taken


def _own(name: str, plan: Plan) -> Plan:
    """Return the plan of a build with its name on every arm, cell and contrast."""

    def own(arm: Arm) -> Arm:
        return replace(arm, build=name)

    return replace(
        plan,
        arms=tuple(map(own, plan.arms)),
        contrasts=tuple(
            replace(
                c,
                name=f"{name} {c.name}" if c.kind != "self" else f"self {own(c.a).label}",
                a=own(c.a),
                b=own(c.b),
            )
            for c in plan.contrasts
        ),
        cells=tuple(replace(spec, arm=own(spec.arm)) for spec in plan.cells),
        entries=tuple(replace(entry, build=name) for entry in plan.entries),
    )


def _rename(record: CellRecord, build: str, run: str) -> CellRecord:
    return replace(
        record, spec=replace(record.spec, arm=replace(record.spec.arm, build=build)), reused_from=run
    )


def _self_contrasts(arms: Sequence[Arm]) -> tuple[Contrast, ...]:
    return tuple(Contrast(name=f"self {arm.label}", kind="self", a=arm, b=arm) for arm in arms)


def hold_against(baseline: Sequence[Arm], arms: Sequence[Arm]) -> list[Contrast]:
    """Return the contrasts between two builds: arm by arm, or by the first path of each."""
    contrasts = []
    for arm in arms:
        wanted = {(other.path, other.depth, other.slots): other for other in baseline}
        other = wanted.get((arm.path, arm.depth, arm.slots))
        if other is None and arm.path == arms[0].path:
            other = wanted.get((baseline[0].path, arm.depth, arm.slots))
        if other is not None:
            contrasts.append(Contrast(name=f"build {arm.label}", kind="build", a=other, b=arm))
    if not contrasts:
        raise UsageError(
            f"the builds {baseline[0].build!r} and {arms[0].build!r} have no arm in common",
            hint="give both a depth that they can run at",
        )
    return contrasts


def _alternate(runs: Sequence[Sequence[CellSpec]]) -> tuple[CellSpec, ...]:
    """Take one cell of each build in turn, in the other order each second time."""
    cells: list[CellSpec] = []
    for number, row in enumerate(zip_longest(*runs)):
        present = [spec for spec in row if spec is not None]
        cells += present[::-1] if number % 2 else present
    return tuple(cells)


def _common_context(plans: Sequence[Plan]) -> int | None:
    sizes = [plan.context_tokens for plan in plans]
    return None if None in sizes else min(size for size in sizes if size is not None)
