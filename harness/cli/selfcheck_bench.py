"""Runs the gate on the embedded engine in this process: one engine setting, one plan, one run directory."""

import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine_bindings.fingerprint import read_model_fingerprint
from engine_bindings.reference_engine import ReferenceEngine
from harness.builds import BASELINE, add_baseline
from harness.cli.clock import read_wall_clock
from harness.cli.investigation import Investigation
from harness.cli.results import analyze_run, compare_records
from harness.comparison import Comparison, count_tokens
from harness.drivers.launcher import EngineLauncher
from harness.environment import BuildFacts, Environment, read_environment
from harness.plan import DEFAULT_DEPTH, SMALL_MODEL_TIMEOUTS, CellSpec, Plan, Until, build_plan
from harness.rundir import create_run_directory
from harness.runner import Runner
from harness.scenario import Scenario
from harness.selfcheck.matrix import Given
from harness.transcript import CellRecord, TurnRecord
from harness.verdict import Verdict, judge, list_faults

# The packaged model answers within a tenth of a second; a loop without an end should not cost a minute.
TIMEOUTS = replace(
    SMALL_MODEL_TIMEOUTS, first_output_timeout_s=15.0, progress_timeout_s=5.0, turn_timeout_s=120.0
)
DEFECT_SETTING = "REF_DEFECT"
KERNELS_SETTING = "REF_KERNELS"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """A run that ended: what it was, what it recorded, and what the gate said."""

    plan: Plan
    records: tuple[CellRecord, ...]
    given: Given


class StopObserver:
    """Hears of a run and says nothing, but ends it at its next sign of life once ``stop`` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def cell_started(self, spec: CellSpec) -> None:  # noqa: ARG002
        """Go on, unless it is time to stop."""
        self._go_on()

    def output_arrived(self, tokens: int) -> None:  # noqa: ARG002
        """Go on, unless it is time to stop."""
        self._go_on()

    def turn_ended(self, record: TurnRecord, cap_tokens: int) -> None:  # noqa: ARG002
        """Go on, unless it is time to stop."""
        self._go_on()

    def cell_ended(self, record: CellRecord) -> None:
        """Say nothing: what was measured is kept."""

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt


class GateBench:
    """Runs the gate on the embedded engine, each run in a directory of its own below ``directory``."""

    def __init__(self, directory: Path, stop: threading.Event) -> None:
        self._directory = directory
        self._stop = stop
        self._binding = ReferenceEngine()
        model_dir = self._binding.default_model_dir()
        assert model_dir is not None, "the embedded engine comes with a model"  # noqa: S101
        self._model_dir = model_dir
        self._environment = self._read_environment()

    def build_plan(self, scenarios: Sequence[Scenario], *, depth: int = DEFAULT_DEPTH) -> Plan:
        """Return the plan of the gate: every arm on every scenario, once."""
        return build_plan(
            scenarios,
            depth=depth,
            repetitions=1,
            timeouts=TIMEOUTS,
            capabilities=self._binding.capabilities,
        )

    def run(self, name: str, plan: Plan, settings: Mapping[str, str], *, until: Until = "fault") -> GateRun:
        """Run a plan and judge it. Raises KeyboardInterrupt when it was told to stop."""
        return self._run(name, replace(plan, until=until), settings, ())

    def run_against(self, name: str, run: GateRun, healthy: GateRun, settings: Mapping[str, str]) -> GateRun:
        """Hold a run against that of the healthy engine, as ``compare --baseline`` does.

        What both measured is not measured again; a difference is looked into on the engine of the run.
        """
        whole = replace(run.plan, until="end")
        plan, taken = add_baseline(whole, healthy.plan, healthy.records, BASELINE)
        joined = self._run(name, plan, settings, (*taken, *run.records))
        given = joined.given
        told = replace(
            given,
            against="baseline",
            tokens_decoded=given.tokens_decoded - count_tokens(taken),
            cells=given.cells - len(taken),
            seconds=given.seconds + run.given.seconds,
        )
        return replace(joined, given=told)

    def _run(
        self,
        name: str,
        plan: Plan,
        settings: Mapping[str, str],
        earlier: tuple[CellRecord, ...],
    ) -> GateRun:
        started = time.monotonic()
        directory = create_run_directory(self._directory / name, run_id=name)
        directory.write_plan(plan)
        directory.write_environment(replace(self._environment, run_id=name, started_at=read_wall_clock()))
        for record in earlier:
            directory.append_cell(record)
        launcher = EngineLauncher(
            binding=self._binding, model_dir=self._model_dir, timeouts=plan.timeouts, overrides=settings
        )
        observer = StopObserver(self._stop)
        with launcher:
            runner = Runner(
                plan, launcher, directory, observer=observer, wall_clock=read_wall_clock, earlier=earlier
            )
            investigation = Investigation(plan, runner, earlier)
            investigation.run()
        records = investigation.records
        comparison = compare_records(plan, records)
        given = describe_verdict(judge(plan, comparison), comparison)
        given = replace(given, cells=len(records), seconds=time.monotonic() - started)
        return GateRun(plan=plan, records=records, given=given)

    def keep(self, name: str) -> Path:
        """Complete the directory of a run, so that it can be reported on; return its path."""
        path = self._directory / name
        analyze_run(path)
        return path

    def forget(self, name: str) -> None:
        """Remove the directory of a run."""
        shutil.rmtree(self._directory / name, ignore_errors=True)

    def _read_environment(self) -> Environment:
        return read_environment(
            run_id="",
            started_at="",
            command=("coli-ab", "selfcheck"),
            variables={},
            builds=(
                BuildFacts(
                    name="",
                    engine=self._binding.fingerprint(),
                    model=read_model_fingerprint(self._model_dir),
                ),
            ),
        )


def describe_verdict(verdict: Verdict, comparison: Comparison) -> Given:
    """Return a verdict with the contrast and the place that decided it."""
    contrast, place = "", ""
    if comparison.failures:
        place = comparison.failures[0].spec.key
    elif verdict.status == "fail":
        fault = list_faults(comparison)[0]
        contrast = fault.contrast or " ".join(arm.label for arm in fault.arms)
        place = fault.place
    elif verdict.status == "inconclusive" or verdict.verdict_class == "near-tie":
        same = [f for f in comparison.findings if f.verdict_class == verdict.verdict_class]
        contrast, place = (same[0].contrast, same[0].place) if same else ("", verdict.reasons[0])
    return Given(
        status=verdict.status,
        verdict_class=verdict.verdict_class,
        sentence=verdict.sentence,
        contrast=contrast,
        place=place,
        tokens_decoded=comparison.tokens_decoded,
        cells=0,
        seconds=0.0,
    )
