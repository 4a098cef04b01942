"""``coli-ab minimize``: shrink a failing case of a run to the smallest that still fails in the same way."""

import argparse
import sys
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

from engine_bindings.errors import StorageError, UsageError
from harness.cli.output import write_result
from harness.cli.pair_bench import PairBench
from harness.cli.results import compare_records
from harness.failing import Failing, find_failing
from harness.minimize import Case, Minimizer, Step
from harness.plan import Plan
from harness.rundir import read_run, write_whole
from harness.scenario import Scenario
from harness.scenario_format import MAX_NAME
from harness.scenario_text import name_grammar_file, render_scenario

EXIT_INCONCLUSIVE = 3
EXIT_INTERRUPTED = 130
DEFAULT_MAX_RUNS = 300

DESCRIPTION = """\
Runs the two arms of a failing contrast again on ever smaller scenarios: fewer conversations and turns,
lower caps, shorter texts, fewer settings, a smaller depth. Keeps the smallest that still fails in the same
way and writes it as a scenario file: the same kind of contrast, the same first differing field and the same
class of verdict; or the same failure, or the same rule that an arm breaks alone. Tokens are counted for each
arm, as the sum of the caps of its turns.
"""

EPILOG = """\
exit statuses: 0 a case was written, 2 the request is wrong, 3 the failure did not show again, 130 interrupted
(the best case so far is written).

examples:
  coli-ab minimize runs/RUN
  coli-ab minimize runs/RUN --pair "speculation serve" --budget 2000
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "minimize",
        help="shrink a failing case of a run",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="directory of the run")
    parser.add_argument(
        "--pair",
        metavar="P",
        help="the contrast, by its name in the report, or by its arms: chat/3=serve/3"
        " (default: the first failing one that the verdict names)",
    )
    parser.add_argument(
        "--max-runs",
        type=int,
        default=DEFAULT_MAX_RUNS,
        metavar="N",
        help="cases to try at most, each on both arms (default: %(default)s)",
    )
    parser.add_argument(
        "--budget", type=int, metavar="TOKENS", help="tokens to decode at most, over all tries"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="scenario file to write (default: RUN/minimal-<contrast>.toml)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    contents = read_run(arguments.run_directory)
    comparison = compare_records(contents.plan, contents.records)
    found = find_failing(contents.plan, contents.records, comparison)
    if not found and any(row.test.differs for row in comparison.distributions):
        raise UsageError(
            "only the distribution of sampled answers differs in this run",
            hint="it shows in many draws and in no single answer, so there is no smaller case",
        )
    failing = _choose(contents.plan, found, arguments.pair)
    bench = PairBench(contents, failing)
    for line in bench.warnings():
        sys.stderr.write(f"coli-ab: {line}\n")
    name = failing.contrast.name.replace(" ", "-").replace("/", "-")
    out = arguments.out or arguments.run_directory / f"minimal-{name}.toml"
    if not out.parent.is_dir() or out.is_dir():
        raise UsageError(
            f"--out {out}: {'a directory' if out.is_dir() else 'its directory is not there'}",
            hint="name a file in a directory that is there",
        )
    sys.stderr.write(f"{failing.contrast.name}: {_describe(failing)}\n")
    minimizer = Minimizer(bench.whole_case(), failing)
    limits = _Limits(runs=arguments.max_runs, tokens=arguments.budget)
    interrupted = _search(minimizer, bench, limits, out)
    if minimizer.best is None:
        write_result(f"The failure did not show again in {bench.runs} runs of its arms.\n")
        return EXIT_INTERRUPTED if interrupted else EXIT_INCONCLUSIVE
    write_result(_conclude(minimizer, bench, out))
    return EXIT_INTERRUPTED if interrupted else 0


def _choose(plan: Plan, failing: tuple[Failing, ...], pair: str | None) -> Failing:
    if not failing:
        raise UsageError("no contrast of this run fails", hint="there is nothing to minimize")
    if pair is None:
        live = (item for item in failing if not plan.is_recorded(item.contrast.a))
        return next(live, failing[0])
    for item in failing:
        contrast = item.contrast
        if pair in (contrast.name, f"{contrast.a.label}={contrast.b.label}"):
            return item
    names = ", ".join(repr(item.contrast.name) for item in failing)
    raise UsageError(f"--pair {pair}: no contrast of that name fails", hint=f"those that fail: {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """What a search may cost."""

    runs: int
    tokens: int | None

    def is_over(self, bench: PairBench) -> bool:
        """Say whether it has cost that much."""
        return bench.runs >= self.runs or (self.tokens is not None and bench.tokens >= self.tokens)


def _search(minimizer: Minimizer, bench: PairBench, limits: _Limits, out: Path) -> bool:
    """Search for a smaller case and write each that is found; return True when interrupted."""
    search = minimizer.search()
    try:
        step = next(search, None)
        while step is not None and not limits.is_over(bench):
            result = bench.try_case(step.case)
            # The case counts as found only once the search has taken it.
            following = _send(search, result)
            if result is not None:
                _keep(minimizer, bench, step, out)
            step = following
        if step is not None:
            sys.stderr.write("the limit is reached: this is the smallest case so far\n")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: this is the smallest case so far\n")
        return True
    return False


def _send(search: Generator[Step, Failing | None, None], result: Failing | None) -> Step | None:
    try:
        return search.send(result)
    except StopIteration:
        return None


def _keep(minimizer: Minimizer, bench: PairBench, step: Step, out: Path) -> None:
    scenario = _name_scenario(step.case, minimizer.failing)
    files = {}
    if scenario.grammar is not None:
        # To the byte: a newline that is changed on the way would be another grammar.
        files[out.with_name(name_grammar_file(scenario))] = scenario.grammar.text
    files[out] = render_scenario(scenario)
    for path, text in files.items():
        try:
            write_whole(path, text.encode())
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror}",
                hint="name another file with --out, and run it again",
            ) from error
    sys.stderr.write(f"[{bench.runs} runs, {bench.tokens} tokens] {step.name}: {_measure(step.case)}\n")
    sys.stderr.flush()


def _name_scenario(case: Case, failing: Failing) -> Scenario:
    name = case.scenario.name
    return replace(
        case.scenario,
        name=name if name.startswith("minimal-") else f"minimal-{name}"[:MAX_NAME],
        title=f"The smallest case of {name} in which {failing.contrast.name} fails",
        description=_describe(failing),
    )


def _measure(case: Case) -> str:
    turns, tokens = case.scenario.turn_count, case.scenario.worst_case_tokens
    counts = f"{turns} {_plural('turn', turns)}, at most {tokens} {_plural('token', tokens)}"
    return f"{counts} for each arm, {case.prompt_bytes} bytes of text, depth {case.depth}"


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"


def _describe(failing: Failing) -> str:
    place = f"{failing.scenario}, {failing.conversation}, turn {failing.turn + 1}"
    if failing.difference is None:
        return f"{place}: {failing.symptom.removeprefix('failure:')}: {failing.message}"
    difference = failing.difference
    a, b = failing.contrast.a.label, failing.contrast.b.label
    return f"{place}: {difference.field}: {a} gives {difference.a}, {b} gives {difference.b}"


def _conclude(minimizer: Minimizer, bench: PairBench, out: Path) -> str:
    assert minimizer.best is not None, "there is a best case when there is something to say"  # noqa: S101
    return (
        f"{_measure(minimizer.best)}, found in {bench.runs} runs and {bench.tokens} tokens\n"
        f"{_describe(minimizer.failing)}\n"
        f"scenario file: {out}\n"
        f"to see it:     {bench.command(minimizer.best, out)}\n"
    )
