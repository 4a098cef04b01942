"""Kills a run at random moments, goes on with it, and holds its report against an uninterrupted one's.

    python -m benchmarks.interruptions --kills 20

Prints how many cells each killed run had measured, and whether the report is the same apart from times. Exits
1 when one is not.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

START = "import sys; from harness.cli import main; sys.exit(main())"
# Without stop strings: how many tokens run on behind one depends on when the engine hears of it.
SCENARIOS = ("quick",)
# A moment may lie before a run began or behind its end; such a try shows nothing.
MAX_TRIES = 4
# What is a time or depends on one; everything else of a report must be the same.
TIMES = {"speeds", "speedups", "performance", "environment"}


def build_command(*words: str) -> list[str]:
    """Return the command line of coli-ab, whether or not it is installed."""
    return [sys.executable, "-c", START, *words]


def start_run(out: Path) -> "subprocess.Popen[bytes]":
    """Start a comparison in a session of its own, so that it can be killed whole."""
    words = ("compare", "--scenario", *SCENARIOS, "--out", str(out), "--json")
    return subprocess.Popen(
        build_command(*words),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def read_report(run: Path) -> dict[str, Any]:
    """Return a run's report without times and without the name of its directory."""
    report: dict[str, Any] = json.loads((run / "report.json").read_bytes())
    comparison = {name: value for name, value in report["comparison"].items() if name not in TIMES}
    return {name: value for name, value in report.items() if name not in TIMES} | {"comparison": comparison}


def kill_and_resume(out: Path, after_s: float) -> tuple[int, int] | None:
    """Kill a run after some time and go on with it; return the cells it had, and its exit status.

    None where there was nothing to interrupt: the run had not begun, or was over.
    """
    process = start_run(out)
    time.sleep(after_s)
    if process.poll() is not None:
        return None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    cells = out / "cells.jsonl"
    measured = cells.read_bytes().count(b"\n") if cells.exists() else 0
    if not (out / "environment.json").exists():
        return None
    words = ("compare", "--resume", str(out), "--json")
    done = subprocess.run(
        build_command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return measured, done.returncode


def is_same_again(out: Path, after_s: float, whole: Path, status: int) -> bool | None:
    """Kill and resume one run, print what came of it, and say whether its report is the whole one's.

    None where nothing was interrupted.
    """
    told, done = f"{out.name}: after {after_s:5.2f} s", kill_and_resume(out, after_s)
    if done is None:
        print(f"{told}, nothing to interrupt: not counted", flush=True)
        return None
    measured, again = done
    same = again == status and read_report(out) == read_report(whole)
    verdict = "the same report" if same else f"ANOTHER REPORT, exit status {again}"
    print(f"{told}, {measured} cells on disk: {verdict}", flush=True)
    return same


def main() -> int:
    """Run the benchmark and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)  # noqa: S311 - moments, no secrets
    outcomes: list[bool] = []
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        began = time.monotonic()
        status = start_run(whole).wait()
        span_s = time.monotonic() - began
        print(f"uninterrupted: exit status {status}, {span_s:.1f} s", flush=True)
        for number in range(1, MAX_TRIES * arguments.kills + 1):
            after_s = chance.uniform(span_s / 8, span_s)
            same = is_same_again(Path(scratch) / f"killed-{number}", after_s, whole, status)
            outcomes += [] if same is None else [same]
            if len(outcomes) == arguments.kills:
                break
    print(f"{sum(outcomes)} of {len(outcomes)} interrupted runs as if never interrupted")
    return 0 if len(outcomes) == arguments.kills and all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
