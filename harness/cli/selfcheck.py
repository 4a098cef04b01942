"""``coli-ab selfcheck``: proof that the gate names every seeded fault and accuses nothing that is none."""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from engine_bindings.errors import EngineStartError, UsageError
from engine_bindings.reference_engine import ReferenceEngine
from harness.cli.output import write_result
from harness.cli.scenario_files import load_scenarios
from harness.cli.selfcheck_bench import KERNELS_SETTING, GateBench
from harness.cli.selfcheck_gate import Selfcheck
from harness.cli.selfcheck_jobs import run_jobs
from harness.record_json import to_json
from harness.rundir import create_run_directory
from harness.selfcheck.declared import DeclaredDefect, parse_defects, select_defects
from harness.selfcheck.draws import draw_defects
from harness.selfcheck.places import SCENARIOS
from reports.selfcheck import render_matrix

EXIT_FAIL = 1
EXIT_INTERRUPTED = 130
HEALTHY_RUNS = 200
FAST_HEALTHY_RUNS = 10
DEFAULT_SEED = 1
LIST_TIMEOUT_S = 60.0

DESCRIPTION = """\
Runs the gate on the embedded engine: healthy, with every seeded defect, and with every control, which is no
fault. Prints what the gate said of each beside what it must say.
"""

EPILOG = """\
exit statuses: 0 every defect is named, no control is accused and no healthy run gave an alarm; 1 else;
130 interrupted (what was measured is shown).

examples:
  coli-ab selfcheck --fast
      each defect where it shows: the form for CI
  coli-ab selfcheck
      each defect on all scenarios until it is named, and 200 runs of the healthy engine
  coli-ab selfcheck --defect cap-before-stop --out missed
      one defect; its run directory is kept when it is missed
  coli-ab selfcheck --kernels int8-batch --sample 3
      three defects of each class under kernels whose rounding depends on the batch
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "selfcheck",
        help="prove that the gate catches what it must",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--fast", action="store_true", help="run each defect only where it shows")
    parser.add_argument(
        "--defect", nargs="+", action="extend", default=[], metavar="NAME", help="only these defects"
    )
    parser.add_argument(
        "--healthy",
        type=_count,
        metavar="N",
        help=f"runs of the healthy engine against itself, each drawn from the seed (default: {HEALTHY_RUNS}, "
        f"{FAST_HEALTHY_RUNS} in the fast form, none where defects are chosen)",
    )
    parser.add_argument(
        "--sample", type=_count, metavar="N", help="only N defects of each verdict class, drawn at random"
    )
    parser.add_argument(
        "--kernels",
        metavar="NAME",
        help=f"switch on other kernels beside each defect (the engine's {KERNELS_SETTING})",
    )
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of all draws (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=_count, metavar="N", help="runs side by side (default: the number of cores)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="new or empty directory for runs that are kept"
    )
    parser.add_argument(
        "--keep",
        choices=("missed", "all"),
        default="missed",
        help="which runs --out keeps: those that were not as they must be, or all (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the matrix as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    started, stop = time.monotonic(), threading.Event()
    defects = _choose_defects(arguments, list_defects())
    with ExitStack() as stack:
        directory = _open_directory(arguments.out, stack)
        check = Selfcheck(
            GateBench(directory, stop),
            tuple(loaded.scenario for loaded in load_scenarios(list(SCENARIOS))),
            fast=arguments.fast,
            settings=_read_settings(arguments),
            seed=arguments.seed,
            keep=arguments.keep if arguments.out else "none",
        )
        healthy = _count_healthy(arguments)
        jobs = check.list_jobs(defects, healthy, plain=not (arguments.fast and arguments.defect))
        workers = arguments.jobs or os.cpu_count() or 1
        results = run_jobs(jobs, workers=workers, stop=stop, stream=sys.stderr, describe=check.describe)
        matrix = check.build_matrix(defects, healthy, results)
    matrix = replace(matrix, seconds=time.monotonic() - started)
    write_result(to_json(matrix, indent=1) + "\n" if arguments.json else render_matrix(matrix))
    if matrix.interrupted:
        return EXIT_INTERRUPTED
    return 0 if matrix.passed else EXIT_FAIL


def list_defects() -> tuple[DeclaredDefect, ...]:
    """Ask the embedded engine for its defects. Raises EngineStartError when it does not say."""
    command = (*ReferenceEngine().command, "--list-defects", "--json")
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=LIST_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineStartError(
            f"the embedded engine does not list its defects: {error}", hint="coli-ab-engine --list-defects"
        ) from error
    return parse_defects(done.stdout)


def _choose_defects(
    arguments: argparse.Namespace, declared: Sequence[DeclaredDefect]
) -> tuple[DeclaredDefect, ...]:
    chosen = select_defects(declared, arguments.defect)
    if arguments.sample is None:
        return chosen
    if not (drawn := draw_defects(chosen, arguments.seed, arguments.sample)):
        raise UsageError("--sample: no defect that could be drawn", hint="controls are not drawn")
    return drawn


def _read_settings(arguments: argparse.Namespace) -> Mapping[str, str]:
    return {KERNELS_SETTING: arguments.kernels} if arguments.kernels else {}


def _count_healthy(arguments: argparse.Namespace) -> int:
    if arguments.healthy is not None:
        return int(arguments.healthy)
    if arguments.defect or arguments.sample is not None or arguments.kernels:
        return 0
    return FAST_HEALTHY_RUNS if arguments.fast else HEALTHY_RUNS


def _open_directory(out: Path | None, stack: ExitStack) -> Path:
    """Return ``out``, which must be new or empty, or a directory that is removed at the end."""
    if out is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coli-ab-selfcheck-")))
    return create_run_directory(out, run_id="selfcheck").path


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value
