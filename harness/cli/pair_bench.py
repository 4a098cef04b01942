"""Runs the arms of a failing contrast on one case after the other, keeping nothing on disk."""

import io
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from engine_bindings.binding import Binding
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import read_model_fingerprint
from engine_bindings.registry import find_binding
from harness.cli.clock import read_wall_clock
from harness.cli.results import compare_records
from harness.drivers.builds import BuildsLauncher
from harness.drivers.launcher import EngineLauncher
from harness.failing import Failing, build_pair_plan, find_failing
from harness.minimize import Case
from harness.plan import DEFAULT_TIE_GAP, SMALL_MODEL_BYTES, Arm, Build, CellSpec, Plan, Timeouts
from harness.probes import plan_probes
from harness.rundir import RunContents
from harness.runner import Runner
from harness.transcript import CellRecord, TurnRecord

# Both arms of a small model are run at once; one that fills a machine has it for itself.
MAX_WORKERS = 2
# What fails by being different each time must show itself so often in a row, or it is no case to hand on.
UNSTEADY_SHOWS = 3
# An engine that stands still is given so many times the longest wait of the run, but a second at least.
PATIENCE_FACTOR = 50
MIN_PATIENCE_S = 2.0


class MemorySink:
    """Keeps records in memory and forgets what engines write to stderr; hears of a run and says nothing."""

    def __init__(self) -> None:
        self.records: list[CellRecord] = []

    def append_cell(self, record: CellRecord) -> None:
        """Keep a record."""
        self.records.append(record)

    def open_stderr(self, spec: CellSpec, attempt: int = 0) -> BinaryIO:  # noqa: ARG002 - nothing is kept
        """Open a file that is forgotten."""
        return io.BytesIO()

    def stderr_name(self, spec: CellSpec, attempt: int = 0) -> str:  # noqa: ARG002
        """Return no path: there is no file."""
        return ""

    def cell_started(self, spec: CellSpec) -> None:
        """Say nothing."""

    def output_arrived(self, tokens: int) -> None:
        """Say nothing."""

    def turn_ended(self, record: TurnRecord, cap_tokens: int) -> None:
        """Say nothing."""

    def cell_ended(self, record: CellRecord) -> None:
        """Say nothing."""


class PairBench:
    """Runs the arms of what fails on cases, with the engines and the models of the run.

    Raises UsageError when an arm was taken over from an earlier run, so that it cannot be asked again.
    """

    def __init__(self, contents: RunContents, failing: Failing) -> None:
        self._contents = contents
        self._failing = failing
        if contents.environment.model.reported:
            raise UsageError(
                f"{contents.path}: a run on a server that ran already cannot be minimised",
                hint="nobody can show that it is the same server still; compare it anew with fewer turns",
            )
        plan = contents.plan
        if any(plan.is_recorded(arm) for arm in (failing.contrast.a, failing.contrast.b)):
            raise UsageError(
                f"{failing.contrast.name}: the baseline is a recorded run, which answers nothing new",
                hint="hold the two engines against each other: compare --engine A=ENGINE --engine B=ENGINE",
            )
        self._engines = [_Engine(build, contents) for build in plan.builds if not build.recorded] or [
            _Engine(Build(name="", engine=plan.engine), contents)
        ]
        small = all(engine.is_small for engine in self._engines)
        self._workers = min(MAX_WORKERS, os.cpu_count() or 1) if small else 1
        self.runs = 0
        self.tokens = 0

    def warnings(self) -> list[str]:
        """Say what is no longer as it was in the run."""
        return [text for engine in self._engines for text in engine.warnings()]

    def whole_case(self) -> Case:
        """Return the case as the run had it."""
        plan = self._contents.plan
        overridden = {
            f"{arm.build}:{pin.name}" if arm.build else pin.name: pin.value
            for record in self._contents.records
            for arm in (record.spec.arm,)
            for pin in record.pins
            if pin.overridden and not plan.is_recorded(arm)
        }
        scenario = plan.scenario(self._failing.scenario)
        return Case(scenario=scenario, depth=plan.depth, settings=tuple(sorted(overridden.items())))

    def try_case(self, case: Case) -> Failing | None:
        """Run a case; return how it fails, or None when it does not fail in the way of the run."""
        shown = None
        for _ in range(UNSTEADY_SHOWS if self._failing.verdict_class == "nondeterministic" else 1):
            shown = self._try_once(case)
            if shown is None:
                return None
        return shown

    def command(self, case: Case, out: Path) -> str:
        """Return the command that shows a case."""
        words = ["coli-ab", "compare", "--scenario", str(out), "--depth", str(case.depth)]
        for engine in self._engines:
            words += engine.options()
        if (context_tokens := self._context_tokens()) is not None:
            words += ["--context", str(context_tokens)]
        plan = self._contents.plan
        if plan.near_tie != "explain":
            words += ["--near-tie", plan.near_tie]
        if plan.tie_gap != DEFAULT_TIE_GAP:
            words += ["--tie-gap", f"{plan.tie_gap:g}"]
        for name, value in case.settings:
            words += ["--set", f"{name}={value}"]
        return shlex.join(words)

    def _try_once(self, case: Case) -> Failing | None:
        """Run the arms, then probes for as long as they can give the failure its class."""
        self.runs += 1
        plan = self._build_plan(case)
        launcher = BuildsLauncher(
            {
                engine.build.name: engine.launcher(plan.timeouts, case.settings, self._context_tokens())
                for engine in self._engines
            }
        )
        sink = MemorySink()

        def runner(plan: Plan) -> Runner:
            return Runner(plan, launcher, sink, observer=sink, wall_clock=read_wall_clock)

        with launcher:
            try:
                self._run_all([runner(replace(plan, cells=(spec,))).run_plan() for spec in plan.cells])
                return self._observe(plan, sink, runner)
            finally:
                self.tokens += sum(turn.emitted_tokens or 0 for r in sink.records for turn in r.turns)

    def _observe(self, plan: Plan, sink: MemorySink, runner: Callable[[Plan], Runner]) -> Failing | None:
        while True:
            comparison = compare_records(plan, sink.records)
            alike = [
                item
                for item in find_failing(plan, sink.records, comparison)
                if item.looks_like(self._failing)
            ]
            known = [item for item in alike if not item.wanted and item.is_like(self._failing)]
            if known or not alike:
                return known[0] if known else None
            probes = plan_probes(plan, comparison, sink.records)
            if not probes:
                return next((item for item in alike if item.is_like(self._failing)), None)
            self._run_all([runner(plan).run_probes([probe]) for probe in probes])

    def _run_all(self, jobs: Sequence[Iterable[CellRecord]]) -> None:
        """Run jobs, as many at once as the machine bears. An interruption leaves what runs to the guard."""
        if self._workers == 1 or len(jobs) == 1:
            for job in jobs:
                list(job)
            return
        pool = ThreadPoolExecutor(self._workers)
        try:
            for done in [pool.submit(list, job) for job in jobs]:
                done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _build_plan(self, case: Case) -> Plan:
        def at_depth(arm: Arm) -> Arm:
            return replace(arm, depth=case.depth) if arm.depth else arm

        contrast = self._failing.contrast
        contrast = replace(contrast, a=at_depth(contrast.a), b=at_depth(contrast.b))
        plan = replace(self._contents.plan, depth=case.depth, scenarios=(case.scenario,))
        if self._failing.symptom == "failure:engine-timeout":
            plan = replace(plan, timeouts=_tighten(plan.timeouts, self._contents.records))
        return build_pair_plan(plan, replace(self._failing, contrast=contrast))

    def _context_tokens(self) -> int | None:
        """Return the context size that the command line of the run gave, if any."""
        if self._contents.plan.scenario(self._failing.scenario).context_tokens is not None:
            return None
        sizes = {
            pin.value
            for record in self._contents.records
            for pin in record.pins
            if record.spec.scenario == self._failing.scenario and pin.name == "CTX" and not pin.overridden
        }
        return int(sizes.pop()) if sizes else None


class _Engine:
    """One engine of the run with its model."""

    def __init__(self, build: Build, contents: RunContents) -> None:
        self.build = build
        environment = contents.environment
        facts = {facts.name: (facts.engine, facts.model) for facts in environment.builds}
        self._was = facts.get(build.name, (environment.engine, environment.model))
        self._binding: Binding = find_binding(build.engine)
        self._model_dir = Path(self._was[1].directory)

    @property
    def is_small(self) -> bool:
        """Say whether two of them can run at once."""
        return self._was[1].weights_bytes <= SMALL_MODEL_BYTES

    def warnings(self) -> list[str]:
        """Say what is no longer as it was in the run."""
        name = f"{self.build.name}: " if self.build.name else ""
        engine, model = self._was
        found = []
        if self._binding.fingerprint().digest != engine.digest:
            found.append(f"{name}the engine is not the one of the run any more")
        if read_model_fingerprint(self._model_dir).weights_digest != model.weights_digest:
            found.append(f"{name}the model is not the one of the run any more")
        return found

    def launcher(
        self, timeouts: Timeouts, settings: Iterable[tuple[str, str]], context_tokens: int | None
    ) -> EngineLauncher:
        """Return what starts it with its own settings."""
        mark = f"{self.build.name}:" if self.build.name else ""
        return EngineLauncher(
            binding=self._binding,
            model_dir=self._model_dir,
            timeouts=timeouts,
            overrides={name.removeprefix(mark): value for name, value in settings if name.startswith(mark)},
            context_tokens=context_tokens,
        )

    def options(self) -> list[str]:
        """Return the options of a command line that name it."""
        mark = f"{self.build.name}=" if self.build.name else ""
        words = []
        if mark or self.build.engine != "reference":
            words += ["--engine", f"{mark}{self.build.engine}"]
        if self._model_dir != self._binding.default_model_dir():
            words += ["--model", f"{mark}{self._model_dir}"]
        return words


def _tighten(timeouts: Timeouts, records: Iterable[CellRecord]) -> Timeouts:
    """Wait for an engine that stands still in proportion to what the run saw, and never longer than there."""
    waits_ns = [0]
    for turn in (turn for record in records for turn in record.turns):
        times = [turn.sent_ns, *(delivery.at_ns for delivery in turn.deliveries), turn.done_ns]
        waits_ns += [b - a for a, b in pairwise(times)]
    patience_s = max(MIN_PATIENCE_S, PATIENCE_FACTOR * max(waits_ns) / 1e9)
    return replace(
        timeouts,
        first_output_timeout_s=min(timeouts.first_output_timeout_s, patience_s),
        progress_timeout_s=min(timeouts.progress_timeout_s, patience_s),
    )
