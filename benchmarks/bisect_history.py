"""Finds the version that brought a defect, over a made-up history of 16 engine versions, with git bisect.

    python -m benchmarks.bisect_history --defect wrong-logits-row

Each version is a commit of a small repository whose engine is a script around the embedded one. Prints the
versions that were tried and the one that was found; exits 1 when it is not the one that brought the defect.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = 16
SOURCES = Path(__file__).parents[1]
COMPARE = "import sys; from harness.cli import main; sys.exit(main())"
ENGINE = """\
#!{python}
import os, sys
{defect}
os.environ["PYTHONPATH"] = {sources!r}
os.execv(sys.executable, [sys.executable, "-m", "engine_bindings.reference.host"])
# version {version}
"""


def run_git(repository: Path, *words: str) -> str:
    """Run git in the repository and return what it prints."""
    identity = ("-c", "user.name=history", "-c", "user.email=history@example.invalid")
    done = subprocess.run(
        ["git", *identity, "-C", str(repository), *words], check=False, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def write_history(repository: Path, defect: str, first_bad: int) -> list[str]:
    """Commit the versions 1 to 16 and return their commits; those from ``first_bad`` on have the defect."""
    run_git(repository, "init", "--quiet")
    engine = repository / "engine"
    commits = []
    for version in range(1, VERSIONS + 1):
        line = f'os.environ["REF_DEFECT"] = "{defect}"' if version >= first_bad else ""
        engine.write_text(
            ENGINE.format(python=sys.executable, defect=line, sources=str(SOURCES), version=version)
        )
        engine.chmod(0o755)
        run_git(repository, "add", "engine")
        run_git(repository, "commit", "--quiet", "-m", f"version {version}")
        commits.append(run_git(repository, "rev-parse", "HEAD").strip())
    return commits


def main() -> int:
    """Run the search and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--defect", default="wrong-logits-row", help="default: %(default)s")
    parser.add_argument("--scenario", default="quick", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    first_bad = random.Random(arguments.seed).randint(2, VERSIONS)  # noqa: S311 - a choice, no secret
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch) / "engine-history"
        repository.mkdir()
        commits = write_history(repository, arguments.defect, first_bad)
        run_git(repository, "bisect", "start", commits[-1], commits[0])
        words = (
            "compare",
            "--bisect",
            "--until",
            "fault",
            "--repetitions",
            "1",
            "--engine",
            "reference=./engine",
        )
        told = run_git(
            repository, "bisect", "run", "env", f"PYTHONPATH={SOURCES}",
            sys.executable, "-c", COMPARE, *words, "--scenario", arguments.scenario,
        )  # fmt: skip
    found = re.search(r"^([0-9a-f]{40}) is the first bad commit", told, re.MULTILINE)
    tried = len(re.findall(r"^run directory: ", told, re.MULTILINE))
    version = commits.index(found[1]) + 1 if found else None
    print(f"{arguments.defect} came with version {first_bad} of {VERSIONS}")
    print(f"found: version {version}, after {tried} comparisons")
    return 0 if version == first_bad else 1


if __name__ == "__main__":
    sys.exit(main())
