"""What the engine reports about the machine and its own process."""

import os
from pathlib import Path

from engine_bindings.wire.counts import Hardware

GB = 1e9


def read_rss_gb() -> float:
    """Return the resident memory of this process in GB; 0.0 where /proc does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / GB


def read_hardware() -> Hardware:
    """Return the HWINFO line's values."""
    memory = _read_memory_gb()
    return Hardware(
        cores=os.cpu_count() or 1,
        ram_total_gb=memory.get("MemTotal", 0.0),
        ram_available_gb=memory.get("MemAvailable", 0.0),
        cpu=_read_cpu_name(),
    )


def _read_memory_gb() -> dict[str, float]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(value.split()[0]) * 1024 / GB for name, _, value in pairs if value.split()}


def _read_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")
