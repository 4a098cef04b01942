"""Reads the state of the machine around a cell: clock policy, heat, memory, and who else keeps it busy.

Nothing here needs root; what a machine does not show is None.
"""

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from harness.transcript import Conditions

CPUS = Path("/sys/devices/system/cpu")
# Sensors that sit on the processor, by their driver.
CPU_SENSORS = ("k10temp", "zenpower", "coretemp", "cpu_thermal", "acpitz")


def read_conditions(cpus: Path = CPUS) -> Conditions:
    """Return the state of the machine now; ``cpus`` is the directory that Linux describes them in."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return Conditions(
        clock_s=time.monotonic(),
        busy_cpu_s=_read_busy_s(),
        own_cpu_s=_read_own_s(),
        load_average=os.getloadavg()[0],
        governors=tuple(sorted(set(_read_each(cpus, "cpu*/cpufreq/scaling_governor")))),
        boost=_read_boost(cpus),
        throttle_events=_sum_counts(_read_each(cpus, "cpu*/thermal_throttle/package_throttle_count")),
        temperature_c=_read_temperature_c(),
        memory_available_bytes=memory.available,
        swap_used_bytes=swap.used,
    )


def _read_busy_s() -> float:
    """Return the seconds that all processors together were busy since the machine started."""
    times = psutil.cpu_times()
    # Guest time is counted in user time already, and waiting for a disk is not being busy.
    idle = ("idle", "iowait", "guest", "guest_nice")
    return float(sum(value for name, value in times._asdict().items() if name not in idle))


def _read_own_s() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _read_each(directory: Path, pattern: str) -> list[str]:
    texts = []
    for path in sorted(directory.glob(pattern)):
        try:
            texts.append(path.read_text().strip())
        except (OSError, UnicodeDecodeError):
            continue
    return texts


def _read_boost(cpus: Path) -> bool | None:
    for name, on in (("cpufreq/boost", "1"), ("intel_pstate/no_turbo", "0")):
        if texts := _read_each(cpus, name):
            return texts[0] == on
    return None


def _sum_counts(texts: Iterable[str]) -> int | None:
    counts = [int(text) for text in texts if text.isdigit()]
    return sum(counts) if counts else None


def _read_temperature_c() -> float | None:
    """Return the hottest sensor of the processor, in degrees Celsius."""
    read = getattr(psutil, "sensors_temperatures", None)
    sensors = read() if read is not None else {}
    heats = [entry.current for name in CPU_SENSORS for entry in sensors.get(name, ())]
    return max(heats) if heats else None
