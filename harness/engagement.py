"""Whether speculation was really on in an on-arm and really off in an off-arm, from counters alone.

What the engine says of itself at the start is never evidence: an engine is known to announce drafts and
make none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine_bindings.binding import UNKNOWN_DEPTH
from harness.metrics import CellMetrics, Totals, TurnMetrics, sum_turns
from harness.plan import Arm, CellSpec, Plan
from harness.scenario import Scenario
from harness.transcript import CellRecord, TurnRecord

State = Literal["on", "off", "unknown", "mixed", "idle", "void", "failed", "not measured"]

# From harmless to grave: an arm that ran a scenario several times is as good as its worst run.
STATES: tuple[State, ...] = ("on", "off", "unknown", "idle", "mixed", "not measured", "failed", "void")

# A turn this long has room for drafts at any depth of use.
MIN_ROOM_TOKENS = 4
# So many turns and tokens without a draft, behind turns that almost all had some, are no matter of their
# texts any more, not even where drafts are looked up in the text.
MAX_SILENT_TURNS = 16
MIN_SILENT_TOKENS = 128
MIN_DRAFTING_RATE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Engagement:
    """What one arm did in one scenario, over its repetitions.

    Attributes:
        arm, scenario: which.
        state: ``on`` and ``off`` are what the arm is for. ``mixed``: on, but the engine paused drafting
            for a while. ``unknown``: nobody knows at which depth it runs. ``idle``: every cap is one token,
            so nothing can be drafted. ``void``: not what the arm is for, or it cannot be shown; its turns
            prove nothing.
        evidence: in words and numbers.
        totals: counts summed over the repetitions that were measured.
    """

    arm: Arm
    scenario: str
    state: State
    evidence: str
    totals: Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEngagement:
    """What one cell did; ``void`` cells are left out of every contrast."""

    spec: CellSpec
    state: State
    evidence: str


def judge_cells(
    plan: Plan, records: Mapping[CellSpec, CellRecord], metrics: Mapping[CellSpec, CellMetrics]
) -> dict[CellSpec, CellEngagement]:
    """Judge every planned cell by its counters."""
    return {
        spec: judge_cell(plan.scenario(spec.scenario), spec, records.get(spec), metrics.get(spec))
        for spec in plan.cells
    }


def summarise_engagement(
    plan: Plan, cells: Mapping[CellSpec, CellEngagement], metrics: Mapping[CellSpec, CellMetrics]
) -> tuple[Engagement, ...]:
    """Return one row for each arm and scenario that it runs, arms first."""
    return tuple(
        _summarise_arm(arm, scenario.name, cells, metrics)
        for arm in plan.arms
        for scenario in plan.scenarios
        if any(spec.arm == arm and spec.scenario == scenario.name for spec in cells)
    )


def _summarise_arm(
    arm: Arm, scenario: str, cells: Mapping[CellSpec, CellEngagement], metrics: Mapping[CellSpec, CellMetrics]
) -> Engagement:
    own = [cell for spec, cell in cells.items() if spec.arm == arm and spec.scenario == scenario]
    worst = max(own, key=lambda cell: (STATES.index(cell.state), -cell.spec.repetition))
    measured = [metrics[cell.spec] for cell in own if cell.spec in metrics and cell.state != "failed"]
    totals = sum_turns([turn for cell in measured for turn in cell.turns])
    if worst.state in ("on", "off", "unknown"):
        return Engagement(
            arm=arm, scenario=scenario, state=worst.state, evidence=_describe(totals), totals=totals
        )
    agreed = all(cell.state == worst.state for cell in own)
    evidence = worst.evidence if agreed else f"repetition {worst.spec.repetition}: {worst.evidence}"
    return Engagement(arm=arm, scenario=scenario, state=worst.state, evidence=evidence, totals=totals)


def judge_cell(
    scenario: Scenario, spec: CellSpec, record: CellRecord | None, metrics: CellMetrics | None
) -> CellEngagement:
    """Judge one cell by its counters, also one that still runs."""
    if record is None or metrics is None:
        return CellEngagement(spec=spec, state="not measured", evidence="not measured")
    if record.failure is not None:
        return CellEngagement(spec=spec, state="failed", evidence=record.failure.message)
    if record.kv_resumed_tokens:
        evidence = f"the engine resumed a saved conversation of {record.kv_resumed_tokens} tokens"
        return CellEngagement(spec=spec, state="void", evidence=evidence)
    if spec.arm.depth == UNKNOWN_DEPTH:
        return CellEngagement(spec=spec, state="unknown", evidence=_describe(sum_turns(metrics.turns)))
    state, evidence = (
        _judge_on(scenario, record, metrics.turns) if spec.arm.depth else _judge_off(record, metrics.turns)
    )
    return CellEngagement(spec=spec, state=state, evidence=evidence)


def _judge_on(scenario: Scenario, record: CellRecord, turns: Sequence[TurnMetrics]) -> tuple[State, str]:
    totals = sum_turns(turns)
    if scenario.cap_tokens == 1:
        return "idle", "every cap is 1 token: nothing can be drafted"
    if totals.accepted_tokens is None and totals.drafted_tokens is None:
        return "void", "not reported: neither drafts nor forwards, so drafting cannot be shown"
    if not any(map(shows_drafts, record.turns)):
        return "void", f"no sign of drafts: {_describe(totals)}"
    pauses = sum(turn.drafts_paused for turn in record.turns)
    if pauses:
        times = "once" if pauses == 1 else f"{pauses} times"
        return "mixed", f"the engine paused drafting {times}: {_describe(totals)}"
    if silence := _describe_silence(record.turns):
        return "void", silence
    return "on", _describe(totals)


def _describe_silence(turns: Sequence[TurnRecord]) -> str:
    """Say where an engine ceased to draft for the rest of its cell; empty where it did not."""
    long = [turn for turn in turns if (turn.emitted_tokens or 0) >= MIN_ROOM_TOKENS]
    drafting = [shows_drafts(turn) for turn in long]
    last = max((i for i, drafts in enumerate(drafting) if drafts), default=-1)
    silent = len(long) - last - 1
    tokens = sum(turn.emitted_tokens or 0 for turn in long[last + 1 :])
    if silent < MAX_SILENT_TURNS or tokens < MIN_SILENT_TOKENS:
        return ""
    if sum(drafting) < MIN_DRAFTING_RATE * (last + 1):
        return ""
    where = f"{long[last + 1].conversation} turn {long[last + 1].turn + 1}"
    before = f"{sum(drafting)} of {last + 1} before had some"
    return f"no sign of drafts from {where} on, in {silent} turns; {before}"


def _judge_off(record: CellRecord, turns: Sequence[TurnMetrics]) -> tuple[State, str]:
    totals = sum_turns(turns)
    if totals.emitted_tokens is None or (totals.forwards is None and totals.drafted_tokens is None):
        return "void", "not reported: neither forwards nor drafts, so the absence of drafts cannot be shown"
    for turn in record.turns:
        if shows_drafts(turn):
            where = f"{turn.conversation} turn {turn.turn + 1}"
            drafted = f", drafted {turn.drafted_tokens}" if turn.drafted_tokens else ""
            counts = f"{turn.emitted_tokens} tokens in {turn.forwards} forwards{drafted}"
            return "void", f"drafts with speculation off: {counts} in {where}"
    return "off", _describe(totals)


def shows_drafts(turn: TurnRecord) -> bool:
    """Say whether the counts of a turn can be explained by drafts only.

    The first token comes from prefill. The forward of the last one is needed only to see a stop token
    behind it, so
    an engine may leave it out in a turn that ended otherwise: one token more than forwards is then no sign
        of drafts.
    """
    if turn.drafted_tokens or turn.accepted_tokens:
        return True
    if turn.emitted_tokens is None or turn.forwards is None or turn.finish == "cancelled":
        return False
    return turn.forwards < turn.emitted_tokens - (0 if turn.finish == "stop" else 1)


def _describe(totals: Totals) -> str:
    tokens = _count(totals.emitted_tokens, "token")
    said = [f"{tokens} in {_count(totals.forwards, 'forward')}"]
    if totals.drafted_tokens is not None:
        said.append(f"drafted {totals.drafted_tokens:,}")
    if totals.accepted_tokens is not None:
        said.append(f"accepted {totals.accepted_tokens:,}")
    return ", ".join(said)


def _count(number: int | None, noun: str) -> str:
    if number is None:
        return f"an unreported number of {noun}s"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
