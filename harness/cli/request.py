"""What a command line of ``compare`` asks for, and keeping it so that an interrupted run can go on."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine_bindings.errors import RunDirectoryError, UsageError
from engine_bindings.fingerprint import read_version, read_weights_bytes
from engine_bindings.regular_file import read_regular
from harness.budget import cut_plan, end_at_fault
from harness.builds import BASELINE, join_builds
from harness.cli.earlier_runs import Prepared, build_on_earlier_runs
from harness.cli.grammar_support import fit_grammar
from harness.cli.output import write_note
from harness.cli.scenario_files import LoadedScenario, load_scenarios
from harness.cli.settings import describe_near_misses
from harness.cli.speed_options import add_speed
from harness.cli.subjects import Subject, read_subjects
from harness.drivers.builds import BuildsLauncher
from harness.environment import BuildAfter, BuildFacts, read_processors
from harness.origins import read_cached_ratio, read_commit, read_storage
from harness.plan import (
    DEFAULT_DEPTH,
    DEFAULT_REPETITIONS,
    DEFAULT_TIE_GAP,
    Plan,
    Timeouts,
    build_plan,
    choose_timeouts,
)
from harness.rundir import RunContents, RunDirectory

DEFAULT_SCENARIOS = ("quick",)
ARGUMENTS = "arguments.json"

# Options that say how a run is shown, and not what it is: they may be given anew when it goes on.
SHOWN = ("json", "key_file", "resume", "bisect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asks for."""

    subjects: tuple[Subject, ...]
    scenarios: tuple[LoadedScenario, ...]
    prepared: Prepared
    launcher: BuildsLauncher
    timeouts: Timeouts


def read_request(arguments: argparse.Namespace) -> Request:
    """Read engines, scenarios and earlier runs, and build the plan. Raises UsageError."""
    subjects = read_subjects(arguments)
    for subject in subjects:
        for remark in describe_near_misses(subject.binding, tuple(subject.overrides)):
            write_note(f"coli-ab: {remark}\n")
    scenarios = load_scenarios(arguments.scenario or list(DEFAULT_SCENARIOS))
    timeouts = read_timeouts(arguments, subjects)
    launcher = BuildsLauncher(
        {subject.label: subject.launcher(timeouts, arguments.context) for subject in subjects}
    )
    plan = _build_plan(arguments, subjects, scenarios, timeouts)
    prepared = build_on_earlier_runs(
        plan, subjects, launcher, baseline=arguments.baseline, reuse=arguments.reuse
    )
    return Request(
        subjects=subjects,
        scenarios=scenarios,
        prepared=prepared,
        launcher=launcher,
        timeouts=timeouts,
    )


def _build_plan(
    arguments: argparse.Namespace,
    subjects: Sequence[Subject],
    scenarios: Sequence[LoadedScenario],
    timeouts: Timeouts,
) -> Plan:
    for subject in subjects:
        _check_contexts(subject, scenarios, arguments.context)
    plans = [
        build_plan(
            [fit_grammar(loaded.scenario, subject.binding) for loaded in scenarios],
            engine=subject.engine,
            depth=arguments.depth,
            repetitions=arguments.repetitions,
            timeouts=timeouts,
            near_tie=arguments.near_tie,
            tie_gap=arguments.tie_gap,
            capabilities=subject.binding.capabilities,
            context_tokens=arguments.context,
        )
        for subject in subjects
    ]
    plan = plans[0] if len(plans) == 1 else join_builds([subject.build for subject in subjects], plans)
    if arguments.budget is not None:
        plan = cut_plan(plan, arguments.budget)
    if arguments.until == "fault":
        plan = end_at_fault(plan)
    return add_speed(plan, arguments)


def _check_contexts(subject: Subject, scenarios: Sequence[LoadedScenario], asked: int | None) -> None:
    """Raise UsageError where a running server would have to have a context of another size."""
    if subject.model_dir is not None:
        return
    if asked is not None:
        raise UsageError(
            f"--context {asked}: the size of a running server's context cannot be chosen",
            hint="start the server with that size, and leave the option out",
        )
    given = subject.binding.capabilities.context_tokens
    for scenario in (loaded.scenario for loaded in scenarios):
        if scenario.context_tokens not in (None, given):
            told = "does not tell the size of its own" if given is None else f"has one of {given}"
            raise UsageError(
                f"scenario {scenario.name!r} needs a context of {scenario.context_tokens} tokens, and the"
                f" server {told}",
                hint="start the server with that size, or leave the scenario out",
            )


def read_timeouts(arguments: argparse.Namespace, subjects: Sequence[Subject]) -> Timeouts:
    """Return the limits on waiting: those of the options, and defaults by the size of the models."""
    asked = {field.name: getattr(arguments, field.name) for field in fields(Timeouts)}
    given = {name: value for name, value in asked.items() if value is not None}
    return replace(choose_subject_timeouts(subjects), **given)


def choose_subject_timeouts(subjects: Sequence[Subject]) -> Timeouts:
    """Return the default limits on waiting for engines with models of their size."""
    # Nobody knows how large the model of a server is.
    sizes = [None if one.model_dir is None else read_weights_bytes(one.model_dir) for one in subjects]
    known = [size for size in sizes if size is not None]
    return choose_timeouts(max(known)) if len(known) == len(sizes) else Timeouts()


def _read_build_facts(subject: Subject) -> BuildFacts:
    engine, model = subject.fingerprints()
    facts = BuildFacts(name=subject.label, engine=engine, model=model)
    if subject.model_dir is None:
        return facts
    return replace(
        facts,
        commit=read_commit(Path(engine.source)),
        model_storage=read_storage(subject.model_dir),
        model_cached_ratio=read_cached_ratio(subject.model_dir),
    )


def list_build_facts(request: Request) -> tuple[BuildFacts, ...]:
    """Say which engines and models these are, the one under test first; a baseline comes before it."""
    facts = [_read_build_facts(subject) for subject in request.subjects]
    if (baseline := request.prepared.baseline) is not None:
        was = baseline.environment.builds[0]
        facts.append(replace(was, name=BASELINE))
    return tuple(facts)


def list_builds_after(request: Request) -> tuple[BuildAfter, ...]:
    """Say which engines and models these are now, but for servers that were found running."""
    builds = []
    for subject in request.subjects:
        if subject.model_dir is None:
            continue
        try:
            engine, model = subject.fingerprints()
        except UsageError as error:
            builds.append(BuildAfter(name=subject.label, identity=None, problem=error.message))
        else:
            identity = BuildFacts(name=subject.label, engine=engine, model=model).identity
            builds.append(BuildAfter(name=subject.label, identity=identity))
    return tuple(builds)


def write_arguments(
    arguments: argparse.Namespace, directory: RunDirectory, *, baseline: RunContents | None = None
) -> None:
    """Keep the options of a run, so that it can go on after an interruption.

    ``baseline`` is named by its directory, as the history may have another one then.
    """
    options = {
        name: _to_plain(value)
        for name, value in vars(arguments).items()
        if name not in ("run", "out", "command", *SHOWN)
    }
    if baseline is not None:
        options["baseline"] = str(baseline.path.resolve())
    kept = {"working_directory": str(Path.cwd()), "options": options}
    directory.write_text(ARGUMENTS, json.dumps(kept, indent=2))


def restore_arguments(arguments: argparse.Namespace, run: Path) -> argparse.Namespace:
    """Return the options of an interrupted run, and go to the directory that its paths are relative to.

    Raises:
        UsageError: other options were given too, or the directory is gone.
        RunDirectoryError: ``run`` is no run, or its options cannot be read.
    """
    file = run / ARGUMENTS
    try:
        kept = json.loads(read_regular(file))
        options, directory = dict(kept["options"]), str(kept["working_directory"])
        _refuse_other_options(arguments, options)
        _check_options(options, arguments)
    except OSError as error:
        raise RunDirectoryError(
            f"{file}: {error.strerror}", hint="name the directory of a run, for example one below runs/"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunDirectoryError(
            f"{file}: not the options of a run: {type(error).__name__}: {error}",
            hint="it was edited, or written by a newer version",
        ) from error
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(
            f"--resume {run}: its working directory {directory!r} is not there: {error.strerror}",
            hint="paths of that run are relative to it",
        ) from error
    # An option that is newer than the run has its default there.
    defaults = {name: value for name, value in vars(arguments).items() if name not in options}
    paths = {name: Path(value) for name, value in options.items() if name in PATHS and value is not None}
    shown = {name: getattr(arguments, name) for name in SHOWN}
    return argparse.Namespace(**{**defaults, **options, **paths, **shown, "out": run})


PATHS = ("reuse",)
_LISTS = ("engine", "model", "settings", "scenario", "timed")
_WHOLE = ("depth", "context", "repetitions", "budget", "pairs", "order_seed", "expert_bits", "dense_bits")
_NUMBERS = ("tie_gap", "bound", "alpha", *(field.name for field in fields(Timeouts)))
_FLAGS = ("dry_run", "performance", "sequential")


def _check_options(options: Mapping[str, Any], known: argparse.Namespace) -> None:
    """Raise ValueError where an option is unknown or of another kind."""
    for name, value in options.items():
        default = getattr(known, name, "unknown")
        if default == "unknown" or not (value is default is None or _is_of_kind(name, value)):
            raise ValueError(f"{name}: {value!r}")


def _is_of_kind(name: str, value: Any) -> bool:
    if name in _LISTS:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    if name in _FLAGS:
        return isinstance(value, bool)
    if name in _WHOLE or name in _NUMBERS:
        kinds = (int,) if name in _WHOLE else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, str)


def _refuse_other_options(arguments: argparse.Namespace, kept: Mapping[str, Any]) -> None:
    plain = {
        "depth": DEFAULT_DEPTH,
        "repetitions": DEFAULT_REPETITIONS,
        "near_tie": "explain",
        "tie_gap": DEFAULT_TIE_GAP,
        "until": "end",
    }
    for name, value in vars(arguments).items():
        if name in ("run", "command", *SHOWN) or value in (plain.get(name), kept.get(name), None, [], False):
            continue
        option = f"--{name.replace('_', '-')} {value}"
        raise UsageError(
            f"--resume goes on with the options of its run, so {option} has no place",
            hint="leave it out, or begin a new run",
        )


def check_same_run(request: Request, contents: RunContents) -> None:
    """Raise UsageError when the run would not be the same one any more."""
    if request.prepared.plan != contents.plan:
        raise UsageError(
            f"--resume {contents.path}: scenarios or settings changed since, so the plan is another",
            hint="put them back, or begin a new run (--reuse takes over the cells that are the same)",
        )
    then = contents.environment
    if (machine := read_processors()) != then.processors:
        raise UsageError(
            f"--resume {contents.path}: begun on another machine, {then.processors}; this one has {machine}",
            hint="go on there, or begin a new run (--reuse takes over the cells, without their times)",
        )
    if (version := read_version()) != then.version:
        write_note(f"coli-ab: the run was begun by version {then.version}, and {version} goes on with it\n")
    before = then.builds
    now = {facts.name: facts.identity for facts in list_build_facts(request)}
    for facts in before:
        changed = [
            name for name, value in facts.identity.items() if now.get(facts.name, {}).get(name) != value
        ]
        if changed:
            raise UsageError(
                f"--resume {contents.path}: {' and '.join(changed)} changed since the run began",
                hint="its cells would not be of one engine; begin a new run",
            )


def _to_plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
