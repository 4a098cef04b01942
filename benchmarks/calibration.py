"""How often the speed verdict is wrong: a scripted engine of known speed, through runner and comparison.

The engine's speed varies by 2.4 % from cell to cell (normal, as a standard deviation), falls by 10 % along
the run, and one cell in twenty takes 1.25 to 3 times as long. Every experiment is a run of two builds of that
engine: scenario, plan, cells, records, pairs, statistics, statement.

    python benchmarks/calibration.py [--experiments N] [--seed N] [--cases TEXT] [--workers N]
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from engine_bindings.binding import Capabilities, Launch, Pin
from harness.builds import join_builds
from harness.cli.pair_bench import MemorySink
from harness.cli.results import compare_records
from harness.drivers.base import EngineSession, EngineStart, TurnRequest
from harness.performance import Performance
from harness.plan import Arm, Build, Plan, build_plan
from harness.runner import Runner
from harness.scenario import Scenario, parse_scenario
from harness.schedule import add_timed_cells, digest_plan, is_timed
from harness.speed_plan import DEFAULT_ALPHA, DEFAULT_BOUND_PERCENT
from harness.transcript import CellRecord, Delivery, LeftFile, TurnRecord

SPREAD = 0.024
DRIFT = 0.10
OUTLIER_RATE = 0.05
OUTLIER_TIMES = (1.25, 3.0)
TOKENS = 17
TOKEN_NS = 20_000_000
PREFILL_NS = 200_000_000

SCENARIO = """
schema = 1
name = "speed"
title = "One prompt"
description = "d"
[defaults]
max_tokens = 17
[[conversation]]
id = "a"
class = "prose"
[[conversation.turn]]
user = "Tell me a story."
"""

ABLE = Capabilities(
    paths=("serve",),
    max_depth=0,
    frames_are_tokens=frozenset({"serve"}),
    reports_forwards=True,
    reports_drafted=True,
    reports_cached_tokens=True,
    depths=(0,),
    counters_repeat=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What the engine's speed is drawn from; ``effect`` is how much faster build ``pr`` is, -0.05 for 5 %
    slower.
    """

    effect: float = 0.0
    drift: float = DRIFT


class ScriptedSession:
    """Answers every turn alike, in a time that was drawn for the cell."""

    def __init__(self, slowness: float, prefill: float, on_output: Callable[[int], None]) -> None:
        self._slowness, self._prefill = slowness, prefill
        self._on_output = on_output
        self._clock_ns = 0

    def start(self) -> EngineStart:
        """Be ready at once."""
        return EngineStart(protocol="serve", banner=(), kv_resumed_tokens=None)

    def begin_conversation(self) -> None:
        """Have nothing to forget."""

    def run_turn(self, request: TurnRequest) -> TurnRecord:
        """Answer."""
        sent = self._clock_ns
        first = sent + round(PREFILL_NS * self._prefill)
        last = first + round((TOKENS - 1) * TOKEN_NS * self._slowness)
        self._clock_ns = last + 1000
        return TurnRecord(
            conversation=request.conversation,
            turn=request.turn,
            entry="prompt",
            prompt=request.prompt,
            text=b"".join(b"%03d " % n for n in range(TOKENS)),
            deliveries=(
                Delivery(at_ns=first, size_bytes=4, tokens=1),
                Delivery(at_ns=last, size_bytes=4 * (TOKENS - 1), tokens=TOKENS - 1),
            ),
            sent_ns=sent,
            done_ns=self._clock_ns,
            emitted_tokens=TOKENS,
            prompt_tokens=40,
            cached_tokens=0,
            prefill_tokens=40,
            forwards=TOKENS,
            drafted_tokens=0,
            accepted_tokens=0,
            length_limited=True,
            finish="length",
            token_lengths=(4,) * TOKENS,
        )

    def run_together(self, requests: Sequence[TurnRequest]) -> tuple[TurnRecord, ...]:
        """Answer one after the other."""
        return tuple(map(self.run_turn, requests))

    def end(self) -> int:
        """End well."""
        return 0

    def kill(self) -> int | None:
        """End."""
        return 0

    def now_ns(self) -> int:
        """Read the script's clock."""
        return self._clock_ns

    def stderr_tail(self) -> tuple[str, ...]:
        """Have said nothing."""
        return ()


class ScriptedEngine:
    """Starts sessions whose speed is drawn from a law, and keeps nothing of a run but what it returns."""

    def __init__(self, law: Law, cells: int, generator: np.random.Generator) -> None:
        self._law, self._cells, self._generator = law, cells, generator
        self._started = 0

    def launch(self, arm: Arm, scenario: Scenario, extra: Iterable[Pin] = ()) -> Launch:  # noqa: ARG002
        """Return that there is no program."""
        return Launch(argv=("scripted",), pins=(), driver="serve")

    @contextmanager
    def open(
        self,
        arm: Arm,
        scenario: Scenario,  # noqa: ARG002
        extra: Iterable[Pin] = (),  # noqa: ARG002
        *,
        stderr_file: BinaryIO,  # noqa: ARG002
        on_output: Callable[[int], None],
        on_left: Callable[[tuple[LeftFile, ...]], None],  # noqa: ARG002
    ) -> Iterator[EngineSession]:
        """Start a session."""
        slowness = self._draw(arm)
        # Prefill shares the cell's luck and has as much of its own.
        prefill = slowness * math.exp(self._generator.normal(0.0, SPREAD))
        yield ScriptedSession(slowness, prefill, on_output)

    def _draw(self, arm: Arm) -> float:
        part = self._started / max(self._cells - 1, 1)
        self._started += 1
        slowness = math.exp(self._generator.normal(0.0, SPREAD)) / (1 - self._law.drift * part)
        if self._generator.random() < OUTLIER_RATE:
            slowness *= self._generator.uniform(*OUTLIER_TIMES)
        return slowness / (1 + self._law.effect) if arm.build == "pr" else slowness


def build_calibration_plan(pairs: int, *, sequential: bool = False, seed: int = 0) -> Plan:
    """Return the plan of one experiment: two builds, one arm each."""
    scenario = parse_scenario(SCENARIO, "calibration", lambda _: "")
    plan = build_plan([scenario], depth=1, capabilities=ABLE)
    builds = [Build(name="main", engine="scripted"), Build(name="pr", engine="scripted")]
    return add_timed_cells(
        join_builds(builds, [plan, plan]),
        pairs=pairs,
        alpha=DEFAULT_ALPHA,
        bound_percent=DEFAULT_BOUND_PERCENT,
        sequential=sequential,
        seed=seed,
    )


def measure(plan: Plan, law: Law, generator: np.random.Generator) -> list[CellRecord]:
    """Run all cells of a plan on the scripted engine."""
    engine, sink = ScriptedEngine(law, len(plan.cells), generator), MemorySink()
    return list(Runner(plan, engine, sink, observer=sink, wall_clock=str).run_plan())


def run_experiment(plan: Plan, law: Law, generator: np.random.Generator) -> Performance:
    """Run a plan and return what is said of its one contrast.

    A run that may end early is cut at the look that decides, and compared as it would then stand on disk.
    """
    records = measure(plan, law, generator)
    performance = compare_records(plan, records).performance[0]
    decode = performance.rows[0]
    if plan.speed is None or not plan.speed.sequential or not decode.differs:
        return performance
    untimed = sum(not is_timed(plan, spec) for spec in plan.cells)
    return compare_records(plan, records[: untimed + 2 * decode.pairs]).performance[0]


def order_badly(plan: Plan, order: str) -> Plan:
    """Return the plan with its timed cells in an order that a drift is confounded with.

    ``blocked`` runs one build after the other, ``fixed`` always the same build first.
    """
    first = [spec for spec in plan.cells if not is_timed(plan, spec)]
    timed = sorted(
        (spec for spec in plan.cells if is_timed(plan, spec)),
        key=lambda spec: (
            (spec.arm.build, spec.repetition) if order == "blocked" else (spec.repetition, spec.arm.build)
        ),
    )
    changed = replace(plan, cells=(*first, *timed))
    assert changed.speed is not None
    return replace(changed, speed=replace(changed.speed, digest=digest_plan(changed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Experiments of one kind. ``least`` and ``most`` bound the share in which ``counts`` is said."""

    title: str
    pairs: int
    law: Law
    counts: tuple[str, ...]
    order: str = "balanced"
    sequential: bool = False
    least: float = 0.0
    most: float = 1.0


LEAST_SAVED = 0.3
ANYTHING = ("faster", "slower")
CASES = (
    Case(title="A/A", pairs=24, law=Law(), counts=ANYTHING, most=0.01),
    Case(title="A/A", pairs=16, law=Law(), counts=ANYTHING, most=0.01),
    Case(title="5 % slower", pairs=16, law=Law(effect=-0.05), counts=("slower",), least=0.95),
    Case(title="3 % slower", pairs=24, law=Law(effect=-0.03), counts=("slower",), least=0.90),
    Case(title="A/A, always main first", pairs=24, law=Law(), counts=ANYTHING, order="fixed", most=0.01),
    Case(title="A/A, main then pr", pairs=24, law=Law(), counts=ANYTHING, order="blocked", most=0.01),
    Case(title="A/A, sequential", pairs=24, law=Law(), counts=ANYTHING, sequential=True, most=0.01),
    Case(
        title="5 % slower, sequential",
        pairs=16,
        law=Law(effect=-0.05),
        counts=("slower",),
        sequential=True,
    ),
    Case(
        title="3 % slower, sequential",
        pairs=24,
        law=Law(effect=-0.03),
        counts=("slower",),
        sequential=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What experiments of one case came to, as shares."""

    counted: float
    failed: float
    refused: float
    pairs: float

    def misses(self, case: Case) -> list[str]:
        """Return the targets that were missed."""
        return [
            *(["too often"] if self.counted > case.most else []),
            *(["too rarely"] if self.counted < case.least else []),
        ]


def run_one(job: tuple[int, int, int]) -> tuple[bool, bool, bool, int]:
    """Run one experiment of a case; in a process of its own."""
    number, experiment, seed = job
    case = CASES[number]
    plan = build_calibration_plan(case.pairs, sequential=case.sequential, seed=experiment)
    if case.order != "balanced":
        plan = order_badly(plan, case.order)
    rows = run_experiment(plan, case.law, np.random.default_rng([seed, number, experiment])).rows
    judged = rows if case.most < 1 else rows[:1]
    return (
        any(row.statement in case.counts for row in judged),
        any(row.fails for row in rows),
        rows[0].statement == "not judged",
        rows[0].pairs,
    )


def run_case(number: int, arguments: argparse.Namespace, pool: Executor) -> Tally:
    """Run all experiments of a case."""
    jobs = [(number, experiment, arguments.seed) for experiment in range(arguments.experiments)]
    results = np.array(list(pool.map(run_one, jobs, chunksize=10)), np.float64)
    counted, failed, refused, pairs = results.mean(axis=0)
    return Tally(counted=counted, failed=failed, refused=refused, pairs=pairs)


def main() -> int:
    """Print the figures; exit 1 when a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", default="", help="only cases whose title has this in it")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if not any(arguments.cases in case.title for case in CASES):
        parser.error(
            f"no case has {arguments.cases!r} in its title: {', '.join(case.title for case in CASES)}"
        )
    print(f"{arguments.experiments} experiments each, seed {arguments.seed}, alpha {DEFAULT_ALPHA:g}")
    print(f"{'case':26} {'pairs':>5} {'said':>7} {'failed':>7} {'refused':>8} {'pairs run':>9} {'saved':>6}")
    missed = 0
    run, planned = 0.0, 0
    with ProcessPoolExecutor(arguments.workers) as pool:
        for number, case in enumerate(CASES):
            if arguments.cases not in case.title:
                continue
            tally = run_case(number, arguments, pool)
            misses = tally.misses(case)
            missed += len(misses)
            if case.sequential and case.law.effect:
                run, planned = run + tally.pairs, planned + case.pairs
            shares = f"{tally.counted:7.1%} {tally.failed:7.1%} {tally.refused:8.1%}"
            pairs = f"{tally.pairs:9.1f} {1 - tally.pairs / case.pairs:6.1%}"
            print(f"{case.title:26} {case.pairs:5} {shares} {pairs}  {', '.join(misses)}", flush=True)
    saved = 1 - run / planned if planned else 1.0
    if planned:
        print(f"pairs saved on true effects: {saved:.1%}, at least {LEAST_SAVED:.0%} wanted")
    print("said: A/A anything of any metric; else that the decode speed is slower. failed: beyond the bound.")
    return int(missed > 0 or saved < LEAST_SAVED)


if __name__ == "__main__":
    sys.exit(main())
