"""Decides after each turn of a running cell whether to end it there, so that probes can look into what the
turn showed before more tokens are spent.

What is decided here costs tokens or saves them. It is never evidence: the verdict is given on records.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.comparison import count_tokens
from harness.counters import find_count_faults
from harness.engagement import judge_cell
from harness.grammar_validity import check_validity, name_breaches
from harness.metrics import derive_metrics
from harness.pairing import compare_pair, pair_records, select_latest
from harness.plan import CellSpec, Contrast, Plan
from harness.prefill import build_prefill_table
from harness.transcript import CellRecord, Stop, TurnRecord

# What running a cell again would cost is weighed against what ending it saves. Most differences turn out to
# be faults, so at first a saving of a quarter is enough. Once a stop proved nothing, the engine is one that
# differs without a fault, and ending a cell must save as much as it may cost.
FIRST_SAVING_RATIO = 0.25
LATER_SAVING_RATIO = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Something in the newest turns that probes may prove to be a fault. Equal ``key``: the same thing."""

    key: Hashable
    conversation: str
    turn: int
    reason: str


class StopJudge:
    """Ends cells early, each thing that it sees once only: what probes did not prove, they do not prove
    twice.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._seen: set[Hashable] = set()

    def check(
        self, records: Sequence[CellRecord], partial: CellRecord, fresh: Sequence[TurnRecord]
    ) -> Stop | None:
        """Return why a cell is to end here, or None.

        Args:
            records: of the cells and probes before it.
            partial: the cell so far.
            fresh: its newest turns.
        """
        latest = select_latest(records)
        # A stop that proved something was the last: the run ended with it.
        ratio = LATER_SAVING_RATIO if self._seen else FIRST_SAVING_RATIO
        if _weigh_saving(self._plan, latest, partial) < ratio:
            return None
        if not _fits_budget(self._plan, records, partial):
            return None
        for sight in find_sights(self._plan, latest, partial, fresh):
            if sight.key not in self._seen:
                self._seen.add(sight.key)
                left = self._plan.scenario(partial.spec.scenario).turn_count - len(partial.turns)
                return Stop(
                    conversation=sight.conversation, turn=sight.turn, reason=sight.reason, turns_left=left
                )
        return None


def find_sights(
    plan: Plan, latest: Mapping[CellSpec, CellRecord], partial: CellRecord, fresh: Sequence[TurnRecord]
) -> Iterator[Sight]:
    """Yield what the newest turns of a cell show: faults of the cell alone, then differences from others.

    A cell that is void so far shows nothing that counts.
    """
    if _is_void(plan, partial):
        return
    if not plan.is_baseline(partial.spec.arm):
        yield from _find_own_faults(plan, partial)
    for contrast in plan.contrasts:
        other = _find_other(contrast, partial, latest)
        if other is not None and not _is_void(plan, other):
            yield from _find_differences(plan, contrast, partial, other, fresh)


def reserve_tokens(plan: Plan, records: Sequence[CellRecord]) -> int:
    """Return what the cells that are not at their end decode at most, one that was ended early included."""
    latest = select_latest(records)
    left = [spec for spec in plan.cells if spec not in latest or latest[spec].stop is not None]
    return sum(plan.scenario(spec.scenario).worst_case_tokens for spec in left)


def _weigh_saving(plan: Plan, latest: Mapping[CellSpec, CellRecord], partial: CellRecord) -> float:
    """Return the tokens that a cell has left, as a share of those that it took."""
    asked = {(turn.conversation, turn.turn) for turn in partial.turns}
    left = sum(
        tokens for place, tokens in _expect_tokens(plan, latest, partial.spec).items() if place not in asked
    )
    return left / max(1, count_tokens((partial,)))


def _expect_tokens(
    plan: Plan, latest: Mapping[CellSpec, CellRecord], spec: CellSpec
) -> dict[tuple[str, int], int]:
    """Return the tokens of each turn: as another cell of the scenario took them, or else the cap."""
    scenario = plan.scenario(spec.scenario)
    expected = {
        (conversation.id, index): turn.max_tokens
        for conversation in scenario.conversations
        for index, turn in enumerate(conversation.turns)
    }
    for other, record in latest.items():
        if other.scenario == spec.scenario and other.probe is None:
            for turn in record.turns:
                if turn.emitted_tokens is not None:
                    expected[turn.conversation, turn.turn] = turn.emitted_tokens
    return expected


def _fits_budget(plan: Plan, records: Sequence[CellRecord], partial: CellRecord) -> bool:
    """Say whether the budget has room for this cell once more and all that is still to be run."""
    if plan.budget_tokens is None:
        return True
    return count_tokens((*records, partial)) + reserve_tokens(plan, records) <= plan.budget_tokens


def _is_void(plan: Plan, record: CellRecord) -> bool:
    scenario = plan.scenario(record.spec.scenario)
    return judge_cell(scenario, record.spec, record, derive_metrics(record)).state == "void"


def _find_own_faults(plan: Plan, partial: CellRecord) -> Iterator[Sight]:
    cell, figures = {partial.spec: partial}, {partial.spec: derive_metrics(partial)}
    wrong = [row for row in build_prefill_table(plan, cell, figures) if row.state == "wrong"]
    for row in wrong:
        yield Sight(
            key=(row.arm, row.scenario, row.conversation, row.turn, "prefix"),
            conversation=row.conversation,
            turn=row.turn,
            reason="it took another prefix from the cache than it must",
        )
    for finding in (*find_count_faults(plan, cell), *name_breaches(check_validity(plan, cell))):
        yield Sight(
            key=(finding.arms, finding.place, finding.rule),
            conversation=finding.conversation,
            turn=finding.turn,
            reason=finding.reason,
        )


def _find_other(
    contrast: Contrast, partial: CellRecord, latest: Mapping[CellSpec, CellRecord]
) -> CellRecord | None:
    """Return the cell that a contrast holds the running one against, if it was measured."""
    spec = partial.spec
    if contrast.kind == "self" or spec.arm not in (contrast.a, contrast.b):
        return None
    if contrast.kind == "within":
        return partial
    arm = contrast.b if spec.arm == contrast.a else contrast.a
    other = latest.get(CellSpec(arm=arm, scenario=spec.scenario, repetition=spec.repetition))
    return other if other is not None and other.failure is None else None


def _find_differences(
    plan: Plan, contrast: Contrast, partial: CellRecord, other: CellRecord, fresh: Sequence[TurnRecord]
) -> Iterator[Sight]:
    """Yield the first difference of each conversation, where one of its newest turns shows it."""
    scenario = plan.scenario(partial.spec.scenario)
    if scenario.temperature > 0:
        return
    new = {(turn.conversation, turn.turn) for turn in fresh}
    talks = {turn.conversation for turn in fresh}
    a, b = (partial, other) if partial.spec.arm == contrast.a else (other, partial)
    for pair in pair_records(plan, contrast, a, b):
        place = (pair.a.conversation, pair.a.turn)
        if pair.a.conversation not in talks:
            continue
        found = compare_pair(pair, counters=plan.compares_counters(contrast, scenario.name)).differences
        if found and place in new:
            texts, values = {pair.a.text, pair.b.text}, {found[0].a, found[0].b}
            yield Sight(
                key=(scenario.name, place, found[0].field, frozenset(texts), frozenset(values)),
                conversation=place[0],
                turn=place[1],
                reason=_describe(contrast, other, found[0].field),
            )
        if found:
            talks.discard(pair.a.conversation)


def _describe(contrast: Contrast, other: CellRecord, field: str) -> str:
    if contrast.kind == "within":
        return f"{field} is not what the scenario asks for"
    return f"{field} is not as in {other.spec.arm.label}"
