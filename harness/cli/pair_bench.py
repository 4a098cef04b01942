"""Runs the two arms of a failing contrast on one case after the other, keeping nothing on disk."""

import datetime
import io
import shlex
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from engine_bindings.binding import Binding
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import read_model_fingerprint
from engine_bindings.registry import find_binding
from harness.drivers.launcher import EngineLauncher
from harness.failing import Failing, build_pair_plan, observe_symptom
from harness.minimize import Case
from harness.plan import Arm, CellSpec, Plan
from harness.rundir import RunContents
from harness.runner import Runner
from harness.transcript import CellRecord, TurnRecord


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
    """Runs the arms of the failing contrast on cases, with the engine and the model of the run."""

    def __init__(self, contents: RunContents, failing: Failing) -> None:
        self._contents = contents
        self._failing = failing
        self._binding: Binding = find_binding(contents.plan.engine)
        if contents.environment.model.reported:
            raise UsageError(
                f"{contents.path}: a run on a server that ran already cannot be minimised",
                hint="nobody can show that it is the same server still; compare it anew with fewer turns",
            )
        self._model_dir = Path(contents.environment.model.directory)
        self.runs = 0
        self.tokens = 0

    def warnings(self) -> list[str]:
        """Say what is no longer as it was in the run."""
        environment = self._contents.environment
        found = []
        if self._binding.fingerprint().digest != environment.engine.digest:
            found.append("the engine is not the one of the run any more")
        if read_model_fingerprint(self._model_dir).weights_digest != environment.model.weights_digest:
            found.append("the model is not the one of the run any more")
        return found

    def whole_case(self) -> Case:
        """Return the case as the run had it."""
        plan = self._contents.plan
        overridden = {
            pin.name: pin.value for record in self._contents.records for pin in record.pins if pin.overridden
        }
        scenario = plan.scenario(self._failing.scenario)
        return Case(scenario=scenario, depth=plan.depth, settings=tuple(sorted(overridden.items())))

    def try_case(self, case: Case) -> Failing | None:
        """Run a case; return how it fails, or None when it does not fail in the way of the run."""
        self.runs += 1
        plan = self._build_plan(case)
        launcher = EngineLauncher(
            binding=self._binding,
            model_dir=self._model_dir,
            timeouts=plan.timeouts,
            overrides=dict(case.settings),
            context_tokens=self._context_tokens(),
        )
        sink = MemorySink()
        with launcher:
            runner = Runner(plan, launcher, sink, observer=sink, wall_clock=_wall_clock)
            try:
                records = list(runner.run_plan())
            finally:
                self.tokens += sum(turn.emitted_tokens or 0 for r in sink.records for turn in r.turns)
        return observe_symptom(plan, records, self._failing.symptom)

    def command(self, case: Case, out: Path) -> str:
        """Return the command that shows a case."""
        words = ["coli-ab", "compare", "--scenario", str(out), "--depth", str(case.depth)]
        plan = self._contents.plan
        if plan.engine != "reference":
            words += ["--engine", plan.engine]
        if self._model_dir != self._binding.default_model_dir():
            words += ["--model", str(self._model_dir)]
        if (context_tokens := self._context_tokens()) is not None:
            words += ["--context", str(context_tokens)]
        for name, value in case.settings:
            words += ["--set", f"{name}={value}"]
        return shlex.join(words)

    def _build_plan(self, case: Case) -> Plan:
        def at_depth(arm: Arm) -> Arm:
            return replace(arm, depth=case.depth) if arm.depth else arm

        contrast = self._failing.contrast
        contrast = replace(contrast, a=at_depth(contrast.a), b=at_depth(contrast.b))
        plan = replace(self._contents.plan, depth=case.depth, scenarios=(case.scenario,))
        return build_pair_plan(plan, contrast, repeat=not self._failing.is_one_sided)

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


def _wall_clock() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
