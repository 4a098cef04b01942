"""Which turn of which cell is held against which: the pairs of every contrast, and what is missing for
them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from harness.expectations import expect_answer, is_cut
from harness.identity import TurnComparison, compare_turns
from harness.plan import CellSpec, Contrast, Plan
from harness.relations import Relation, list_relations
from harness.transcript import CellRecord, TurnRecord

# "other tokens": the engine reads joined answers as other tokens than it gave, so it need not go on alike.
MissingReason = Literal["not measured", "failed", "turns missing", "other tokens", "ended early"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPair:
    """Two turns that must be the same.

    ``prefix_uncertain`` is true when the turn before was cut at a stop string on a side, as what the engine
    then holds in its cache depends on when it heard of the stop; and between two kinds of engine.
    ``prefix_moved``: a side runs in another context, where something else ran before, so only the prefix
    differs by design. ``answers_only`` is true where the prompts of the two differ, so that only what was
    answered must be the same. ``same_request`` is true where the two differ in what ran before them only:
    their prompt, cap and stop strings are the same. ``may_be_cut``: the cap of the first side, which
    is one of its own, ended the answer, or may have ended it.
    """

    cell_a: CellSpec
    cell_b: CellSpec
    a: TurnRecord
    b: TurnRecord
    prefix_uncertain: bool
    answers_only: bool = False
    prefix_moved: bool = False
    same_request: bool = False
    may_be_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPairs:
    """Turns of a contrast that cannot be compared: which cell is to blame, why, and how many pairs it
    costs.
    """

    contrast: str
    cell: CellSpec
    reason: MissingReason
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastPairs:
    """The pairs of one contrast in the order of the scenarios, repetitions, conversations and turns."""

    contrast: Contrast
    pairs: tuple[TurnPair, ...]
    missing: tuple[MissingPairs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The pairs of every contrast of a plan, in the plan's order."""

    contrasts: tuple[ContrastPairs, ...]


def select_latest(records: Iterable[CellRecord]) -> dict[CellSpec, CellRecord]:
    """Return the last attempt at each cell, in the order in which cells first appear."""
    latest: dict[CellSpec, CellRecord] = {}
    for record in records:
        known = latest.get(record.spec)
        if known is None or record.attempt >= known.attempt:
            latest[record.spec] = record
    return latest


def pair_cells(plan: Plan, records: Iterable[CellRecord]) -> Pairing:
    """Pair the turns of the last attempt at each cell, contrast by contrast.

    An attempt that was ended early is held against the one that went to the end: a cell must equal itself.
    """
    known = tuple(records)
    latest = select_latest(known)
    stopped = [record for record in known if record.stop is not None and latest[record.spec] is not record]
    contrasts = []
    for contrast in plan.contrasts:
        pairs = _pair_contrast(plan, contrast, latest)
        if contrast.kind == "self":
            own = [record for record in stopped if record.spec.arm == contrast.a]
            pairs = replace(pairs, pairs=(*pairs.pairs, *_pair_attempts(plan, contrast, own, latest)))
        contrasts.append(pairs)
    return Pairing(contrasts=tuple(contrasts))


def _pair_contrast(plan: Plan, contrast: Contrast, latest: Mapping[CellSpec, CellRecord]) -> ContrastPairs:
    pairs: list[TurnPair] = []
    missing: list[MissingPairs] = []
    planned = set(plan.cells)
    for cell_a, cell_b in _cell_pairs(plan, contrast):
        if not planned.issuperset((cell_a, cell_b)):
            continue  # a path that cannot run this scenario; the plan's notes say so
        scenario = plan.scenario(cell_a.scenario)
        relations = list_relations(scenario) if contrast.kind == "within" else ()
        expected = len(relations) if contrast.kind == "within" else scenario.turn_count
        if not expected:
            continue
        reasons = {
            cell: reason
            for cell in (cell_a, cell_b)
            if (reason := _find_gap(latest.get(cell), scenario.turn_count))
        }
        found: list[TurnPair] = []
        if set(reasons.values()) <= {"ended early"}:
            found = pair_records(plan, contrast, latest[cell_a], latest[cell_b])
        if lost := expected - len(found):
            cell, reason = next(iter(reasons.items()), (cell_a, "other tokens"))
            missing.append(MissingPairs(contrast=contrast.name, cell=cell, reason=reason, pairs=lost))
        pairs += found
    return ContrastPairs(contrast=contrast, pairs=tuple(pairs), missing=tuple(missing))


def pair_records(plan: Plan, contrast: Contrast, a: CellRecord, b: CellRecord) -> list[TurnPair]:
    """Pair the turns of two cells of a contrast, as far as both have them."""
    if contrast.kind == "within":
        return _pair_related(a, list_relations(plan.scenario(a.spec.scenario)))
    moved = _list_moved(plan, a.spec, b.spec)
    # Nor does a cell on a server that ran before start as another one did.
    across = plan.crosses_engines(contrast) or not plan.cold_cells
    return list(_pair_turns(a, b, moved, across=across))


def _pair_attempts(
    plan: Plan, contrast: Contrast, stopped: Iterable[CellRecord], latest: Mapping[CellSpec, CellRecord]
) -> Iterator[TurnPair]:
    for record in stopped:
        if latest[record.spec].failure is None:
            yield from pair_records(plan, contrast, record, latest[record.spec])


def _cell_pairs(plan: Plan, contrast: Contrast) -> Iterator[tuple[CellSpec, CellSpec]]:
    slots = {contrast.a.slots, contrast.b.slots} - {1}
    for scenario in plan.scenarios:
        if slots and scenario.slots not in slots:
            continue
        for repetition in range(max((spec.repetition for spec in plan.cells), default=0) + 1):
            if contrast.kind != "self":
                yield (
                    CellSpec(arm=contrast.a, scenario=scenario.name, repetition=repetition),
                    CellSpec(arm=contrast.b, scenario=scenario.name, repetition=repetition),
                )
            elif repetition:
                yield (
                    CellSpec(arm=contrast.a, scenario=scenario.name, repetition=0),
                    CellSpec(arm=contrast.a, scenario=scenario.name, repetition=repetition),
                )


def _find_gap(record: CellRecord | None, turns: int) -> MissingReason | None:
    if record is None:
        return "not measured"
    if record.failure is not None:
        return "failed"
    if record.stop is not None:
        return "ended early"
    return "turns missing" if len(record.turns) != turns else None


def _list_moved(plan: Plan, a: CellSpec, b: CellSpec) -> frozenset[str]:
    """Return the conversations that begin in another context on one side, behind other ones.

    The very first begins in an empty one on both sides.
    """
    scenario = plan.scenario(a.scenario)
    named = {spec.arm.path in plan.context_paths and spec.arm.slots == 1 for spec in (a, b)}
    if scenario.contexts == 1 or len(named) == 1:
        return frozenset()
    return frozenset(conversation.id for conversation in scenario.conversations[1:])


def compare_pair(pair: TurnPair, *, counters: bool) -> TurnComparison:
    """Compare the two turns of a pair, as ``compare_turns`` does."""
    return compare_turns(
        pair.a,
        pair.b,
        prefix_uncertain=pair.prefix_uncertain,
        prefix_moved=pair.prefix_moved,
        answers_only=pair.answers_only,
        same_request=pair.same_request,
        may_be_cut=pair.may_be_cut,
        counters=counters,
    )


def _pair_turns(
    a: CellRecord, b: CellRecord, moved_conversations: frozenset[str], *, across: bool
) -> Iterator[TurnPair]:
    uncertain = False
    cancelled: bytes | None = None
    others = {(turn.conversation, turn.turn): turn for turn in b.turns}
    for left in a.turns:
        right = others.get((left.conversation, left.turn))
        if right is None:
            continue
        # How far an answer got before its cancel is chance, and a prompt that goes on into it finds so much.
        goes_on = cancelled is not None and left.prompt != cancelled and left.prompt.startswith(cancelled)
        # What ran before in a context is not the same with another number of contexts.
        moved = a.spec.arm.slots != b.spec.arm.slots
        # Nor need two kinds of engine keep the same of it.
        yield TurnPair(
            cell_a=a.spec,
            cell_b=b.spec,
            a=left,
            b=right,
            prefix_uncertain=uncertain or goes_on or moved or across,
            prefix_moved=left.turn == 0 and left.conversation in moved_conversations,
        )
        finishes = (left.finish, right.finish)
        # A cancel is another command on each path, and what it leaves in the cache may be another thing.
        crossed = a.spec.arm.path != b.spec.arm.path
        uncertain = "stop-string" in finishes or (crossed and "cancelled" in finishes)
        cancelled = left.prompt if "cancelled" in finishes else None


def _pair_related(record: CellRecord, relations: Iterable[Relation]) -> list[TurnPair]:
    """Pair each turn with what the scenario says of its answer, where that can be said of this cell."""
    turns = {(turn.conversation, turn.turn): turn for turn in record.turns}
    pairs = []
    for relation in relations:
        asked = all((relation.conversation, turn) in turns for turn in (relation.turn, *relation.parts))
        expected = expect_answer(relation, turns) if asked else None
        if expected is not None:
            turn = turns[relation.conversation, relation.turn]
            pairs.append(
                TurnPair(
                    cell_a=record.spec,
                    cell_b=record.spec,
                    a=turn,
                    b=expected,
                    prefix_uncertain=True,
                    answers_only=True,
                    same_request=relation.same_limits and turn.prompt == expected.prompt,
                    may_be_cut=is_cut(turn, relation.cap_tokens),
                )
            )
    return pairs
