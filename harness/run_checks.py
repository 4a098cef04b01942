"""Whether what a run directory holds fits together: a plan with itself, records with their plan, a report
with its own evidence. What does not was edited, mixed up or written by another version, and is not judged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from harness.builds import hold_against
from harness.plan import Arm, CellSpec, Contrast, Plan, build_contrasts
from harness.report import Report
from harness.transcript import CellRecord, TurnRecord
from harness.verdict import EXIT_STATUSES, list_slow_builds

_COUNTS = (
    "emitted_tokens",
    "prompt_tokens",
    "cached_tokens",
    "prefill_tokens",
    "forwards",
    "drafted_tokens",
    "accepted_tokens",
)


def find_plan_problem(plan: Plan) -> str | None:
    """Return what in a plan contradicts the rest of it, None where nothing does."""
    return next(chain(_check_names(plan), _check_cells(plan), _check_contrasts(plan)), None)


def _check_names(plan: Plan) -> Iterator[str]:
    named: tuple[tuple[str, Sequence[object]], ...] = (
        ("arm", [arm.label for arm in plan.arms]),
        ("scenario", [scenario.name for scenario in plan.scenarios]),
        ("contrast", [contrast.name for contrast in plan.contrasts]),
        ("cell", [spec.key for spec in plan.cells]),
    )
    for kind, names in named:
        if not names:
            yield f"it has no {kind}"
        seen: set[object] = set()
        for name in names:
            if name in seen:
                yield f"the {kind} {name!r} is in it twice"
            seen.add(name)


def _check_cells(plan: Plan) -> Iterator[str]:
    arms, scenarios = frozenset(plan.arms), {scenario.name for scenario in plan.scenarios}
    for spec in plan.cells:
        known = spec.arm in arms and spec.scenario in scenarios and spec.probe is None
        if not known or spec.repetition < 0:
            yield f"the cell {spec.key!r} is of none of its arms and scenarios"
    planned = frozenset(plan.cells)
    for spec in _list_due_cells(plan):
        if spec not in planned:
            yield f"the cell {spec.key!r} of its arms, scenarios and repetitions is not among its cells"


def _list_due_cells(plan: Plan) -> Iterator[CellSpec]:
    """Yield the cells that a plan must have. Beside timed cells the others may be run once only."""
    repetitions = plan.repetitions if plan.speed is None else 1
    for arm in plan.arms:
        if plan.is_recorded(arm):
            continue
        for scenario in plan.scenarios:
            if arm.slots in (1, scenario.slots) and plan.entry(arm, scenario) is not None:
                for repetition in range(repetitions):
                    yield CellSpec(arm=arm, scenario=scenario.name, repetition=repetition)


def _check_contrasts(plan: Plan) -> Iterator[str]:
    arms = frozenset(plan.arms)
    for contrast in plan.contrasts:
        if not arms.issuperset((contrast.a, contrast.b)):
            yield f"the contrast {contrast.name!r} is not between its arms"
    known = {(contrast.kind, contrast.a, contrast.b) for contrast in plan.contrasts}
    for contrast in _list_due_contrasts(plan):
        if (contrast.kind, contrast.a, contrast.b) not in known:
            a, b = contrast.a.label, contrast.b.label
            yield f"no contrast of the kind {contrast.kind!r} holds {a} against {b}"


def _list_due_contrasts(plan: Plan) -> Iterator[Contrast]:
    """Yield the contrasts that a plan must have, with names of no account."""
    by_build = {build: [arm for arm in plan.arms if arm.build == build] for build in _list_builds(plan)}
    first, *others = by_build
    for build, arms in by_build.items():
        bare = tuple(replace(arm, build="") for arm in arms)
        for contrast in build_contrasts(bare, plan.scenarios) if bare else ():
            if contrast.kind == "self" or not others or build != first:
                yield replace(
                    contrast, a=replace(contrast.a, build=build), b=replace(contrast.b, build=build)
                )
    for build in others:
        if by_build[first] and by_build[build]:
            yield from hold_against(by_build[first], by_build[build])


def _list_builds(plan: Plan) -> list[str]:
    return [build.name for build in plan.builds] or [""]


def find_record_problem(plan: Plan, records: Iterable[CellRecord]) -> str | None:
    """Return what in records contradicts their plan, None where nothing does."""
    planned = frozenset(plan.cells)
    seen: set[tuple[CellSpec, int]] = set()
    for number, record in enumerate(records, start=1):
        place = f"line {number}, cell {record.spec.key!r}"
        if record.spec not in planned and not _is_probe_of(plan, record.spec):
            return f"{place}: the plan has no such cell"
        if (record.spec, record.attempt) in seen:
            return f"{place}: its attempt {record.attempt} is there twice"
        seen.add((record.spec, record.attempt))
        if problem := _find_turn_problem(plan, record):
            return f"{place}: {problem}"
    return None


def _is_probe_of(plan: Plan, spec: CellSpec) -> bool:
    """Say whether a probe looks into a turn of the plan, on one of its paths at any depth."""
    if spec.probe is None or not any(_is_on_path(spec.arm, arm) for arm in plan.arms):
        return False
    mark = spec.probe
    turns = [
        len(conversation.turns)
        for scenario in plan.scenarios
        for conversation in scenario.conversations
        if (scenario.name, conversation.id) == (spec.scenario, mark.conversation)
    ]
    return bool(turns) and 0 <= mark.turn < turns[0]


def _is_on_path(probed: Arm, planned: Arm) -> bool:
    return (probed.path, probed.build) == (planned.path, planned.build)


def _find_turn_problem(plan: Plan, record: CellRecord) -> str | None:
    scenario = plan.scenario(record.spec.scenario)
    known = {c.id: len(c.turns) for c in scenario.conversations}
    seen: set[tuple[str, int]] = set()
    for turn in record.turns:
        place = f"turn {turn.turn + 1} of {turn.conversation!r}"
        if not 0 <= turn.turn < known.get(turn.conversation, 0):
            return f"{place} is not in the scenario"
        if (turn.conversation, turn.turn) in seen:
            return f"{place} is there twice"
        seen.add((turn.conversation, turn.turn))
        if negative := _name_negative(turn):
            return f"{place}: {negative} is below 0"
    return None


def _name_negative(turn: TurnRecord) -> str | None:
    return next((name for name in _COUNTS if (getattr(turn, name) or 0) < 0), None)


def find_report_problem(report: Report) -> str | None:
    """Return how the verdict of a report contradicts its own evidence, None where it does not."""
    verdict, comparison = report.verdict, report.comparison
    status = verdict.status
    if verdict.exit_status != EXIT_STATUSES[status]:
        return f"its verdict is {status}, and its exit status {verdict.exit_status}"
    if not verdict.sentence.startswith(f"{status.upper()}: "):
        return f"its verdict is {status}, and its sentence {verdict.sentence[:40]!r}"
    if status == "invalid":
        return None  # an engine that was replaced leaves no other trace
    if comparison.failures:
        return f"its verdict is {status}, and {len(comparison.failures)} of its cells failed"
    faults = [finding for finding in comparison.findings if finding.effect == "fail"]
    slow = list_slow_builds(comparison)
    if bool(faults or slow) != (status == "fail"):
        shown = "a build is slower beyond the bound" if slow else f"{len(faults)} of its findings are faults"
        return f"its verdict is {status}, and {shown}"
    return _find_open_point(report) if status == "pass" else None


def _find_open_point(report: Report) -> str | None:
    """Return what a pass cannot have."""
    comparison = report.comparison
    missing = comparison.cells_planned - comparison.cells_measured
    if missing:
        return f"its verdict is pass, and {missing} of its cells were not measured"
    for result in comparison.contrasts:
        if result.state in ("different", "undecided"):
            return f"its verdict is pass, and its contrast {result.contrast.name!r} is {result.state}"
    for row in comparison.engagements:
        if row.state == "void":
            return f"its verdict is pass, and {row.arm.label} is void in {row.scenario}"
    if not any(result.pairs_checked for result in comparison.contrasts) and not comparison.distributions:
        return "its verdict is pass, and nothing was compared"
    held = {arm for result in comparison.contrasts for arm in (result.contrast.a, result.contrast.b)}
    lost = [row.arm.label for row in report.arms if row.arm not in held]
    return f"its verdict is pass, and no contrast has the arm {lost[0]}" if lost else None
