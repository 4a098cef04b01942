"""Which arithmetic this machine does: the CPU, its instruction sets, and the kernels that NumPy chose here.

Two machines that differ here may round differently, and a near-tie may then fall the other way.
"""

import importlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

CPUINFO = Path("/proc/cpuinfo")
SYSTEM_CPUS = Path("/sys/devices/system/cpu")

# Only instruction sets that compute: the other flags change with kernel updates and mitigations.
X86_SETS = r"abm|amx\w*|avx\w*|bmi\d|f16c|fma\w*|gfni|pni|popcnt|sse\w*|ssse3|xop"
ARM_SETS = r"asimd\w*|bf16|fp|fphp|i8mm|neon|sme(?!p)\w*|sve\w*|vfp\w*"
ARITHMETIC = re.compile(f"{X86_SETS}|{ARM_SETS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor's name; its architecture and arithmetic instruction sets, sorted."""

    model: str
    features: tuple[str, ...]


def count_physical_cores() -> int:
    """Return how many cores this process may run on; two threads of one core count once."""
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len({_read_siblings(number) for number in processors})


def _read_siblings(processor: int) -> str:
    """Return the processors that share a core with this one, as the kernel lists them, or its own number."""
    try:
        return (SYSTEM_CPUS / f"cpu{processor}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(processor)


def read_cpu() -> Cpu:
    """Return this machine's CPU from ``/proc/cpuinfo``, and elsewhere what Python and NumPy know of it."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text, machine=platform.machine()) or _read_portable_cpu()


def parse_cpuinfo(text: str, *, machine: str) -> Cpu | None:
    """Return the CPU that a Linux ``/proc/cpuinfo`` describes, or None when it lists no instruction sets.

    Where the cores differ, every name counts and only the instruction sets that all of them have.
    """
    processors = list(_parse_processors(text))
    flags = [
        set(names.split()) for core in processors if (names := core.get("flags") or core.get("Features"))
    ]
    if not flags:
        return None
    computing = (flag for flag in set.intersection(*flags) if ARITHMETIC.fullmatch(flag))
    models = {_name_processor(core) for core in processors} - {""}
    return Cpu(model=" + ".join(sorted(models)) or machine, features=tuple(sorted({machine, *computing})))


def _parse_processors(text: str) -> Iterator[dict[str, str]]:
    for block in text.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        yield {name.strip(): value.strip() for name, _, value in pairs}


def _name_processor(core: Mapping[str, str]) -> str:
    """Return what tells one processor from another; in a virtual machine the name alone often says little."""
    if "model name" in core and "cpu family" in core:
        numbers = "/".join(core.get(key, "?") for key in ("cpu family", "model", "stepping"))
        return f"{core['model name']}, {numbers}"
    if "CPU part" in core:
        return f"implementer {core.get('CPU implementer', '?')} part {core['CPU part']}"
    return core.get("model name", "")


def _read_portable_cpu() -> Cpu:
    machine = platform.machine() or "unknown"
    return Cpu(model=platform.processor() or machine, features=tuple(sorted({machine, *_read_numpy_simd()})))


def read_kernel_family() -> str:
    """Return NumPy's version, the SIMD sets it uses here, its BLAS library and the core that library chose.

    The core is known only where threadpoolctl is installed; without it the text says ``core unknown``.
    """
    blas = _read_numpy_config().get("Build Dependencies", {}).get("blas", {})
    library = f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip()
    simd = " ".join(_read_numpy_simd()) or "baseline"
    return f"numpy {np.__version__} ({simd}), {library}, core {_read_blas_core() or 'unknown'}"


def _read_numpy_config() -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", np.show_config(mode="dicts"))


def _read_numpy_simd() -> tuple[str, ...]:
    """Return what NumPy found, not what the CPU has: NPY_DISABLE_CPU_FEATURES takes sets away."""
    return tuple(_read_numpy_config().get("SIMD Extensions", {}).get("found", ()))


def _read_blas_core() -> str:
    try:
        libraries = importlib.import_module("threadpoolctl").threadpool_info()
    except ImportError:
        return ""
    cores = {library.get("architecture") for library in libraries if library.get("user_api") == "blas"}
    return " + ".join(sorted(filter(None, cores)))
