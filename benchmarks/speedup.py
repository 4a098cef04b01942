"""What speculation is worth by the clock: depth 3 against 0 on the embedded engine, through the harness.

Runs ``coli-ab compare`` and prints the speed-up of each path and class by the client's clock.

    python benchmarks/speedup.py [--scenario NAME] [--depth K] [--repetitions N]
"""

import argparse
import subprocess
import sys
import tempfile

from harness.report import Report

TARGET_RATIO = 1.6


def run_comparison(arguments: argparse.Namespace) -> Report:
    """Run the comparison in a process of its own and return its report."""
    program = "import sys; from harness.cli import main; sys.exit(main(sys.argv[1:]))"
    options = ["--scenario", arguments.scenario, "--depth", str(arguments.depth)]
    options += ["--repetitions", str(arguments.repetitions)]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", program, "compare", "--json", "--out", out, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return Report.from_json(done.stdout, place="the report of coli-ab compare")


def main() -> int:
    """Print the figures; exit 1 when a path is below the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", default="classes")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=3)
    report = run_comparison(parser.parse_args())
    print(report.verdict.sentence)
    for speed in report.comparison.speeds:
        rate, ttft_ms = speed.decode_tokens_per_s or 0, speed.ttft_ms or 0
        print(f"{speed.arm.label:8} decode {rate:8.1f} tokens/s  TTFT {ttft_ms:.1f} ms")
    overall = []
    for row in report.comparison.speedups:
        ratio = row.speedup_ratio
        shown = "not reported" if ratio is None else f"{ratio:.2f}x"
        print(f"{row.on.path:6} {row.category or 'all classes':14} {shown}")
        if row.category is None:
            overall.append(ratio or 0.0)
    print(f"target at least {TARGET_RATIO}x")
    return int(min(overall, default=0.0) < TARGET_RATIO)


if __name__ == "__main__":
    sys.exit(main())
