"""Where an engine and a model come from: the commit of a source tree, the disk of the weights."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

# These commands only read; one that takes longer hangs on a network file system.
TIMEOUT_S = 10.0
WEIGHTS = ("*.safetensors", "*.gguf")


def read_commit(source: Path) -> str | None:
    """Return the commit of the tree that ``source`` lies in, with ``dirty`` behind it when files changed."""
    folder = source if source.is_dir() else source.parent
    commit = _run(["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"])
    if commit is None:
        return None
    # Without the option it renews the index under a lock, which stops another git beside it, or for good
    # when it is killed.
    status = ("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    changed = _run(["git", "-C", str(folder), *status])
    return f"{commit.strip()} dirty" if changed and changed.strip() else commit.strip()


def read_storage(path: Path) -> str | None:
    """Return the file system and the device that a path lies on, for example ``ext4 on /dev/nvme0n1p2``."""
    resolved = path.resolve()
    parts = [p for p in psutil.disk_partitions(all=True) if resolved.is_relative_to(p.mountpoint)]
    if not parts:
        return None
    best = max(parts, key=lambda part: len(part.mountpoint))
    return f"{best.fstype} on {best.device}"


def read_cached_ratio(model: Path) -> float | None:
    """Return the share of a model's weights that is in the page cache, 0 to 1; needs ``fincore``."""
    files = [model] if model.is_file() else [path for name in WEIGHTS for path in sorted(model.glob(name))]
    told = _run(["fincore", "--json", "--bytes", *map(str, files)]) if files else None
    if told is None:
        return None
    try:
        rows = json.loads(told)["fincore"]
        cached, size = _sum(rows, "res"), _sum(rows, "size")
    except (ValueError, KeyError, TypeError):
        return None
    return cached / size if size else None


def _sum(rows: Iterable[dict[str, int | str]], key: str) -> int:
    return sum(int(row[key]) for row in rows)


def _run(words: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            words, capture_output=True, check=False, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
