"""The jobs of a selfcheck: the plain plan, every defect, and the healthy engine; then the matrix."""

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from harness.cli.selfcheck_bench import DEFECT_SETTING, KERNELS_SETTING, GateBench, GateRun
from harness.cli.selfcheck_jobs import Job, JobResults
from harness.plan import Plan
from harness.scenario import Scenario
from harness.selfcheck.declared import DeclaredDefect
from harness.selfcheck.draws import draw_healthy, shuffle_cells
from harness.selfcheck.matrix import (
    GOOD,
    Given,
    HealthyRun,
    Matrix,
    Row,
    build_absent_row,
    build_row,
    finds_nothing,
    judge_given,
)
from harness.selfcheck.places import list_places

PLAIN = "plain"
Keep = Literal["none", "missed", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefectRun:
    """What became of a defect's run; ``given`` is None when it broke off with ``error``."""

    defect: DeclaredDefect
    given: Given | None
    error: str = ""


Result = DefectRun | HealthyRun


class Selfcheck:
    """Runs the gate with one defect after the other. Its methods are called from several threads."""

    def __init__(
        self,
        bench: GateBench,
        scenarios: Sequence[Scenario],
        *,
        fast: bool,
        settings: Mapping[str, str],
        seed: int,
        keep: Keep,
    ) -> None:
        self._bench = bench
        self._scenarios = {scenario.name: scenario for scenario in scenarios}
        self._fast = fast
        self._settings = settings
        self._seed = seed
        self._keep = keep
        self._rounds = KERNELS_SETTING in settings
        self._plain: Future[GateRun] | None = None

    def list_jobs(self, defects: Sequence[DeclaredDefect], healthy: int, *, plain: bool) -> list[Job[Result]]:
        """Return what is to be run: the plain plan first, if it is, since others are held against it."""
        jobs: list[Job[Result]] = []
        if plain:
            self._plain = Future()
            jobs.append(Job(name=PLAIN, run=self._run_plain))
        jobs += [
            Job(name=defect.name, run=functools.partial(self._run_defect, defect))
            for defect in defects
            if defect.available
        ]
        names = [f"healthy-{number:03}" for number in range(healthy)]
        jobs += [
            Job(name=name, run=functools.partial(self._run_healthy, name, number))
            for number, name in enumerate(names)
        ]
        return jobs

    def build_matrix(
        self, defects: Sequence[DeclaredDefect], healthy: int, results: JobResults[Result]
    ) -> Matrix:
        """Put together what came of the jobs that ended."""
        plain = results.done.get(PLAIN)
        plain_given = plain.given if isinstance(plain, HealthyRun) else None
        tokens = plain_given.tokens_decoded if plain_given else None
        runs = [result for result in results.done.values() if isinstance(result, HealthyRun)]
        return Matrix(
            form="fast" if self._fast else "full",
            seed=self._seed,
            plain_tokens=tokens,
            rows=tuple(self._build_row(defect, results, tokens) for defect in defects),
            healthy=tuple(sorted(runs, key=lambda run: (run.name != PLAIN, run.name))),
            healthy_asked=healthy + (self._plain is not None),
            seconds=0.0,
            interrupted=results.interrupted,
        )

    def describe(self, name: str, result: Result) -> str:
        """Return one line about a job that ended."""
        if isinstance(result, HealthyRun):
            said = "ALARM" if result.alarmed else "quiet"
            return f"{name}: {said}, {result.what}"
        outcome = judge_given(result.defect, result.given)
        if result.given is None:
            return f"{name}: {outcome}: {result.error}"
        return f"{name}: {outcome}: {result.given.verdict_class}, {result.given.tokens_decoded} tokens"

    def _build_row(
        self, defect: DeclaredDefect, results: JobResults[Result], plain_tokens: int | None
    ) -> Row:
        run = results.done.get(defect.name)
        if not isinstance(run, DefectRun):
            return build_absent_row(defect)
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        return build_row(defect, run.given, plain_tokens=plain_tokens, settings=settings, error=run.error)

    def _run_plain(self) -> HealthyRun:
        assert self._plain is not None  # noqa: S101 - the job exists only with it
        plan = self._bench.build_plan(tuple(self._scenarios.values()))
        what = "the plain plan: every arm on every scenario, to the end"
        try:
            run = self._bench.run(PLAIN, plan, self._settings, until="end")
        except BaseException as error:  # others wait for this run, and must hear of any end of it
            self._plain.set_exception(error)
            if isinstance(error, KeyboardInterrupt):
                raise
            return HealthyRun(name=PLAIN, what=what, given=None, error=_name_error(error))
        self._plain.set_result(run)
        healthy = HealthyRun(name=PLAIN, what=what, given=run.given, rounds=self._rounds)
        self._put_away(PLAIN, good=not healthy.alarmed)
        return healthy

    def _run_defect(self, defect: DeclaredDefect) -> DefectRun:
        """Hold the engine with the defect against itself, or, where that finds nothing, the healthy one."""
        names = list_places(defect.name) if self._fast else tuple(self._scenarios)
        settings = {**self._settings, DEFECT_SETTING: defect.name}
        plan = self._bench.build_plan([self._scenarios[name] for name in names])
        kept = [defect.name]
        try:
            run = self._bench.run(defect.name, plan, settings)
            if finds_nothing(run.given) and not defect.is_control:
                healthy = self._find_healthy(plan, defect.name)
                kept.append(f"{defect.name}-against-baseline")
                held = self._bench.run_against(kept[-1], run, healthy, settings)
                run = run if finds_nothing(held.given) else held
        except Exception as error:  # a run that breaks off is a row of the matrix
            return DefectRun(defect=defect, given=None, error=_name_error(error))
        for name in kept:
            self._put_away(name, good=judge_given(defect, run.given) in GOOD)
        return DefectRun(defect=defect, given=run.given)

    def _find_healthy(self, plan: Plan, name: str) -> GateRun:
        """Return a run of the healthy engine that holds the cells of a plan."""
        if self._plain is not None:
            return self._plain.result()
        run = self._bench.run(f"{name}-healthy", plan, self._settings, until="end")
        self._put_away(f"{name}-healthy", good=True)
        return run

    def _run_healthy(self, name: str, number: int) -> HealthyRun:
        draw = draw_healthy(tuple(self._scenarios.values()), self._seed, number)
        plan = shuffle_cells(self._bench.build_plan([draw.scenario], depth=draw.depth), self._seed, number)
        try:
            run = self._bench.run(name, plan, self._settings, until="end")
        except Exception as error:  # a run that breaks off is a row of the matrix
            return HealthyRun(name=name, what=draw.what, given=None, error=_name_error(error))
        healthy = HealthyRun(name=name, what=draw.what, given=run.given, rounds=self._rounds)
        self._put_away(name, good=not healthy.alarmed)
        return healthy

    def _put_away(self, name: str, *, good: bool) -> None:
        if self._keep == "all" or (self._keep == "missed" and not good):
            self._bench.keep(name)
        else:
            self._bench.forget(name)


def _name_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
