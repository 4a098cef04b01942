"""What fails in a run and how: what can be minimized, and whether a smaller case fails in the same way."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.cases import common_bytes
from harness.comparison import Comparison
from harness.contrasts import ContrastResult, FoundDifference
from harness.findings import Finding, VerdictClass
from harness.identity import Difference
from harness.pairing import select_latest
from harness.plan import Arm, CellSpec, Contrast, Plan, ProbeKind
from harness.transcript import INTERRUPTED_CODE, CellRecord, TurnRecord
from harness.verdict import find_degenerate_arms, list_faults

# Behind the faults: what leaves a verdict open, then what it explains.
_OPEN_ORDER = {"open": 0, "explained": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Something that fails, and the first place where it does.

    Attributes:
        contrast: the arms; for what one cell shows alone, its arm twice.
        symptom: the first field that differs, ``failure:`` and the code of the failure, or the rule that an
            arm breaks alone.
        verdict_class: what the verdict calls it.
        scenario, conversation, turn: where; ``turn`` from 0, the turn that was not reached for a failed cell.
        prompt: the exact bytes that were sent there, None when they are not known.
        common: what both answers begin with; empty where one arm shows it alone.
        difference: what differs, None where one arm shows it alone.
        message: the fault in words, empty for a difference.
        wanted: probes that could still give it another class.
    """

    contrast: Contrast
    symptom: str
    verdict_class: VerdictClass
    scenario: str
    conversation: str
    turn: int
    prompt: bytes | None
    common: bytes = b""
    difference: Difference | None
    message: str = ""
    wanted: tuple[ProbeKind, ...] = ()

    @property
    def is_one_sided(self) -> bool:
        """True when one cell alone shows it: it could not be measured, or its counts are wrong."""
        return self.difference is None

    def looks_like(self, other: "Failing") -> bool:
        """Say whether the same kind of contrast shows the same thing, whatever it is called."""
        return (self.contrast.kind, self.symptom) == (other.contrast.kind, other.symptom)

    def is_like(self, other: "Failing") -> bool:
        """Say whether it fails in the same way: it looks like the other one and has the same class."""
        return self.looks_like(other) and self.verdict_class == other.verdict_class


def find_failing(plan: Plan, records: Sequence[CellRecord], comparison: Comparison) -> tuple[Failing, ...]:
    """Return all that keeps a run from passing, and near-ties; what names the verdict first.

    Every arm with a failed cell comes before the faults: its turns were not compared. Behind them come arms
    that are void or do not equal themselves, and what was not proven.
    """
    latest = select_latest(records)
    faults = list_faults(comparison)
    others = [f for f in comparison.findings if f.effect in _OPEN_ORDER and f.verdict_class != "void"]
    others.sort(key=lambda finding: _OPEN_ORDER[finding.effect])
    return (
        *_find_crashes(plan, records),
        *_read_findings(comparison, faults, latest),
        *_find_void_arms(plan, comparison),
        *_find_degenerate_arms(plan, comparison),
        *_find_unsteady_arms(comparison, latest),
        *_read_findings(comparison, others, latest),
    )


def build_pair_plan(plan: Plan, failing: Failing) -> Plan:
    """Return the plan that runs only the arms of ``failing`` on the one scenario of ``plan``.

    An arm is run twice where it does not equal itself. Where a prefix was blamed for other tokens of an arm
    with drafts, its path runs without drafts too: that answer tells the prefix from the drafts.
    """
    contrast = failing.contrast
    sides = tuple(dict.fromkeys((contrast.a, contrast.b)))
    by_prefix = (failing.symptom, failing.verdict_class) == ("tokens", "prefix-reuse")
    undrafted = [replace(arm, depth=0) for arm in sides] if by_prefix else []
    arms = tuple(dict.fromkeys((*sides, *(arm for arm in undrafted if arm in plan.arms))))
    repetitions = 2 if contrast.kind == "self" and not failing.is_one_sided else 1
    (scenario,) = plan.scenarios
    cells = tuple(
        CellSpec(arm=arm, scenario=scenario.name, repetition=repetition)
        for repetition in range(repetitions)
        for arm in arms
    )
    selves = tuple(Contrast(name=f"self {arm.label}", kind="self", a=arm, b=arm) for arm in sides)
    contrasts = selves if contrast.kind == "self" else (*selves, contrast)
    return replace(
        plan,
        repetitions=repetitions,
        arms=arms,
        contrasts=contrasts,
        cells=cells,
        budget_tokens=None,
        until="end",
        left_out=(),
    )


_Latest = dict[CellSpec, CellRecord]


def _read_findings(comparison: Comparison, findings: Iterable[Finding], latest: _Latest) -> Iterator[Failing]:
    """Yield the first finding of each contrast, and of each rule that an arm breaks alone."""
    results = {result.contrast.name: result for result in comparison.contrasts}
    seen: set[tuple[object, ...]] = set()
    for finding in findings:
        result = results.get(finding.contrast)
        key = (finding.contrast, finding.verdict_class) if result else (finding.arms, finding.rule)
        if key not in seen:
            seen.add(key)
            failing = _read_difference(result, finding, latest) if result else _read_own_fault(finding)
            if failing is not None:
                yield failing


def _read_difference(result: ContrastResult, finding: Finding, latest: _Latest) -> Failing:
    place = (finding.scenario, finding.conversation, finding.turn)
    found = next(f for f in result.found if (f.scenario, f.conversation, f.turn) == place)
    failing = _build_difference(result.contrast, found, finding.verdict_class, latest)
    return replace(failing, wanted=finding.wanted)


def _build_difference(
    contrast: Contrast, found: FoundDifference, verdict_class: VerdictClass, latest: _Latest
) -> Failing:
    a = _find_turn(latest, contrast.a, found, found.repetitions_a[0])
    b = _find_turn(latest, contrast.b, found, found.repetitions_b[0])
    return Failing(
        contrast=contrast,
        symptom=found.differences[0].field,
        verdict_class=verdict_class,
        scenario=found.scenario,
        conversation=found.conversation,
        turn=found.turn,
        prompt=a.prompt if a.entry == "prompt" else None,
        common=a.text[: common_bytes(a.text, b.text)] if a.text != b.text else b"",
        difference=found.differences[0],
    )


def _find_turn(latest: _Latest, arm: Arm, found: FoundDifference, repetition: int) -> TurnRecord:
    record = latest[CellSpec(arm=arm, scenario=found.scenario, repetition=repetition)]
    return next(t for t in record.turns if (t.conversation, t.turn) == (found.conversation, found.turn))


def _read_own_fault(finding: Finding) -> Failing | None:
    """Return what one arm shows alone; None for what two arms show without a turn to point at."""
    if len(finding.arms) != 1:
        return None
    (arm,) = finding.arms
    return Failing(
        contrast=Contrast(name=f"counts {arm.label}", kind="self", a=arm, b=arm),
        symptom=finding.rule,
        verdict_class=finding.verdict_class,
        scenario=finding.scenario,
        conversation=finding.conversation,
        turn=finding.turn,
        prompt=None,
        difference=None,
        message=finding.reason,
    )


def _find_void_arms(plan: Plan, comparison: Comparison) -> Iterator[Failing]:
    seen: set[Arm] = set()
    for row in comparison.engagements:
        if row.state != "void" or row.arm in seen:
            continue
        seen.add(row.arm)
        last = plan.scenario(row.scenario).conversations[-1]
        yield Failing(
            contrast=Contrast(name=f"void {row.arm.label}", kind="self", a=row.arm, b=row.arm),
            symptom="void",
            verdict_class="void",
            scenario=row.scenario,
            conversation=last.id,
            turn=len(last.turns) - 1,
            prompt=None,
            difference=None,
            message=row.evidence,
        )


def _find_degenerate_arms(plan: Plan, comparison: Comparison) -> Iterator[Failing]:
    for answer in (own[0] for own in find_degenerate_arms(plan, comparison)):
        yield Failing(
            contrast=Contrast(name=f"degenerate {answer.arm.label}", kind="self", a=answer.arm, b=answer.arm),
            symptom=f"degenerate: {answer.kind}",
            verdict_class="void",
            scenario=answer.scenario,
            conversation=answer.conversation,
            turn=answer.turn,
            prompt=None,
            difference=None,
            message=answer.evidence,
        )


def _find_unsteady_arms(comparison: Comparison, latest: _Latest) -> Iterator[Failing]:
    for result in comparison.contrasts:
        if result.contrast.kind == "self" and result.found:
            yield _build_difference(result.contrast, result.found[0], "nondeterministic", latest)


def _find_crashes(plan: Plan, records: Sequence[CellRecord]) -> list[Failing]:
    crashes: dict[str, Failing] = {}
    for record in records:
        failure = record.failure
        if failure is None or failure.code in (INTERRUPTED_CODE, "not-run", "engine-start"):
            continue
        arm = record.spec.arm
        scenario = plan.scenario(record.spec.scenario)
        places = [(c.id, index) for c in scenario.conversations for index in range(len(c.turns))]
        conversation, turn = places[min(len(record.turns), len(places) - 1)]
        crashes.setdefault(
            arm.label,
            Failing(
                contrast=Contrast(name=f"failed {arm.label}", kind="self", a=arm, b=arm),
                symptom=f"failure:{failure.code}",
                verdict_class="failed",
                scenario=scenario.name,
                conversation=conversation,
                turn=turn,
                prompt=None,
                difference=None,
                message=failure.message,
            ),
        )
    return list(crashes.values())
