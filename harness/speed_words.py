"""What is said of speed in words and figures, alike in the verdict and in every report."""

from harness.metric_words import METRICS
from harness.paired_cells import Ratio
from harness.performance import Performance, SpeedRow
from harness.power import smallest_effect
from harness.speed_plan import DEFAULT_SPREAD_PERCENT, SpeedPlan
from harness.timed_cells import JUDGED

METRIC_LABELS = {metric.name: metric.label for metric in METRICS}
"""The short names of figures, as reports show them."""


def describe_ratio(ratio: Ratio | None) -> str:
    """Return a ratio with its interval, ``exact`` where it has none; ``-`` when it was not reported."""
    if ratio is None:
        return "-"
    if ratio.low == ratio.high:
        return f"{ratio.value:.3f}x exact"
    return f"{ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]"


def describe_statement(row: SpeedRow) -> str:
    """Return what is said of the second arm."""
    if row.statement == "too few pairs":
        return f"need at least {row.needed_pairs} pairs"
    return row.statement


def describe_row(row: SpeedRow) -> str:
    """Return all that is known of one metric as one line."""
    p_value = "" if row.p_value is None else f", p = {row.p_value:.4f}"
    bound = ", beyond the bound" if row.fails else ""
    figures = f"{METRIC_LABELS[row.metric]} {describe_ratio(row.ratio)} ({row.pairs} pairs{p_value})"
    remark = f": {row.remark}" if row.remark else ""
    return f"{describe_statement(row)}, {figures}{bound}{remark}"


def describe_split(item: Performance) -> str:
    """Return which part of the decode speed moved."""
    depth = item.contrast.b.depth
    price = (
        ", the price of speculation that drafts nothing"
        if item.contrast.kind == "build" and not depth
        else ""
    )
    return (
        f"tokens per forward {describe_ratio(item.tokens_per_forward)}, time per forward "
        f"{describe_ratio(item.time_per_forward)}{price}"
    )


def describe_checks(item: Performance) -> str:
    """Return what the run says of itself: each arm against itself, and what the cell before does."""
    spread = "-" if item.spread_percent is None else f"{item.spread_percent:.1f} %"
    if item.shown_percent is not None:
        spread += f", at which {item.shown_percent:.1f} % slower would be shown 9 times of 10"
    carry = "-"
    if item.carry_over is not None:
        carry = f"{item.carry_over.ratio:.3f}x (p = {item.carry_over.p_value:.3f})"
    return f"A/A {describe_ratio(item.noise_floor)}, spread of a cell {spread}, carry-over {carry}"


def describe_settled(speed: SpeedPlan) -> tuple[str, ...]:
    """Return what was settled before the first cell, one sentence each."""
    contrasts = "1 contrast" if len(speed.contrasts) == 1 else f"{len(speed.contrasts)} contrasts"
    return (
        f"{speed.pairs} timed pairs of cells for {contrasts}: {', '.join(speed.contrasts)}",
        f"{speed.warm_up}; after that the cache is warm",
        f"{speed.stopping_rule}",
        f"at most {100 * speed.alpha:g} % of runs of equal arms call anything different; slower by more than "
        f"{speed.bound_percent:g} % between builds fails",
        _describe_power(speed),
        f"order from seed {speed.seed}, in blocks A B B A or B A A B; plan sha256 {speed.digest}",
    )


def _describe_power(speed: SpeedPlan) -> str:
    parts = []
    for metric in JUDGED:
        rate = speed.alpha * metric.weight / len(speed.contrasts)
        effect = smallest_effect(speed.pairs, rate, DEFAULT_SPREAD_PERCENT)
        parts.append(f"{metric.title} " + ("none, too few pairs" if effect is None else f"{effect:.1f} %"))
    early = "; less often where the run may end early" if speed.sequential else ""
    return (
        f"smallest slowdown that is shown 9 times of 10 where a cell varies by {DEFAULT_SPREAD_PERCENT:g} %: "
        f"{', '.join(parts)}{early}"
    )
