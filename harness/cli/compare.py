"""``coli-ab compare``: run every arm on every scenario and give the verdict."""

import argparse
import datetime
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from engine_bindings.errors import UsageError
from harness.cli.certify import certify_run
from harness.cli.clock import read_wall_clock
from harness.cli.dry_run import render_dry_run
from harness.cli.investigation import Investigation
from harness.cli.output import write_note, write_result
from harness.cli.progress import open_progress
from harness.cli.request import (
    DEFAULT_SCENARIOS,
    Request,
    check_same_run,
    list_build_facts,
    list_builds_after,
    read_request,
    restore_arguments,
    write_arguments,
)
from harness.cli.results import analyze_run, print_report
from harness.cli.scenario_files import ALL
from harness.cli.speed_options import add_speed_options
from harness.cli.subjects import add_subject_options
from harness.conditions import read_conditions
from harness.environment import read_environment
from harness.plan import (
    DEFAULT_DEPTH,
    DEFAULT_REPETITIONS,
    DEFAULT_TIE_GAP,
    SMALL_MODEL_BYTES,
    SMALL_MODEL_TIMEOUTS,
    NearTiePolicy,
    Timeouts,
    Until,
)
from harness.reuse import list_measured
from harness.rundir import RunDirectory, create_run_directory, read_run, reopen_run_directory
from harness.runner import Runner
from harness.transcript import CellRecord

EXIT_INTERRUPTED = 130

DESCRIPTION = """\
Starts the engine afresh for every cell (arm x scenario x repetition) and compares the arms:
chat mode and serve mode, each with speculation off and at the draft depth K.
"""

EPILOG = """\
examples:
  coli-ab compare
      the embedded engine and its model on the quick scenario, under half a minute
  coli-ab compare --scenario quick my-talk.toml --depth 1
      a shipped scenario and one of your own
  coli-ab compare --scenario all --dry-run
      cells, tokens at most and pinned settings; starts nothing
  coli-ab compare --set REF_KERNELS=int8-batch --scenario classes
      the embedded engine with kernels whose rounding depends on the batch
  coli-ab compare --repetitions 1 --until fault --budget 2000
      the cheapest way to a verdict: what differs is repeated, and only that
  coli-ab compare --json --out result > report.json
      the report as JSON, all files in the directory result
  coli-ab compare --engine main=reference=OLD --engine pr=reference=NEW
      two builds: the second is held against the first, arm by arm
  coli-ab compare --baseline runs/RUN
      the same against an earlier run, which costs no tokens
  coli-ab compare --on http://127.0.0.1:8001/v1 --off http://127.0.0.1:8000/v1
      two OpenAI-compatible servers that run already, one with speculation (docs/openai-servers.md)

Ctrl-C ends the engine, keeps what was measured and reports on that; a second one stops at once.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "compare",
        help="run the arms and give the verdict",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    _add_scenario_option(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options but ``--scenario``, which a command may fix instead."""
    add_subject_options(parser)
    _add_earlier_options(parser)
    _add_plan_options(parser)
    _add_verdict_options(parser)
    add_speed_options(parser)
    _add_output_options(parser)
    add_timeout_options(parser)


def _add_scenario_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scenario",
        nargs="+",
        action="extend",
        metavar="NAME|FILE",
        help=f"shipped scenario, path of a .toml file, or {ALL!r}; one or more"
        f" (default: {' '.join(DEFAULT_SCENARIOS)})",
    )


def _add_earlier_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("earlier runs")
    group.add_argument(
        "--baseline",
        metavar="RUN",
        help="hold every arm against that run's as well, for example the last one of the main branch:"
        " tokens, finish reasons and counts; nothing of it is run again",
    )
    group.add_argument(
        "--reuse",
        type=Path,
        metavar="RUN",
        help="take over cells of that run whose engine, model, scenario and settings are the same; their"
        " times are not used",
    )
    group.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with a run that was interrupted, with its own options",
    )


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is run")
    group.add_argument(
        "--depth",
        type=int,
        default=DEFAULT_DEPTH,
        metavar="K",
        help="draft depth of the arms with speculation (default: %(default)s)",
    )
    group.add_argument(
        "--context", type=_positive, metavar="TOKENS", help="context size (default: the engine's own)"
    )
    group.add_argument(
        "--repetitions",
        type=int,
        default=DEFAULT_REPETITIONS,
        metavar="N",
        help="runs of every cell; from 2 on each arm is also held against itself (default: %(default)s)",
    )


def _add_verdict_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is judged, and what that may cost")
    group.add_argument(
        "--near-tie",
        choices=get_args(NearTiePolicy),
        default="explain",
        help="a proven near-tie between two depths: explained, or failed like any difference; between the"
        " paths it always fails (default: %(default)s)",
    )
    group.add_argument(
        "--tie-gap",
        type=_positive_number,
        default=DEFAULT_TIE_GAP,
        metavar="LOGITS",
        help="the largest gap between two logits that is a near-tie (default: %(default)g, for float32)",
    )
    group.add_argument(
        "--budget",
        type=_positive,
        metavar="TOKENS",
        help="decode no more than this, probes included; the plan is cut to it and says what it leaves out",
    )
    group.add_argument(
        "--until",
        choices=get_args(Until),
        default="end",
        help="fault: end the run as soon as a fault is proven and named (default: %(default)s)",
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="new or empty run directory (default: runs/<time>-<random>)"
    )
    group.add_argument("--dry-run", action="store_true", help="say what would be run, and start nothing")
    group.add_argument(
        "--bisect",
        action="store_true",
        help="exit status for git bisect run: 0 pass, 1 fail, 125 when it cannot tell",
    )
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    group.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="key that seals the certificate of a pass (default: see docs/certificate.md)",
    )


def add_timeout_options(parser: argparse.ArgumentParser) -> None:
    """Add the limits on waiting."""
    group = parser.add_argument_group(
        "limits on waiting, in seconds",
        f"two defaults each: for a model of up to {SMALL_MODEL_BYTES >> 30} GiB, and for a larger one",
    )
    helps = {
        "start_timeout_s": "from the start of the process to its READY",
        "first_output_timeout_s": "from a request to the first byte of its answer",
        "progress_timeout_s": "between two pieces of an answer",
        "turn_timeout_s": "from a request to the end of its turn",
        "exit_timeout_s": "from the end of its input to the exit of the engine",
    }
    for name, text in helps.items():
        small, large = getattr(SMALL_MODEL_TIMEOUTS, name), getattr(Timeouts(), name)
        group.add_argument(
            f"--{name.removesuffix('_s').replace('_', '-')}",
            dest=name,
            type=_positive_number,
            metavar="SECONDS",
            help=f"{text} (default: {small:g} or {large:g})",
        )


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if arguments.resume is not None:
        return resume_run(arguments)
    if arguments.dry_run and arguments.bisect:
        raise UsageError(
            "--bisect --dry-run: nothing is run, so no commit is good or bad", hint="leave one of them out"
        )
    request = read_request(arguments)
    if arguments.dry_run:
        write_result(render_dry_run(request.prepared.plan, request.launcher, request.subjects))
        return 0
    directory = _prepare(request, arguments)
    return _complete(request, directory, request.prepared.records, arguments)


def resume_run(arguments: argparse.Namespace) -> int:
    """Go on with an interrupted run: what it measured is kept, what is missing or failed is run."""
    path = arguments.resume.resolve()
    kept = restore_arguments(arguments, path)
    directory = reopen_run_directory(path)
    request = read_request(kept)
    contents = read_run(path)
    check_same_run(request, contents)
    directory.drop_cut_line()
    return _complete(request, directory, contents.records, kept)


def _complete(
    request: Request,
    directory: RunDirectory,
    records: Sequence[CellRecord],
    arguments: argparse.Namespace,
) -> int:
    interrupted = _measure(request, directory, records)
    directory.add_builds_after(list_builds_after(request))
    write_note(f"run directory: {directory.path}\n")
    report = analyze_run(directory.path)
    if not interrupted and len(request.subjects) == 1:
        certify_run(
            report,
            request.prepared.plan,
            request.subjects[0].launcher(request.timeouts, arguments.context),
            request.scenarios,
            directory=directory.path,
            key_file=arguments.key_file,
        )
    print_report(report, "json" if arguments.json else "text")
    return EXIT_INTERRUPTED if interrupted else report.verdict.exit_status


def _prepare(request: Request, arguments: argparse.Namespace) -> RunDirectory:
    """Check engines and models, then make the run directory and write down what will be run on what."""
    builds = list_build_facts(request)
    started = datetime.datetime.now(datetime.UTC)
    run_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    directory = create_run_directory(arguments.out, run_id=run_id)
    directory.write_plan(request.prepared.plan)
    write_arguments(arguments, directory, baseline=request.prepared.baseline)
    for loaded in request.scenarios:
        directory.write_scenario(loaded.scenario.name, loaded.files)
    environment = read_environment(
        run_id=run_id,
        started_at=started.isoformat(timespec="seconds"),
        command=tuple(sys.argv),
        variables=os.environ,
        builds=builds,
    )
    directory.write_environment(environment)
    for record in request.prepared.records:
        directory.append_cell(record)
    return directory


def _measure(request: Request, directory: RunDirectory, earlier: Sequence[CellRecord]) -> bool:
    """Run the plan and the probes that it calls for; return True when it was interrupted."""
    plan = request.prepared.plan
    measured = list_measured(plan, earlier)
    to_run = replace(plan, cells=tuple(spec for spec in plan.cells if spec not in measured))
    progress = open_progress(to_run, sys.stderr)
    with progress, request.launcher as launcher:
        runner = Runner(
            plan,
            launcher,
            directory,
            observer=progress,
            wall_clock=read_wall_clock,
            earlier=earlier,
            read_conditions=read_conditions,
        )
        try:
            Investigation(plan, runner, earlier).run()
        except KeyboardInterrupt:
            return True
    return False


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _positive_number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
