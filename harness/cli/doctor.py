"""``coli-ab doctor``: find out by asking what an engine can do, and what is wrong with it."""

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from engine_bindings.binding import Capabilities
from engine_bindings.errors import UsageError
from harness.cli.clock import read_wall_clock
from harness.cli.compare import EXIT_INTERRUPTED, add_timeout_options
from harness.cli.output import write_note, write_result
from harness.cli.pair_bench import MemorySink
from harness.cli.progress import LiveProgress, PlainProgress, open_progress
from harness.cli.request import read_timeouts
from harness.cli.subjects import Subject, add_subject_options, read_subjects
from harness.doctor.diagnosis import diagnose, shows_its_path
from harness.doctor.probes import (
    CLAMP_SETTING,
    CLAMP_TOKENS,
    Examination,
    Visit,
    ask_again,
    ask_for_margins,
    plan_examination,
)
from harness.doctor.requests import needs_second_start, refuses_logprobs
from harness.doctor.rows import Diagnosis
from harness.drivers.launcher import EngineLauncher
from harness.plan import DEFAULT_DEPTH
from harness.record_json import to_json
from harness.rundir import RunDirectory, create_run_directory
from harness.runner import RecordSink, Runner
from harness.transcript import CellRecord
from reports.doctor import render_diagnosis

EXIT_PROBLEM = 1
EXIT_CANNOT_START = 4

DESCRIPTION = """\
Starts the engine on each of its paths, asks it a few short turns, and prints what it can do, each with
what was asked and what came back. What it says of itself is never taken for proof.
"""

EPILOG = """\
exit statuses: 0 all as claimed, 1 a problem was found, 2 the command is wrong, 4 no path starts.

examples:
  coli-ab doctor
      the embedded engine
  coli-ab doctor --engine colibri=BUILD --model DIR --depth 1 --brief
      drafting, counts, caps and ends alone: two starts for each path
  coli-ab doctor --engine http://127.0.0.1:8000/v1
      an OpenAI-compatible server that runs already
"""

Seen = list[tuple[Visit, CellRecord]]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="find out by asking what an engine can do",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_subject_options(parser)
    parser.add_argument(
        "--depth",
        type=int,
        default=DEFAULT_DEPTH,
        metavar="K",
        help="draft depth at which drafting is looked for (default: %(default)s)",
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        help="only drafting, counts, caps and ends: no start for seeds, logprobs, grammar and context",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the records and stderr of every start")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    add_timeout_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    subjects = read_subjects(arguments)
    if len(subjects) > 1:
        raise UsageError(
            f"doctor looks at one engine, and {len(subjects)} are named", hint="run it once for each"
        )
    subject, able = subjects[0], subjects[0].binding.capabilities
    subject.fingerprints()  # says now what is not there, and not after many minutes
    timeouts = read_timeouts(arguments, subjects)
    launcher = subject.launcher(timeouts, None)
    examination = _plan(subject, able, launcher, arguments)
    write_note(
        f"{len(examination.visits)} starts on {len(able.paths)} paths,"
        f" {examination.worst_case_tokens:,} tokens at most\n"
    )
    directory = _open_directory(arguments.out)
    seen, interrupted = _examine(examination, launcher, directory or MemorySink())
    notes = tuple(f"{path}: {why}" for path, why in able.unavailable)
    diagnosis = replace(diagnose(examination, able, seen), notes=notes)
    if directory is not None:
        directory.write_plan(examination.plan)
        directory.write_value("doctor.json", diagnosis)
    write_result(to_json(diagnosis, indent=2) + "\n" if arguments.json else render_diagnosis(diagnosis))
    return EXIT_INTERRUPTED if interrupted else choose_status(diagnosis)


def choose_status(diagnosis: Diagnosis) -> int:
    """Return the exit status of a finished examination."""
    if not diagnosis.ready:
        return EXIT_CANNOT_START
    return EXIT_PROBLEM if diagnosis.complaints("problem") else 0


def _plan(
    subject: Subject, able: Capabilities, launcher: EngineLauncher, arguments: argparse.Namespace
) -> Examination:
    def build(clampable: frozenset[str]) -> Examination:
        return plan_examination(
            able,
            engine=subject.engine,
            depth=arguments.depth,
            timeouts=launcher.timeouts,
            is_served=subject.model_dir is None,
            clampable=clampable,
            brief=arguments.brief,
        )

    examination = build(frozenset())
    clampable = {
        visit.path
        for visit in examination.visits
        if any(
            pin.name == CLAMP_SETTING
            for pin in launcher.launch(visit.probe.spec.arm, visit.probe.scenario).pins
        )
    }
    return build(frozenset(clampable) - {path for path in able.paths if able.entries_of(path) == ("line",)})


def _open_directory(out: Path | None) -> RunDirectory | None:
    return None if out is None else create_run_directory(out, run_id="")


class _Examiner:
    """Makes visits; a path whose engine did not become ready is left after its first two."""

    def __init__(self, runners: Mapping[bool, Runner]) -> None:
        self._runners = runners
        self.seen: Seen = []

    def run(self, visits: tuple[Visit, ...]) -> None:
        """Make the visits in their order."""
        for visit in visits:
            main = visit.kind in ("plain", "drafting")
            if not main and not self._was_ready(visit):
                continue
            record = self._make(visit)
            if visit.kind == "limits" and needs_second_start(record):
                self._make(ask_again(visit))
            if visit.kind == "asked" and visit.probe.settings and refuses_logprobs(record):
                self._make(ask_for_margins(visit))

    def _was_ready(self, visit: Visit) -> bool:
        return any(shows_its_path(record) for seen, record in self.seen if seen.path == visit.path)

    def _make(self, visit: Visit) -> CellRecord:
        record = next(self._runners[visit.clamped].run_probes([visit.probe]))
        self.seen.append((visit, record))
        return record


def _examine(examination: Examination, launcher: EngineLauncher, sink: RecordSink) -> tuple[Seen, bool]:
    """Make all visits; return what was seen, and whether the user ended it."""
    clamped = replace(launcher, overrides={**launcher.overrides, CLAMP_SETTING: str(CLAMP_TOKENS)})
    with ExitStack() as stack:
        cells = tuple(visit.probe.spec for visit in examination.visits)
        shown = replace(examination.plan, cells=cells)
        progress: PlainProgress | LiveProgress = open_progress(shown, sys.stderr)
        stack.enter_context(progress)
        runners = {
            lowered: Runner(
                examination.plan,
                stack.enter_context(own),
                sink,
                observer=progress,
                wall_clock=read_wall_clock,
            )
            for lowered, own in ((False, launcher), (True, clamped))
        }
        examiner = _Examiner(runners)
        try:
            examiner.run(examination.visits)
        except KeyboardInterrupt:
            return examiner.seen, True
    return examiner.seen, False
