"""Reads earlier runs that a new one builds on: a baseline, cells to take over, a run to go on with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.binding import Launch, Pin
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import EngineFingerprint, ModelFingerprint
from harness.builds import add_baseline
from harness.cli.subjects import Subject
from harness.environment import read_processors
from harness.history import DEFAULT_FILE, digest_series, name_model, open_history
from harness.plan import Arm, CellSpec, Plan
from harness.reuse import select_reusable
from harness.rundir import RunContents, read_run
from harness.runner import Launcher
from harness.transcript import CellRecord

FROM_HISTORY = "history"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan with the records that it starts from. ``baseline`` is the run that is held against, or None."""

    plan: Plan
    records: tuple[CellRecord, ...] = ()
    baseline: RunContents | None = None


def build_on_earlier_runs(
    plan: Plan, subjects: Sequence[Subject], launcher: Launcher, *, baseline: str | None, reuse: Path | None
) -> Prepared:
    """Add the arms of a baseline to a plan, and take over the cells of an earlier run that are the same.

    Raises:
        UsageError: there are several engines; another model; no cell in common; no run at a path.
    """
    if (baseline or reuse) and len(subjects) > 1:
        raise UsageError(
            "--baseline and --reuse stand for one engine, and several are named",
            hint="name one with --engine, or run them all afresh",
        )
    prepared = Prepared(plan=plan)
    if reuse is not None:
        prepared = _take_over(prepared, subjects[0], launcher, reuse)
    if baseline is not None:
        path = _find_baseline(baseline, prepared.plan, subjects[0], launcher)
        contents = read_run(path)
        _check_model(subjects[0].fingerprints()[1], contents, f"--baseline {baseline}")
        joined, taken = add_baseline(prepared.plan, contents.plan, contents.records, str(path))
        prepared = Prepared(plan=joined, records=(*taken, *prepared.records), baseline=contents)
    return prepared


def _find_baseline(reference: str, plan: Plan, subject: Subject, launcher: Launcher) -> Path:
    """Return the directory of ``--baseline``: a path, the id of a run in the history, or ``history``."""
    path = Path(reference)
    names_a_directory = path.exists() or path.name != reference
    if names_a_directory or not (reference == FROM_HISTORY or DEFAULT_FILE.exists()):
        return path
    with open_history(DEFAULT_FILE) as history:
        if reference != FROM_HISTORY:
            return Path(history.find_run(reference).path)
        model = name_model(subject.fingerprints()[1])
        series = digest_series(plan, read_processors(), model, _list_pins(plan, launcher))
        entries = [entry for entry in history.list_runs(series) if entry.is_baseline]
    if not entries:
        raise UsageError(
            f"--baseline {FROM_HISTORY}: no baseline of this machine, model, depth {plan.depth}, settings and"
            f" scenarios (series {series})",
            hint="coli-ab history baseline ID makes one of a run; a run of another series is named by its id",
        )
    return Path(entries[-1].path)


def _list_pins(plan: Plan, launcher: Launcher) -> dict[Pin, set[Arm]]:
    """Return the settings that the cells will run with."""
    pins: dict[Pin, set[Arm]] = {}
    for arm, name in dict.fromkeys((spec.arm, spec.scenario) for spec in plan.cells):
        for pin in launcher.launch(arm, plan.scenario(name)).pins:
            pins.setdefault(pin, set()).add(arm)
    return pins


def _take_over(prepared: Prepared, subject: Subject, launcher: Launcher, run: Path) -> Prepared:
    contents = read_run(run)
    engine, model = subject.fingerprints()
    _check_model(model, contents, f"--reuse {run}")
    _check_engine(engine, contents, f"--reuse {run}")
    plan = prepared.plan

    def launch_of(spec: CellSpec) -> Launch:
        return launcher.launch(spec.arm, plan.scenario(spec.scenario))

    records = select_reusable(plan, contents.plan, contents.records, run=str(run), launch_of=launch_of)
    if not records:
        raise UsageError(
            f"--reuse {run}: no cell of it is in this plan with the same settings",
            hint="arm, scenario, repetition, command line and settings of a cell must be the same",
        )
    return Prepared(plan=plan, records=records)


def _check_engine(engine: EngineFingerprint, contents: RunContents, option: str) -> None:
    then = contents.environment.engine
    if engine.reported:
        raise UsageError(
            f"{option}: nobody can show that a server that runs already is the one of that run",
            hint="run all cells afresh; to hold the answers against each other: --baseline RUN",
        )
    if engine.digest != then.digest:
        raise UsageError(
            f"{option}: measured on another engine, {then.digest[:16]}; this one is {engine.digest[:16]}",
            hint="run all cells afresh; to hold two builds against each other: --baseline RUN",
        )


def _check_model(model: ModelFingerprint, contents: RunContents, option: str) -> None:
    then = contents.environment.model
    for name in ("config_digest", "tokenizer_digest", "weights_digest"):
        now, before = getattr(model, name), getattr(then, name)
        if now != before:
            what = name.removesuffix("_digest")
            raise UsageError(
                f"{option}: another model, its {what} is {before[:16]} and here it is {now[:16]}",
                hint="name the model of that run with --model",
            )
