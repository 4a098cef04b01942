"""Speed by the client's clock, and what speculation is worth; judged only over pairs of turns that are
identical.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.contrasts import CheckedContrast
from harness.degenerate import DegenerateAnswer, IsDegenerate, mark_degenerate
from harness.engagement import CellEngagement
from harness.metrics import CellMetrics, TurnMetrics, divide, median_reported, sum_turns
from harness.pairing import TurnPair
from harness.plan import Arm, CellSpec, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpeed:
    """Medians over the turns of one arm; ``rated_turns`` of ``turns`` were long enough for a rate."""

    arm: Arm
    decode_tokens_per_s: float | None
    ttft_ms: float | None
    time_per_forward_ms: float | None
    engine_tokens_per_s: float | None
    rated_turns: int
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """What speculation is worth on one path, over all turns or over one class of conversations.

    Attributes:
        off, on: the arms.
        category: the class, None for all.
        pairs: identical pairs whose answer is no degenerate one.
        degenerate_pairs: identical pairs that were left out because their answer loops or recites.
        rated_pairs: those with a rate on both sides.
        acceptance_rate, tokens_per_forward: of the on-arm, over the identical pairs.
        speedup_ratio, tokens_per_forward_ratio, time_per_forward_ratio: as in docs/metrics.md.
        remark: why there is no ratio; empty when there is one.
    """

    off: Arm
    on: Arm
    category: str | None
    pairs: int
    degenerate_pairs: int
    rated_pairs: int
    acceptance_rate: float | None
    tokens_per_forward: float | None
    speedup_ratio: float | None
    tokens_per_forward_ratio: float | None
    time_per_forward_ratio: float | None
    remark: str


def summarise_speed(
    plan: Plan, cells: Mapping[CellSpec, CellEngagement], metrics: Mapping[CellSpec, CellMetrics]
) -> tuple[ArmSpeed, ...]:
    """Return the medians of each arm over its cells that did not fail."""
    rows = []
    for arm in plan.arms:
        own = [cell for spec, cell in metrics.items() if spec.arm == arm and cells[spec].state != "failed"]
        turns = [turn for cell in own for turn in cell.turns]
        rows.append(_summarise_arm(arm, turns))
    return tuple(rows)


def derive_speedups(
    plan: Plan,
    checked: Iterable[CheckedContrast],
    metrics: Mapping[CellSpec, CellMetrics],
    degenerate: tuple[DegenerateAnswer, ...] = (),
) -> tuple[Speedup, ...]:
    """Return, for each path, the speed-up over all identical pairs and then class by class.

    Pairs with a degenerate answer are left out: a head guesses a loop without knowing the model.
    """
    marks = mark_degenerate(degenerate)
    figures = {
        (spec, turn.conversation, turn.turn): turn for spec, cell in metrics.items() for turn in cell.turns
    }
    rows = []
    for contrast in checked:
        if contrast.result.contrast.kind == "speculation":
            # Cells that were taken over from another run have no times that count here.
            timed = tuple(p for p in contrast.identical if {p.cell_a, p.cell_b} <= metrics.keys())
            rows += _derive_rows(plan, replace(contrast, identical=timed), figures, marks)
    return tuple(rows)


_Figures = Mapping[tuple[CellSpec, str, int], TurnMetrics]


def _summarise_arm(arm: Arm, turns: Sequence[TurnMetrics]) -> ArmSpeed:
    rates = [turn.decode_tokens_per_s for turn in turns]
    return ArmSpeed(
        arm=arm,
        decode_tokens_per_s=median_reported(rates),
        ttft_ms=median_reported(turn.ttft_ms for turn in turns),
        time_per_forward_ms=median_reported(turn.time_per_forward_ms for turn in turns),
        engine_tokens_per_s=median_reported(turn.engine_tokens_per_s for turn in turns),
        rated_turns=sum(rate is not None for rate in rates),
        turns=len(turns),
    )


def _derive_rows(
    plan: Plan, checked: CheckedContrast, figures: _Figures, marks: IsDegenerate
) -> list[Speedup]:
    categories = {
        (scenario.name, conversation.id): conversation.category
        for scenario in plan.scenarios
        for conversation in scenario.conversations
    }
    rows = [_derive_speedup(checked, None, checked.identical, figures, marks)]
    names = tuple(dict.fromkeys(categories.values()))
    if len(names) > 1:
        for name in names:
            pairs = [p for p in checked.identical if categories[p.cell_a.scenario, p.a.conversation] == name]
            rows.append(_derive_speedup(checked, name, pairs, figures, marks))
    return rows


def _derive_speedup(
    checked: CheckedContrast,
    category: str | None,
    identical: Sequence[TurnPair],
    figures: _Figures,
    marks: IsDegenerate,
) -> Speedup:
    pairs = [p for p in identical if not marks(p.cell_b.arm, p.cell_b.scenario, p.b.conversation, p.b.turn)]
    off = [figures[pair.cell_a, pair.a.conversation, pair.a.turn] for pair in pairs]
    on = [figures[pair.cell_b, pair.b.conversation, pair.b.turn] for pair in pairs]
    rated = [(a, b) for a, b in zip(off, on, strict=True) if a.decode_tokens_per_s and b.decode_tokens_per_s]
    totals = sum_turns(on)
    speedup = divide(
        median_reported(b.decode_tokens_per_s for _, b in rated),
        median_reported(a.decode_tokens_per_s for a, _ in rated),
    )
    forward_ratio = divide(
        sum_turns([b for _, b in rated]).tokens_per_forward,
        sum_turns([a for a, _ in rated]).tokens_per_forward,
    )
    return Speedup(
        off=checked.result.contrast.a,
        on=checked.result.contrast.b,
        category=category,
        pairs=len(pairs),
        degenerate_pairs=len(identical) - len(pairs),
        rated_pairs=len(rated),
        acceptance_rate=totals.acceptance_rate,
        tokens_per_forward=totals.tokens_per_forward,
        speedup_ratio=speedup,
        tokens_per_forward_ratio=forward_ratio,
        time_per_forward_ratio=divide(forward_ratio, speedup),
        remark=_explain_absence(checked, pairs, identical, speedup),
    )


def _explain_absence(
    checked: CheckedContrast,
    pairs: Sequence[TurnPair],
    identical: Sequence[TurnPair],
    speedup: float | None,
) -> str:
    if speedup is not None:
        return ""
    if identical and not pairs:
        return "not judged: the answers are degenerate"
    if pairs:
        return "not reported: no identical pair has a rate on both sides"
    return "not judged: texts differ" if checked.result.found else "not judged: no pair to compare"
