"""Holds the pairs of each contrast against each other and says whether its relation holds, breaks or stays
open.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from harness.engagement import CellEngagement
from harness.findings import Finding
from harness.identity import Difference, Field
from harness.pairing import ContrastPairs, MissingPairs, Pairing, TurnPair, compare_pair
from harness.plan import Arm, CellSpec, Contrast, Plan

# A run that was ended early lacks nearly all of them.
MAX_CELLS_NAMED = 3

ContrastState = Literal["identical", "explained", "different", "undecided", "sampled", "not checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDifference:
    """A turn of a conversation in which two arms differ, with every field that does.

    It is the first one, or one that differs in another field than the turns before it, while the answers were
    the same: what an answer differs in is carried on by all later prompts.

    ``repetitions_a`` and ``repetitions_b`` list the repetitions that showed just this.
    """

    scenario: str
    conversation: str
    turn: int
    repetitions_a: tuple[int, ...]
    repetitions_b: tuple[int, ...]
    differences: tuple[Difference, ...]

    @property
    def in_tokens(self) -> bool:
        """Whether the answers differ, and not only their ends or counts."""
        return any(difference.field == "tokens" for difference in self.differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCount:
    """In how many pairs a field could not be compared, because a side does not report it."""

    field: str
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastResult:
    """What became of one contrast.

    Attributes:
        contrast: the arms and the relation.
        state: ``different`` is proven, and no near-tie: both arms are what they should be and equal
            themselves. ``explained``: nothing differs but proven near-ties. ``sampled``: all answers were
            drawn, so they are tested for one distribution and not compared.
        reasons: why it is undecided, in plain sentences.
        pairs_checked, pairs_identical: turns.
        tokens_compared: tokens in the pairs checked, each pair once.
        bytes_compared: answer bytes likewise.
        excluded_after_difference: later turns of a conversation whose answers had differed: their prompts
            differ too.
        excluded_void: turns of void cells.
        excluded_sampled: turns at a temperature above 0, whose text differs between arms by design. An arm is
            held against itself all the same: its seed is fixed; and so are turns of one cell, where the
            engine's draws repeat.
        missing: pairs without both sides.
        not_compared: fields that a side does not report.
        found: the first difference of each conversation, and later ones in other fields.
        scenarios: those that it has pairs in, or lacks them in.
        repeated_differences: later turns that differ in nothing but fields that had differed before, their
            answers being the same.
    """

    contrast: Contrast
    state: ContrastState
    reasons: tuple[str, ...]
    pairs_checked: int
    pairs_identical: int
    tokens_compared: int
    bytes_compared: int
    excluded_after_difference: int
    excluded_void: int
    excluded_sampled: int
    missing: tuple[MissingPairs, ...]
    not_compared: tuple[FieldCount, ...]
    found: tuple[FoundDifference, ...]
    scenarios: tuple[str, ...] = ()
    repeated_differences: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedContrast:
    """A contrast's result together with the pairs that proved identical, for the stages that build on
    them.
    """

    result: ContrastResult
    identical: tuple[TurnPair, ...]


def check_contrasts(
    plan: Plan, pairing: Pairing, cells: Mapping[CellSpec, CellEngagement]
) -> tuple[CheckedContrast, ...]:
    """Compare all pairs, then decide each contrast in the light of what the arms showed against
    themselves.
    """
    counted = [_count_contrast(plan, pairs, cells) for pairs in pairing.contrasts]
    selves = {item.result.contrast.a: item for item in counted if item.result.contrast.kind == "self"}
    return tuple(replace(item, result=_decide(item.result, selves, cells)) for item in counted)


class _Tally:
    """What the pairs of one contrast add up to."""

    def __init__(self) -> None:
        self.excluded: Counter[str] = Counter()
        self.not_compared: Counter[str] = Counter()
        self.identical: list[TurnPair] = []
        self.found: list[FoundDifference] = []
        self.repeated = 0
        self.tokens = 0
        self.bytes = 0
        self._differed: defaultdict[tuple[CellSpec, CellSpec, str], set[Field]] = defaultdict(set)

    def add(self, pair: TurnPair, *, counters: bool) -> None:
        """Compare one pair, unless an answer of its conversation has differed before."""
        known = self._differed[pair.cell_a, pair.cell_b, pair.a.conversation]
        if "tokens" in known:
            self.excluded["after a difference"] += 1
            return
        self.tokens += pair.a.emitted_tokens or 0
        self.bytes += len(pair.a.text)
        comparison = compare_pair(pair, counters=counters)
        self.not_compared.update(comparison.not_compared)
        fields = {difference.field for difference in comparison.differences}
        if not fields:
            self.identical.append(pair)
        elif fields <= known:
            self.repeated += 1
        else:
            self.found.append(_describe_found(pair, comparison.differences))
        known |= fields


def _count_contrast(
    plan: Plan, pairs: ContrastPairs, cells: Mapping[CellSpec, CellEngagement]
) -> CheckedContrast:
    tally = _Tally()
    for pair in pairs.pairs:
        if "void" in (cells[pair.cell_a].state, cells[pair.cell_b].state):
            tally.excluded["void"] += 1
        elif not plan.compares_texts(pairs.contrast, pair.cell_a.scenario):
            tally.excluded["sampled"] += 1
        else:
            tally.add(pair, counters=plan.compares_counters(pairs.contrast, pair.cell_a.scenario))
    result = ContrastResult(
        contrast=pairs.contrast,
        state="not checked",
        reasons=(),
        pairs_checked=len(tally.identical) + len(tally.found) + tally.repeated,
        pairs_identical=len(tally.identical),
        tokens_compared=tally.tokens,
        bytes_compared=tally.bytes,
        excluded_after_difference=tally.excluded["after a difference"],
        excluded_void=tally.excluded["void"],
        excluded_sampled=tally.excluded["sampled"],
        missing=pairs.missing,
        not_compared=tuple(FieldCount(field=f, pairs=n) for f, n in sorted(tally.not_compared.items())),
        found=_join_repetitions(tally.found),
        scenarios=tuple(
            dict.fromkeys(
                (*(p.cell_a.scenario for p in pairs.pairs), *(m.cell.scenario for m in pairs.missing))
            )
        ),
        repeated_differences=tally.repeated,
    )
    return CheckedContrast(result=result, identical=tuple(tally.identical))


def _describe_found(pair: TurnPair, differences: tuple[Difference, ...]) -> FoundDifference:
    return FoundDifference(
        scenario=pair.cell_a.scenario,
        conversation=pair.a.conversation,
        turn=pair.a.turn,
        repetitions_a=(pair.cell_a.repetition,),
        repetitions_b=(pair.cell_b.repetition,),
        differences=differences,
    )


def _join_repetitions(found: Iterable[FoundDifference]) -> tuple[FoundDifference, ...]:
    """Join what several repetitions showed alike."""
    joined: dict[tuple[object, ...], FoundDifference] = {}
    for item in found:
        key = (item.scenario, item.conversation, item.turn, item.differences)
        known = joined.get(key)
        joined[key] = (
            item
            if known is None
            else replace(
                known,
                repetitions_a=known.repetitions_a + item.repetitions_a,
                repetitions_b=known.repetitions_b + item.repetitions_b,
            )
        )
    return tuple(joined.values())


def _decide(
    result: ContrastResult, selves: Mapping[Arm, CheckedContrast], cells: Mapping[CellSpec, CellEngagement]
) -> ContrastResult:
    if result.contrast.kind == "self":
        return _decide_self(result)
    doubts = [
        f"{arm.label} does not equal itself, so nothing can be said about it"
        for arm in unsteady_arms(result.contrast, selves)
    ]
    doubts += _open_points(result, cells)
    # What a difference is worth is decided from its evidence, by ``settle_contrast``.
    state: ContrastState = "identical" if result.pairs_checked else "sampled"
    state = "undecided" if doubts or result.found else state
    return replace(result, state=state, reasons=tuple(doubts))


def settle_contrast(result: ContrastResult, findings: Iterable[Finding]) -> ContrastResult:
    """Return the contrast with the state that the findings on its differences give it."""
    own = [finding for finding in findings if finding.contrast == result.contrast.name]
    if not result.found or result.contrast.kind == "self":
        return result
    effects = {finding.effect for finding in own}
    if "fail" in effects:
        return replace(result, state="different", reasons=())
    opened = [f"{finding.place}: {finding.reason}" for finding in own if finding.effect == "open"]
    reasons = tuple(dict.fromkeys((*result.reasons, *opened)))
    return replace(result, state="undecided" if reasons else "explained", reasons=reasons)


def _decide_self(result: ContrastResult) -> ContrastResult:
    if result.found:
        reason = f"{result.contrast.a.label} does not equal itself"
        return replace(result, state="different", reasons=(reason,))
    points = _left_out(result)
    if result.pairs_checked == 0:
        return replace(result, state="not checked", reasons=tuple(points))
    return replace(result, state="undecided" if points else "identical", reasons=tuple(points))


def list_found(results: Iterable[ContrastResult]) -> list[tuple[ContrastResult, FoundDifference]]:
    """Return all differences as they are worth reading: the first, then those in tokens, then the rest."""
    found = [(result, difference) for result in results for difference in result.found]
    return [*found[:1], *sorted(found[1:], key=lambda item: not item[1].in_tokens)]


def unsteady_arms(contrast: Contrast, selves: Mapping[Arm, CheckedContrast]) -> list[Arm]:
    """Return the arms of a contrast that were seen not to equal themselves."""
    return [arm for arm in (contrast.a, contrast.b) if selves[arm].result.found]


def unrepeated_arms(
    contrast: Contrast, found: FoundDifference, selves: Mapping[Arm, CheckedContrast]
) -> list[Arm]:
    """Return the arms that are not known to repeat the differing turn exactly.

    What differs there may be nothing but an arm's own unsteadiness.
    """
    turn = (found.scenario, found.conversation, found.turn)
    return [
        arm
        for arm in (contrast.a, contrast.b)
        if all(_turn_key(pair) != turn for pair in selves[arm].identical)
    ]


def _turn_key(pair: TurnPair) -> tuple[str, str, int]:
    return pair.cell_a.scenario, pair.a.conversation, pair.a.turn


def _open_points(result: ContrastResult, cells: Mapping[CellSpec, CellEngagement]) -> list[str]:
    points = _left_out(result)
    if result.pairs_checked == 0 and not points and not result.excluded_sampled:
        points.append("nothing was compared")
    on_arms = [arm for arm in (result.contrast.a, result.contrast.b) if arm.depth > 0]
    for arm in on_arms:
        states = [cell.state for spec, cell in cells.items() if spec.arm == arm]
        if states and all(state == "idle" for state in states):
            points.append(f"{arm.label} could draft nothing: every cap is 1 token")
    return points


def _left_out(result: ContrastResult) -> list[str]:
    points = []
    if result.excluded_void:
        points.append(f"{_turns(result.excluded_void)} of void cells left out")
    for reason in ("failed", "not measured", "turns missing", "ended early"):
        missing = [item for item in result.missing if item.reason == reason]
        if missing:
            turns = _turns(sum(item.pairs for item in missing))
            points.append(f"{turns} left out: {_list_cells(item.cell for item in missing)} {reason}")
    return points


def _turns(number: int) -> str:
    return f"{number:,} turn{'' if number == 1 else 's'}"


def _list_cells(cells: Iterable[CellSpec]) -> str:
    keys = list(dict.fromkeys(cell.key for cell in cells))
    named = [f"cell {key!r}" for key in keys[:MAX_CELLS_NAMED]]
    return ", ".join(named) + (f" and {len(keys) - len(named)} more" if len(keys) > len(named) else "")
