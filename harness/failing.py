"""What fails in a run and how: what can be minimized, and whether a smaller case fails in the same way."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.comparison import name_prefix
from harness.counters import find_count_faults
from harness.identity import Difference, compare_turns
from harness.metrics import derive_metrics
from harness.pairing import TurnPair, pair_cells, select_latest
from harness.plan import Arm, CellSpec, Contrast, Plan
from harness.prefill import build_prefill_table
from harness.transcript import INTERRUPTED_CODE, CellRecord

# What the tool is for comes first, as in the verdict.
_ORDER = {"path": 0, "within": 1, "slots": 2, "speculation": 3, "self": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A contrast that fails and the first place where it does.

    Attributes:
        contrast: the arms; for a cell that could not be measured, its arm twice.
        symptom: the first field that differs, ``failure:`` and the code of the failure, or the rule that a
            count or a prefix breaks. A smaller case
            fails in the same way when its contrast is of the same kind and its symptom is the same.
        scenario, conversation, turn: where; ``turn`` from 0, the turn that was not reached for a failed cell.
        prompt: the exact bytes that were sent there, None when they are not known.
        difference: what differs, None for a failed cell.
        message: the failure in words, empty for a difference.
    """

    contrast: Contrast
    symptom: str
    scenario: str
    conversation: str
    turn: int
    prompt: bytes | None
    difference: Difference | None
    message: str = ""

    @property
    def is_one_sided(self) -> bool:
        """True when one cell alone shows it: it could not be measured, or its counts are wrong."""
        return self.difference is None


def find_failing(plan: Plan, records: Sequence[CellRecord]) -> tuple[Failing, ...]:
    """Return the failing contrasts of a run, the one that says most first, each at its first difference.

    Every arm with a failed cell comes before them as a failing contrast of its own: its turns were not
    compared. What one arm alone shows to be wrong, counts and prefixes, comes last.
    """
    pairing = pair_cells(plan, records)
    found = [
        failing
        for pairs in pairing.contrasts
        if (failing := _first_difference(plan, pairs.contrast, pairs.pairs))
    ]
    found.sort(key=lambda failing: _ORDER[failing.contrast.kind])
    return (*_find_crashes(plan, records), *found, *_find_faults(plan, records))


def observe_symptom(plan: Plan, records: Sequence[CellRecord], symptom: str) -> Failing | None:
    """Return how a small plan fails with ``symptom``, or None when it does not."""
    return next((item for item in find_failing(plan, records) if item.symptom == symptom), None)


def build_pair_plan(plan: Plan, contrast: Contrast, *, repeat: bool) -> Plan:
    """Return the plan that runs only the arms of ``contrast`` on the one scenario of ``plan``.

    ``repeat`` runs an arm twice that is to be held against itself.
    """
    arms = tuple(dict.fromkeys((contrast.a, contrast.b)))
    repetitions = 2 if repeat and contrast.kind == "self" else 1
    (scenario,) = plan.scenarios
    cells = tuple(
        CellSpec(arm=arm, scenario=scenario.name, repetition=repetition)
        for repetition in range(repetitions)
        for arm in arms
    )
    return replace(plan, repetitions=repetitions, arms=arms, contrasts=(contrast,), cells=cells)


def _first_difference(plan: Plan, contrast: Contrast, pairs: Iterable[TurnPair]) -> Failing | None:
    for pair in pairs:
        comparison = compare_turns(
            pair.a,
            pair.b,
            prefix_uncertain=pair.prefix_uncertain,
            prefix_moved=pair.prefix_moved,
            answers_only=pair.answers_only,
            same_request=pair.same_request,
            counters=plan.compares_counters(contrast, pair.cell_a.scenario),
        )
        if comparison.differences:
            first = comparison.differences[0]
            return Failing(
                contrast=contrast,
                symptom=first.field,
                scenario=pair.cell_a.scenario,
                conversation=pair.a.conversation,
                turn=pair.a.turn,
                prompt=pair.a.prompt if pair.a.entry == "prompt" else None,
                difference=first,
            )
    return None


def _find_faults(plan: Plan, records: Sequence[CellRecord]) -> Iterator[Failing]:
    """Yield what an arm's own counts and prefixes prove, once for each arm and kind of fault."""
    latest = {spec: r for spec, r in select_latest(records).items() if spec in plan.cells and not r.failure}
    figures = {spec: derive_metrics(record) for spec, record in latest.items()}
    wrong = [row for row in build_prefill_table(plan, latest, figures) if row.state == "wrong"]
    seen: set[tuple[Arm, str]] = set()
    for finding in (*find_count_faults(plan, latest), *map(name_prefix, wrong)):
        (arm,) = finding.arms
        if (arm, finding.rule) not in seen and finding.conversation:
            seen.add((arm, finding.rule))
            yield Failing(
                contrast=Contrast(name=f"counts {arm.label}", kind="self", a=arm, b=arm),
                symptom=finding.rule,
                scenario=finding.scenario,
                conversation=finding.conversation,
                turn=finding.turn,
                prompt=None,
                difference=None,
                message=finding.reason,
            )


def _find_crashes(plan: Plan, records: Sequence[CellRecord]) -> list[Failing]:
    crashes: dict[str, Failing] = {}
    for record in records:
        failure = record.failure
        if failure is None or failure.code in (INTERRUPTED_CODE, "not-run") or record.ready_ns is None:
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
                scenario=scenario.name,
                conversation=conversation,
                turn=turn,
                prompt=None,
                difference=None,
                message=failure.message,
            ),
        )
    return list(crashes.values())
