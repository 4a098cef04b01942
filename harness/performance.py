"""What is said of the speed of two arms: faster, slower, no difference shown, or too few pairs to say so.

Something is said only when a test by relabelling and the interval agree, at an error rate that all contrasts
and metrics of the run share.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.bootstrap import Indices, interval
from harness.carry_over import CarryOver, find_carry_over
from harness.contrasts import CheckedContrast
from harness.degenerate import DegenerateAnswer, mark_degenerate
from harness.metrics import CellMetrics
from harness.paired_cells import LEVEL, CellPair, Ratio, estimate, locate_effect, measure_imbalance, to_ratio
from harness.plan import CellSpec, Contrast, Plan
from harness.power import least_pairs, smallest_effect
from harness.relabelling import (
    BLOCKS_TOGETHER,
    Look,
    count_labellings,
    find_p_value,
    invert,
    look,
    look_pair_by_pair,
)
from harness.robust import spread
from harness.schedule import digest_plan, list_speed_contrasts
from harness.speed_plan import DEFAULT_ALPHA, DEFAULT_BOUND_PERCENT
from harness.speed_tests import SpeedTest, TestResult, correct_p_values, decide_by_looks
from harness.timed_cells import (
    DECODE,
    JUDGED,
    TIME_PER_FORWARD,
    TimedMetric,
    TimedTurns,
    count_by_prompt,
)

Statement = Literal["faster", "slower", "no difference shown", "too few pairs", "not judged"]

# Past this correlation of arm and time a drift that is no straight line could pass for an effect.
MAX_IMBALANCE = 0.1
# How often a sound run is refused by each check on itself: it must cost hardly any true effect.
CHECK_RATE = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One metric of one contrast.

    Attributes:
        metric: name, as in ``harness.metric_words``.
        statement: what is said of arm b.
        ratio: b / a, None with fewer than 2 pairs.
        p_value: corrected for all that was tested in the run (Holm); None where nothing was tested, or at
            several looks.
        differs: the test alone calls the arms different.
        pairs: timed pairs of cells with the same tokens; in a sequential run up to the look that decided.
        needed_pairs: the least that can show anything.
        beyond_bound: the ratio is on the slow side of the bound.
        remark: why nothing is said; empty otherwise.
    """

    metric: str
    statement: Statement
    ratio: Ratio | None
    p_value: float | None
    differs: bool
    pairs: int
    needed_pairs: int
    beyond_bound: bool = False
    remark: str = ""

    @property
    def fails(self) -> bool:
        """Slower beyond the bound, and shown to be slower."""
        return self.statement == "slower" and self.beyond_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """The speed of one contrast.

    Attributes:
        rows: the judged metrics.
        tokens_per_forward: ratio b / a, exact for these prompts; its interval says how it varies from prompt
            to prompt. None where an engine does not report forwards.
        time_per_forward: ratio b / a.
        noise_floor: ratio of the decode speed of each arm to itself, two repetitions of a block: A/A.
        spread_percent: of one cell against another of the same arm, as a standard deviation.
        shown_percent: the smallest slowdown of the decode speed that so many pairs show 9 times of 10 at that
            spread; None with too few pairs.
        carry_over: of the decode speed, from the cell before.
    """

    contrast: Contrast
    rows: tuple[SpeedRow, ...]
    tokens_per_forward: Ratio | None
    time_per_forward: Ratio | None
    noise_floor: Ratio | None
    spread_percent: float | None
    shown_percent: float | None
    carry_over: CarryOver | None


def judge_performance(
    plan: Plan,
    checked: Iterable[CheckedContrast],
    metrics: Mapping[CellSpec, CellMetrics],
    order: Sequence[CellSpec],
    degenerate: tuple[DegenerateAnswer, ...] = (),
) -> tuple[Performance, ...]:
    """Judge the speed of builds, or of depths where there is one build.

    Args:
        plan: with what was settled beforehand; without it the defaults hold.
        checked: the contrasts with their identical pairs, the only ones that count.
        metrics: the figures of the cells that this run timed.
        order: all cells of the run in the order in which they ran.
        degenerate: answers whose speed is not judged.
    """
    names = {contrast.name for contrast in list_speed_contrasts(plan)}
    if plan.speed is not None:
        names &= set(plan.speed.contrasts)
    marks = mark_degenerate(degenerate)
    positions = {spec: number for number, spec in enumerate(order)}
    timed = [
        _Timed(plan, item, TimedTurns(item, metrics, positions, marks), order)
        for item in checked
        if item.result.contrast.name in names
    ]
    rules = _Rules(plan, len(timed))
    results = rules.decide([test for item in timed if not item.doubt for test in rules.build_tests(item)])
    return tuple(item.describe(rules, results) for item in timed)


def is_settled(performances: Sequence[Performance]) -> bool:
    """Say whether the test of every contrast's decode speed has called the arms different."""
    rows = [row for item in performances for row in item.rows if row.metric == DECODE.name]
    return bool(rows) and all(row.differs for row in rows)


_Results = Mapping[tuple[str, str], TestResult]


class _Rules:
    """What was settled beforehand, or the defaults."""

    def __init__(self, plan: Plan, contrasts: int) -> None:
        self._contrasts = contrasts
        self._speed = plan.speed
        self.alpha = plan.speed.alpha if plan.speed else DEFAULT_ALPHA
        self._bound = (plan.speed.bound_percent if plan.speed else DEFAULT_BOUND_PERCENT) / 100

    def share(self, metric: TimedMetric) -> float:
        """Return the share of the error rate that a metric of one contrast gets."""
        return metric.weight / self._contrasts

    def needed_pairs(self, metric: TimedMetric) -> int:
        """Return the least pairs that can show anything."""
        return least_pairs(self.alpha * self.share(metric))

    def smallest_effect(self, pairs: int, spread_percent: float | None) -> float | None:
        """Return the smallest slowdown of the decode speed that is shown, in per cent."""
        if spread_percent is None:
            return None
        return smallest_effect(pairs, self.alpha * self.share(DECODE), spread_percent)

    def is_beyond(self, metric: TimedMetric, ratio: float) -> bool:
        """Say whether a ratio is on the slow side of the bound."""
        return ratio < 1 - self._bound if metric.rises else ratio > 1 / (1 - self._bound)

    def build_tests(self, item: "_Timed") -> Iterator[SpeedTest]:
        """Yield the tests of a contrast that has pairs enough."""
        for metric, pairs in item.pairs.items():
            if len(pairs) >= self.needed_pairs(metric):
                yield SpeedTest(
                    contrast=item.contrast.name,
                    metric=metric.name,
                    pairs=pairs,
                    share=self.share(metric),
                    looks=self._look(metric, pairs),
                )

    def decide(self, tests: Sequence[SpeedTest]) -> _Results:
        """Decide all tests together."""
        by_looks = self._speed is not None and self._speed.sequential
        results = decide_by_looks(tests, self.alpha) if by_looks else correct_p_values(tests, self.alpha)
        return {(test.contrast, test.metric): result for test, result in zip(tests, results, strict=True)}

    def estimate(self, metric: TimedMetric, pairs: Sequence[CellPair], result: TestResult | None) -> Ratio:
        """Return the ratio with its interval: resampled, or after several looks what the test leaves."""
        if result is None or result.rate is None:
            return estimate(pairs)
        middle = locate_effect(pairs)
        ends = invert(pairs, middle, result.rate, self._count(metric))
        return to_ratio(middle, ends, 1 - result.rate)

    def _count(self, metric: TimedMetric) -> int:
        return count_labellings(self.alpha * self.share(metric))

    def _look(self, metric: TimedMetric, pairs: Sequence[CellPair]) -> tuple[Look, ...]:
        labellings = self._count(metric)
        if self._speed is not None and self._speed.sequential:
            first = self.needed_pairs(metric)
            return look_pair_by_pair(pairs, self._speed.pairs, first=first, labellings=labellings)
        return (look(pairs, together=BLOCKS_TOGETHER, labellings=labellings),)


class _Timed:
    """One contrast with its timed turns."""

    def __init__(
        self, plan: Plan, checked: CheckedContrast, turns: TimedTurns, order: Sequence[CellSpec]
    ) -> None:
        self.contrast = checked.result.contrast
        self._turns = turns
        self.pairs = {metric: turns.pair_cells(metric) for metric in JUDGED}
        self._repeats = turns.pair_repeats(DECODE)
        self._carry_over = _test_carry_over(turns, order)
        self.doubt = self._find_doubt(plan)

    def describe(self, rules: _Rules, results: _Results) -> Performance:
        """Return all that is said of the contrast."""
        repeats = self._repeats
        spread_percent = _measure_spread(repeats)
        per_forward = self._turns.pair_cells(TIME_PER_FORWARD)
        return Performance(
            contrast=self.contrast,
            rows=tuple(
                self._describe_row(rules, metric, results.get((self.contrast.name, metric.name)))
                for metric in JUDGED
            ),
            tokens_per_forward=_compare_counts(self._turns),
            time_per_forward=estimate(per_forward) if len(per_forward) > 1 else None,
            noise_floor=estimate(repeats) if len(repeats) > 1 else None,
            spread_percent=spread_percent,
            shown_percent=rules.smallest_effect(len(self.pairs[DECODE]), spread_percent),
            carry_over=self._carry_over,
        )

    def _describe_row(self, rules: _Rules, metric: TimedMetric, result: TestResult | None) -> SpeedRow:
        pairs = self.pairs[metric]
        used = pairs[: result.pairs] if result else pairs
        ratio = rules.estimate(metric, used, result) if len(used) > 1 else None
        statement: Statement = "not judged" if self.doubt else "too few pairs"
        if result is not None and ratio is not None:
            statement = _state(metric, ratio) if result.differs else "no difference shown"
        return SpeedRow(
            metric=metric.name,
            statement=statement,
            ratio=ratio,
            p_value=result.p_value if result else None,
            differs=result is not None and result.differs,
            pairs=len(used),
            needed_pairs=rules.needed_pairs(metric),
            beyond_bound=ratio is not None and rules.is_beyond(metric, ratio.value),
            remark=self.doubt,
        )

    def _find_doubt(self, plan: Plan) -> str:
        """Say why nothing can be said of this run, whatever its figures are; empty if nothing speaks against
        it.
        """
        if plan.speed is not None and digest_plan(plan) != plan.speed.digest:
            return "the plan is not the one that was settled before the first cell"
        pairs = self.pairs[DECODE]
        if len(pairs) < 2:
            return ""
        if (imbalance := measure_imbalance(pairs)) > MAX_IMBALANCE:
            return (
                f"the order of the arms is not balanced (correlation with time {imbalance:.2f}), so a drift "
                "of the machine would pass for an effect"
            )
        if len(self._repeats) >= least_pairs(CHECK_RATE):
            p_value = find_p_value(look(self._repeats, block_pairs=1))
            if p_value <= CHECK_RATE:
                return f"the arms differ from themselves by the clock (A/A, p = {p_value:.4f})"
        if self._carry_over is not None and self._carry_over.p_value <= CHECK_RATE:
            return (
                f"what ran before a cell moves its time by {self._carry_over.ratio:.3f}x "
                f"(p = {self._carry_over.p_value:.4f})"
            )
        return ""


def _state(metric: TimedMetric, ratio: Ratio) -> Statement:
    if ratio.spans_one:
        return "no difference shown"
    return "faster" if (ratio.value > 1) == metric.rises else "slower"


def _test_carry_over(turns: TimedTurns, order: Sequence[CellSpec]) -> CarryOver | None:
    centred = turns.center_arms(DECODE)
    before = {spec: earlier.arm for earlier, spec in pairwise(order)}
    values = {spec: statistics.fmean(centred[spec].values()) for spec in order if spec in centred}
    return find_carry_over(values, before, turns.arms)


def _measure_spread(repeats: Sequence[CellPair]) -> float | None:
    if len(repeats) < 2:
        return None
    differences = np.array([pair.log_b - pair.log_a for pair in repeats])
    return float(100 * spread(differences)[0] / math.sqrt(2))


def _compare_counts(turns: TimedTurns) -> Ratio | None:
    """Return the ratio of tokens per forward from the sums over all pairs."""
    rows = count_by_prompt(turns)
    if not rows:
        return None
    counts = np.array(rows, np.float64)

    def ratio(indices: Indices) -> NDArray[np.float64]:
        sums = counts[indices].sum(axis=1)
        return np.asarray((sums[:, 2] / sums[:, 3]) / (sums[:, 0] / sums[:, 1]))

    whole = float(ratio(np.arange(len(rows))[None])[0])
    low, high = interval(ratio, len(rows), LEVEL) if len(rows) > 1 else (whole, whole)
    return Ratio(value=whole, low=low, high=high)
