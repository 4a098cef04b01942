"""From records to pairs of timed cells: every figure by its cell, its prompt and its place in the run."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.contrasts import CheckedContrast
from harness.degenerate import IsDegenerate
from harness.metrics import CellMetrics, TurnMetrics
from harness.paired_cells import CellPair
from harness.pairing import TurnPair
from harness.plan import CellSpec
from harness.schedule import number_block

Place = tuple[str, str, int]
"""Scenario, conversation and turn: one prompt."""

ReadFigure = Callable[[TurnMetrics], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedMetric:
    """A figure that can be slower or faster.

    Attributes:
        name: as in ``harness.metric_words``; ``title`` in a report.
        read: takes it from a turn.
        rises: more of it is faster.
        weight: its share of the error rate; 0 for a figure that explains and is not judged.
    """

    name: str
    title: str
    read: ReadFigure
    rises: bool
    weight: float


DECODE = TimedMetric(
    name="decode_tokens_per_s",
    title="decode tok/s",
    read=lambda turn: turn.decode_tokens_per_s,
    rises=True,
    # What the gate is for gets nearly all: every other share makes it blinder.
    weight=0.95,
)
TTFT = TimedMetric(name="ttft_ms", title="TTFT", read=lambda turn: turn.ttft_ms, rises=False, weight=0.05)
TIME_PER_FORWARD = TimedMetric(
    name="time_per_forward_ms",
    title="time/fwd",
    read=lambda turn: turn.time_per_forward_ms,
    rises=False,
    weight=0.0,
)
JUDGED = (DECODE, TTFT)


class TimedTurns:
    """The timed turns of one contrast: pairs with the same tokens, without the first repetition, which warms
    up.
    """

    def __init__(
        self,
        checked: CheckedContrast,
        metrics: Mapping[CellSpec, CellMetrics],
        positions: Mapping[CellSpec, int],
        marks: IsDegenerate,
    ) -> None:
        """Take the identical pairs of ``checked``; ``positions`` number the cells in the order of the run."""
        self._figures = {
            (spec, turn.conversation, turn.turn): turn
            for spec, cell in metrics.items()
            for turn in cell.turns
        }
        self._positions = positions
        self.pairs = [
            pair
            for pair in checked.identical
            if pair.cell_a.repetition > 0
            and {pair.cell_a, pair.cell_b} <= metrics.keys()
            and not marks(pair.cell_b.arm, pair.cell_b.scenario, pair.b.conversation, pair.b.turn)
        ]
        self.arms = (checked.result.contrast.a, checked.result.contrast.b)

    def figures(self, pair: TurnPair) -> tuple[TurnMetrics, TurnMetrics]:
        """Return the figures of both sides."""
        return (
            self._figures[pair.cell_a, pair.a.conversation, pair.a.turn],
            self._figures[pair.cell_b, pair.b.conversation, pair.b.turn],
        )

    def position(self, spec: CellSpec) -> int:
        """Return the number of a cell in the order of the run."""
        return self._positions[spec]

    def pair_cells(self, metric: TimedMetric) -> tuple[CellPair, ...]:
        """Pair the cells of the two arms, in the order of their blocks.

        A cell's value is the mean over its turns of the logarithm of the figure, less the median of that
        prompt over both arms.
        """
        logs = self._read_logs(metric)
        middles = _middles((place, value) for (_, place), pair in logs.items() for value in pair)
        cells: dict[tuple[CellSpec, CellSpec], list[tuple[float, float]]] = {}
        for (key, place), (a, b) in logs.items():
            cells.setdefault(key, []).append((a - middles[place], b - middles[place]))
        rows: list[_Row] = []
        for (cell_a, cell_b), values in cells.items():
            log_a, log_b = map(statistics.fmean, zip(*values, strict=True))
            places = self.position(cell_a), self.position(cell_b)
            rows.append((number_block(cell_a), *places, log_a, log_b))
        return _number_blocks(rows)

    def pair_repeats(self, metric: TimedMetric) -> tuple[CellPair, ...]:
        """Pair each arm with itself, the two repetitions of a block, which side first by turns: A/A."""
        values = self.center_arms(metric)
        rows: list[_Row] = []
        for spec, own in values.items():
            other = CellSpec(arm=spec.arm, scenario=spec.scenario, repetition=spec.repetition + 1)
            common = own.keys() & values.get(other, {}).keys()
            if spec.repetition % 2 == 1 and common:
                name, number = number_block(spec)
                first, second = (spec, other) if (number + (spec.arm == self.arms[0])) % 2 else (other, spec)
                log_a, log_b = (
                    statistics.fmean(values[cell][place] for place in common) for cell in (first, second)
                )
                key = (f"{name} {spec.arm.label}", number)
                rows.append((key, self.position(first), self.position(second), log_a, log_b))
        return _number_blocks(rows)

    def center_arms(self, metric: TimedMetric) -> dict[CellSpec, dict[Place, float]]:
        """Return the logarithms of each cell by prompt, less the median of that arm and prompt."""
        logs = self._read_logs(metric)
        sides = [
            (cell, place, value)
            for (cells, place), pair in logs.items()
            for cell, value in zip(cells, pair, strict=True)
        ]
        middles = _middles(((cell.arm, place), value) for cell, place, value in sides)
        values: dict[CellSpec, dict[Place, float]] = {}
        for cell, place, value in sides:
            values.setdefault(cell, {})[place] = value - middles[cell.arm, place]
        return values

    def _read_logs(
        self, metric: TimedMetric
    ) -> dict[tuple[tuple[CellSpec, CellSpec], Place], tuple[float, float]]:
        logs = {}
        for pair in self.pairs:
            a, b = map(metric.read, self.figures(pair))
            if a and b:
                place = (pair.cell_a.scenario, pair.a.conversation, pair.a.turn)
                logs[(pair.cell_a, pair.cell_b), place] = (math.log(a), math.log(b))
        return logs


def count_by_prompt(turns: TimedTurns) -> list[tuple[int, int, int, int]]:
    """Return tokens and forwards of arm a, then of arm b, summed for each prompt; without prompts that lack a
    count.
    """
    sums: dict[Place, list[int]] = {}
    lacking = set()
    for pair in turns.pairs:
        a, b = turns.figures(pair)
        place = (pair.cell_a.scenario, pair.a.conversation, pair.a.turn)
        counts = (a.emitted_tokens, a.forwards, b.emitted_tokens, b.forwards)
        if None in counts or not (a.forwards and b.forwards):
            lacking.add(place)
            continue
        own = sums.setdefault(place, [0, 0, 0, 0])
        for index, count in enumerate(counts):
            own[index] += count or 0
    return [(s[0], s[1], s[2], s[3]) for place, s in sums.items() if place not in lacking]


def _middles(values: Iterable[tuple[object, float]]) -> dict[object, float]:
    groups: dict[object, list[float]] = {}
    for key, value in values:
        groups.setdefault(key, []).append(value)
    return {key: statistics.median(own) for key, own in groups.items()}


_Row = tuple[tuple[str, int], int, int, float, float]


def _number_blocks(rows: Sequence[_Row]) -> tuple[CellPair, ...]:
    """Return the pairs in the order in which their blocks ended, with the blocks numbered so."""
    ends: dict[tuple[str, int], int] = {}
    for key, position_a, position_b, *_ in rows:
        ends[key] = max(ends.get(key, 0), position_a, position_b)
    numbers = {key: number for number, key in enumerate(sorted(ends, key=lambda key: ends[key]))}
    pairs = [
        CellPair(block=numbers[key], position_a=a, position_b=b, log_a=log_a, log_b=log_b)
        for key, a, b, log_a, log_b in rows
    ]
    return tuple(sorted(pairs, key=lambda pair: (pair.block, min(pair.position_a, pair.position_b))))
