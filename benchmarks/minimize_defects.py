"""Finds each seeded defect with ``coli-ab compare`` and shrinks it with ``coli-ab minimize``.

    python benchmarks/minimize_defects.py [NAME ...]

For each defect: the verdict class, turns and tokens of the smallest case (tokens for each arm, the sum of its
caps), runs and tokens of the search, seconds, and whether the command that ``minimize`` prints gives the same
class again; or why there is no case. Ends non-zero when a case is over the limits or is not shown again.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from harness.cli.scenario_files import load_scenario
from harness.selfcheck.places import list_places

COLI_AB = (sys.executable, "-c", "import sys; from harness.cli import main; sys.exit(main(sys.argv[1:]))")
MAX_TURNS, MAX_TOKENS = 3, 40
# A loop without an end is waited for in vain; the packaged model answers within a tenth of a second.
LIMITS = ("--progress-timeout", "5", "--first-output-timeout", "15")
CHEAPEST = ("--repetitions", "1", "--until", "fault")
# Nothing but a second run of an arm shows whether its seed decides a sampled answer.
SAMPLED = "sampled"
SAMPLED_REPETITIONS = "2"

# A typed conversation is carried on by its answers; this scenario has a smaller case.
SMALLER_PLACES = {"poisoned-prefix": ("caps-and-stops",)}
# These lower the acceptance on both paths alike: only another build shows it.
AGAINST_A_BUILD = frozenset({"replay-base-minus-one", "draft-over-trim", "draft-row-missing"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one defect. ``remark`` says why there is no case, or what is wrong with it."""

    name: str
    verdict_class: str = ""
    turns: int | None = None
    tokens: int | None = None
    runs: str = ""
    spent: str = ""
    seconds: float = 0.0
    remark: str = ""


def main() -> int:
    """Run the defects that are named, or all; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="defects (default: all)")
    names = parser.parse_args().names or list_defects()
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="minimize-") as directory:
            rows.append(measure(name, Path(directory)))
        sys.stderr.write(f"{rows[-1]}\n")
    table = [
        (r.name, r.verdict_class, r.turns, r.tokens, r.runs, r.spent, f"{r.seconds:.0f}", r.remark)
        for r in rows
    ]
    headers = ("defect", "class", "turns", "tokens", "runs", "spent", "seconds", "remark")
    sys.stdout.write(tabulate(table, headers=headers, tablefmt="github") + "\n")
    return 1 if any(row.remark for row in rows) else 0


def list_defects() -> list[str]:
    """Return the names of all defects that the engine can be given. A control is no failure."""
    listing = (sys.executable, "-m", "engine_bindings.reference.host", "--list-defects", "--json")
    found = json.loads(subprocess.run(listing, check=True, capture_output=True).stdout)
    return [item["name"] for item in found if item["available"] and item["group"] != "control"]


def measure(name: str, directory: Path) -> Row:
    """Find a defect, shrink it, and run what ``minimize`` prints."""
    run = directory / "run"
    places = SMALLER_PLACES.get(name) or list_places(name)
    setting = f"REF_DEFECT={name}"
    subject = ("--set", setting)
    if name in AGAINST_A_BUILD:
        subject = ("--engine", "good=reference", "--engine", "bad=reference", "--set", f"bad:{setting}")
    compare = ("compare", *subject, "--scenario", *places, *CHEAPEST, *LIMITS, "--out", str(run))
    call((*compare, "--repetitions", SAMPLED_REPETITIONS) if SAMPLED in places else compare)
    seen = read_class(run)
    started = time.monotonic()
    done = call(("minimize", str(run)))
    seconds = time.monotonic() - started
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        return Row(name=name, verdict_class=seen, seconds=seconds, remark=said[-1] if said else "no output")
    return check(name, directory, seen, done.stdout, seconds)


def check(name: str, directory: Path, seen: str, said: str, seconds: float) -> Row:
    """Read the smallest case and show it again."""
    file, command = (
        re.search(rf"^{word}:\s+(.*)$", said, re.MULTILINE) for word in ("scenario file", "to see it")
    )
    counts = re.search(r"found in (\d+) runs and (\d+) tokens", said)
    assert file and command and counts, said  # noqa: PT018 - all three are printed
    scenario = load_scenario(Path(file[1])).scenario
    turns, tokens = scenario.turn_count, scenario.worst_case_tokens
    again = directory / "again"
    call((*shlex.split(command[1])[1:], *LIMITS, "--out", str(again)))
    remarks = []
    if (shown := read_class(again)) != seen:
        remarks.append(f"shown again as {shown}")
    if turns > MAX_TURNS or tokens > MAX_TOKENS:
        remarks.append(f"over {MAX_TURNS} turns or {MAX_TOKENS} tokens")
    return Row(
        name=name,
        verdict_class=seen,
        turns=turns,
        tokens=tokens,
        runs=counts[1],
        spent=counts[2],
        seconds=seconds,
        remark="; ".join(remarks),
    )


def call(arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run ``coli-ab`` and return what it said."""
    return subprocess.run((*COLI_AB, *arguments), capture_output=True, text=True, check=False)


def read_class(run: Path) -> str:
    """Return the class of a run's verdict."""
    return str(json.loads((run / "verdict.json").read_text(encoding="utf-8"))["verdict_class"])


if __name__ == "__main__":
    sys.exit(main())
