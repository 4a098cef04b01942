"""What the harness costs: wall time of a cell against the same bytes piped to the engine with no harness.

Both sides start the engine in the same way on a private model directory and wait for its exit. The bare side
writes each request and reads blindly up to the end of its answer: no events, no records, no limits. The two
alternate in one run.

    python benchmarks/harness_overhead.py [--scenario NAME] [--rounds N]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine_bindings.binding import build_environment
from engine_bindings.model_directory import private_model_directory
from engine_bindings.registry import find_binding
from harness.cli.progress import PlainProgress
from harness.cli.scenario_files import load_scenarios
from harness.drivers.launcher import EngineLauncher
from harness.plan import Arm, CellSpec, Plan, Timeouts, build_plan
from harness.rundir import RunDirectory
from harness.runner import Runner
from harness.scenario import Scenario
from harness.transcript import CellRecord

TARGET_PERCENT = 2.0


def encode_requests(record: CellRecord, scenario: Scenario) -> list[tuple[bytes, bytes]]:
    """Return what was sent for each turn of a cell, and what its answer ends with."""
    caps = {(c.id, i): turn.max_tokens for c in scenario.conversations for i, turn in enumerate(c.turns)}
    frames = []
    for number, turn in enumerate(record.turns, start=1):
        cap, size = caps[turn.conversation, turn.turn], len(turn.prompt)
        if record.spec.arm.path == "chat":
            header, ending = f"\x02PROMPT {size} {cap} 0 1\n", b"\x01\x01END\x01\x01\nSTAT "
        else:
            header, ending = f"SUBMIT {number} 0 {size} {cap} 0 1\n", b"\nDONE %d " % number
        frames.append((header.encode() + turn.prompt + b"\n", ending))
    return frames


def time_bare(
    launcher: EngineLauncher, arm: Arm, scenario: Scenario, requests: list[tuple[bytes, bytes]]
) -> float:
    """Return the seconds from the start of the engine to its exit, with nothing but pipes between."""
    started = time.perf_counter()
    launch = launcher.launch(arm, scenario)
    with private_model_directory(launcher.model_dir) as private:
        environment = build_environment(os.environ, launch.pins) | {launch.model_variable: str(private)}
        process = subprocess.Popen(
            launch.argv,
            env=environment,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        for request, ending in requests:
            process.stdin.write(request)
            answer = b""
            while not answer.endswith(b"\n") or ending not in answer[-200:]:
                answer += os.read(process.stdout.fileno(), 1 << 16)
        process.communicate()
    return time.perf_counter() - started


def time_harness(plan: Plan, launcher: EngineLauncher, directory: Path) -> tuple[float, CellRecord]:
    """Return the seconds for one whole cell with its record on disk."""
    sink = RunDirectory(directory)
    progress = PlainProgress(plan, open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the process
    runner = Runner(plan, launcher, sink, observer=progress, wall_clock=lambda: "")
    started = time.perf_counter()
    record = next(runner.run_plan())
    return time.perf_counter() - started, record


def measure_arm(arm: Arm, scenario: Scenario, rounds: int) -> float:
    """Print and return the overhead of one arm in percent: the median over paired rounds."""
    binding = find_binding("reference")
    model_dir = binding.default_model_dir()
    assert model_dir is not None
    plan = build_plan([scenario])
    plan = Plan(
        engine=plan.engine,
        depth=plan.depth,
        repetitions=1,
        arms=(arm,),
        contrasts=(),
        scenarios=plan.scenarios,
        cells=(CellSpec(arm=arm, scenario=scenario.name, repetition=0),),
        timeouts=Timeouts(),
    )
    bare, with_harness = [], []
    launcher = EngineLauncher(binding=binding, model_dir=model_dir, timeouts=Timeouts())
    with launcher, tempfile.TemporaryDirectory() as scratch:
        _, record = time_harness(plan, launcher, Path(scratch))
        assert record.failure is None, record.failure
        requests = encode_requests(record, scenario)
        for number in range(rounds):
            order = (True, False) if number % 2 else (False, True)
            for harness in order:
                if harness:
                    with_harness.append(time_harness(plan, launcher, Path(scratch))[0])
                else:
                    bare.append(time_bare(launcher, arm, scenario, requests))
    ratios = [slow / fast for slow, fast in zip(with_harness, bare, strict=True)]
    overhead = 100 * (statistics.median(ratios) - 1)
    best = 100 * (min(with_harness) / min(bare) - 1)
    tokens = sum(turn.emitted_tokens or 0 for turn in record.turns)
    print(
        f"{arm.label:8} {tokens:5} tokens  bare {statistics.median(bare):.3f} s"
        f"  harness {statistics.median(with_harness):.3f} s  overhead {overhead:+.2f} %"
        f" (fastest against fastest {best:+.2f} %)",
        flush=True,
    )
    return overhead


def main() -> int:
    """Print the overhead of every arm; exit 1 when their median is over the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", default="classes")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    (loaded,) = load_scenarios([arguments.scenario])
    arms = build_plan([loaded.scenario]).arms
    overheads = [measure_arm(arm, loaded.scenario, arguments.rounds) for arm in arms]
    print(f"median over the arms {statistics.median(overheads):+.2f} %, target at most {TARGET_PERCENT} %")
    return int(statistics.median(overheads) > TARGET_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
