"""The one value that every renderer shows: verdict, evidence, settings and circumstances of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine_bindings.binding import Pin
from harness.comparison import Comparison
from harness.engagement import STATES, Engagement, State
from harness.metric_words import METRICS, Metric
from harness.metrics import Totals, divide, sum_reported
from harness.pairing import select_latest
from harness.plan import Arm, Plan
from harness.record_json import from_json, to_json
from harness.speed_plan import SpeedPlan
from harness.transcript import CellRecord
from harness.verdict import Verdict

REPORT_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """One arm over all scenarios: its worst state and the sums of its counts."""

    arm: Arm
    state: State
    totals: Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRow:
    """One engine setting that was fixed, by the harness or by the user, and the arms that ran with this
    value.
    """

    name: str
    value: str
    reason: str
    overridden: bool
    arms: tuple[Arm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRow:
    """One scenario of the run, and how many turns and tokens one cell of it can take."""

    name: str
    title: str
    conversations: int
    turns: int
    worst_case_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedValue:
    """One circumstance of the run, for example the model's digest."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run. The same records give the same report, byte by byte."""

    schema: int
    verdict: Verdict
    engine: str
    depth: int
    repetitions: int
    scenarios: tuple[ScenarioRow, ...]
    arms: tuple[ArmRow, ...]
    comparison: Comparison
    pins: tuple[PinRow, ...]
    environment: tuple[NamedValue, ...]
    changes: tuple[str, ...]
    words: tuple[Metric, ...]
    speed: SpeedPlan | None = None

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return to_json(self, indent=2)

    @classmethod
    def from_json(cls, text: str | bytes, *, place: str = "") -> "Report":
        """Read a report; RunDirectoryError names ``place`` when ``text`` is not one."""
        return from_json(cls, text, place=place)


def build_report(
    plan: Plan,
    records: Sequence[CellRecord],
    comparison: Comparison,
    verdict: Verdict,
    environment: Mapping[str, str] | None = None,
    changes: Sequence[str] = (),
) -> Report:
    """Build the report of a run.

    Args:
        plan: what was to be run.
        records: all attempts at all cells.
        comparison: the evidence.
        verdict: the verdict on it.
        environment: circumstances by name, shown in this order: machine, versions, digests.
        changes: what differs between the builds, in plain sentences.
    """
    return Report(
        schema=REPORT_SCHEMA,
        verdict=verdict,
        engine=plan.engine,
        depth=plan.depth,
        repetitions=plan.repetitions,
        scenarios=tuple(
            ScenarioRow(
                name=scenario.name,
                title=scenario.title,
                conversations=len(scenario.conversations),
                turns=scenario.turn_count,
                worst_case_tokens=scenario.worst_case_tokens,
            )
            for scenario in plan.scenarios
        ),
        arms=tuple(_build_arm_row(arm, comparison.engagements) for arm in plan.arms),
        comparison=comparison,
        pins=_list_pins(plan, records),
        environment=tuple(NamedValue(name=name, value=value) for name, value in (environment or {}).items()),
        changes=tuple(changes),
        words=METRICS,
        speed=plan.speed,
    )


def _build_arm_row(arm: Arm, engagements: Iterable[Engagement]) -> ArmRow:
    own = [row for row in engagements if row.arm == arm]
    return ArmRow(
        arm=arm,
        state=max((row.state for row in own), key=STATES.index),
        totals=_sum_totals([row.totals for row in own if row.totals.turns]),
    )


def _sum_totals(parts: Sequence[Totals]) -> Totals:
    emitted = sum_reported(part.emitted_tokens for part in parts)
    forwards = sum_reported(part.forwards for part in parts)
    drafted = sum_reported(part.drafted_tokens for part in parts)
    accepted = sum_reported(part.accepted_tokens for part in parts)
    return Totals(
        turns=sum(part.turns for part in parts),
        emitted_tokens=emitted,
        forwards=forwards,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        acceptance_rate=divide(accepted, drafted),
        tokens_per_forward=divide(emitted, forwards),
    )


def _list_pins(plan: Plan, records: Sequence[CellRecord]) -> tuple[PinRow, ...]:
    """Return the settings by name, each value with the arms that had it."""
    arms: dict[Pin, set[Arm]] = {}
    for record in select_latest(records).values():
        # A probe has a setting more, which is no setting of the arm.
        for pin in record.pins if record.spec.probe is None else ():
            arms.setdefault(pin, set()).add(record.spec.arm)
    return tuple(
        PinRow(
            name=pin.name,
            value=pin.value,
            reason=pin.reason,
            overridden=pin.overridden,
            arms=tuple(arm for arm in plan.arms if arm in arms[pin]),
        )
        for pin in sorted(arms, key=lambda pin: (pin.name, pin.value, pin.reason))
    )
