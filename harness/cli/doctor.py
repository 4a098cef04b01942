"""``coli-ab doctor``: start an engine on each of its paths and say what it really does, and what is wrong."""

import argparse
import sys

from tabulate import tabulate

from engine_bindings.errors import UsageError
from harness.cli.clock import read_wall_clock
from harness.cli.output import write_note, write_result
from harness.cli.pair_bench import MemorySink
from harness.cli.progress import open_progress
from harness.cli.request import choose_subject_timeouts
from harness.cli.results import compare_records
from harness.cli.subjects import Subject, add_subject_options, read_subjects
from harness.doctor import Diagnosis, build_questions, diagnose
from harness.pairing import select_latest
from harness.plan import DEFAULT_DEPTH, CellSpec, Plan, ProbeMark, build_plan
from harness.probes import Probe
from harness.record_json import to_json
from harness.runner import Runner
from harness.transcript import TurnRecord

EXIT_PROBLEM = 1
EXIT_INVALID = 4
EVIDENCE_CHARACTERS = 70

DESCRIPTION = """\
Starts the engine on each of its paths, without drafts and at the depth K, and asks two short questions. The
table says what its binding claims, what was seen, and on what evidence; a banner is never believed.
"""

EPILOG = """\
exit statuses: 0 all as claimed, 1 something is wrong, 2 the request is wrong, 4 no path of the engine starts.

examples:
  coli-ab doctor
  coli-ab doctor --engine colibri=/opt/colibri/c --model /models/glm --depth 3
  coli-ab doctor --engine http://127.0.0.1:8000/v1
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="say what an engine really does, and what is wrong with it",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_subject_options(parser)
    parser.add_argument(
        "--depth", type=int, default=DEFAULT_DEPTH, metavar="K", help="draft depth (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    subjects = read_subjects(arguments)
    if len(subjects) > 1:
        raise UsageError(
            f"doctor looks at one engine, and {len(subjects)} are named", hint="run it once for each"
        )
    (subject,) = subjects
    able = subject.binding.capabilities
    plan = build_plan(
        build_questions(able),
        engine=subject.engine,
        depth=arguments.depth,
        repetitions=1,
        timeouts=choose_subject_timeouts((subject,)),
        capabilities=able,
    )
    write_note(f"{len(plan.cells)} starts of the engine, {plan.worst_case_tokens} tokens at most\n")
    diagnosis, started = _examine(subject, plan)
    write_result(to_json(diagnosis, indent=2) + "\n" if arguments.json else render_diagnosis(diagnosis))
    if not started:
        return EXIT_INVALID
    return EXIT_PROBLEM if diagnosis.complaints else 0


def _examine(subject: Subject, plan: Plan) -> tuple[Diagnosis, bool]:
    """Ask the questions; return the diagnosis, and whether any engine became ready."""
    sink, progress = MemorySink(), open_progress(plan, sys.stderr)
    launcher = subject.launcher(plan.timeouts, None)
    with progress, launcher:
        runner = Runner(plan, launcher, sink, observer=progress, wall_clock=read_wall_clock)
        records = list(runner.run_plan())
        started = any(record.ready_ns is not None for record in records)
        margins = _ask_for_margins(runner, plan) if started else None
    able = subject.binding.capabilities
    comparison = compare_records(plan, records)
    return diagnose(plan, able, select_latest(records), comparison, margins), started


def _ask_for_margins(runner: Runner, plan: Plan) -> TurnRecord | None:
    """Return a turn of the first arm with the engine's margins switched on; None where there are none."""
    arm, scenario = plan.arms[0], plan.scenarios[0]
    pin = plan.margin_pin_of(arm)
    if pin is None or plan.entry(arm, scenario) is None:
        return None
    talk = scenario.conversations[0]
    spec = CellSpec(
        arm=arm,
        scenario=scenario.name,
        repetition=0,
        probe=ProbeMark(kind="cold", conversation=talk.id, turn=0),
    )
    record = next(runner.run_probes([Probe(spec=spec, scenario=scenario, settings=(pin,))]))
    return record.turns[0] if record.turns else None


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """Return the complaints, then the table of capabilities."""
    lines = []
    if diagnosis.complaints:
        count = len(diagnosis.complaints)
        lines.append(f"{count} {'thing is' if count == 1 else 'things are'} wrong:")
        for item in diagnosis.complaints:
            lines += [f"  {item.place}: {item.problem}", f"    remedy: {item.remedy}"]
    else:
        lines.append("nothing is wrong: the engine does all that its binding claims and that was looked at")
    rows = [
        (row.path, row.capability, "yes" if row.claimed else "no", row.seen, _shorten(row.evidence))
        for row in diagnosis.rows
    ]
    headers = ("path", "capability", "claimed", "seen", "evidence")
    lines += ["", tabulate(rows, headers=headers, disable_numparse=True)]
    lines += ["", *diagnosis.left_out] if diagnosis.left_out else []
    lines.append(f"\n{diagnosis.tokens_decoded} tokens decoded")
    return "\n".join(lines) + "\n"


def _shorten(text: str) -> str:
    return text if len(text) <= EVIDENCE_CHARACTERS else text[: EVIDENCE_CHARACTERS - 1] + "…"
