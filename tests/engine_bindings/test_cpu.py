import sys
from types import SimpleNamespace

import numpy as np
import pytest

from engine_bindings import cpu
from engine_bindings.cpu import parse_cpuinfo, read_cpu, read_kernel_family

X86 = """processor\t: 0
cpu family\t: 6
model\t\t: 207
model name\t: A Processor
stepping\t: 2
flags\t\t: fpu sse2 ht avx2 fma smep avx512f ibrs md_clear

processor\t: 1
cpu family\t: 6
model\t\t: 207
model name\t: A Processor
stepping\t: 2
flags\t\t: fpu sse2 ht avx2 fma smep ibrs md_clear
"""

ARM = """processor\t: 0
Features\t: fp asimd evtstrm aes fphp asimddp sve smei16i32
CPU implementer\t: 0x41
CPU part\t: 0xd0c

processor\t: 1
Features\t: fp asimd evtstrm aes fphp asimddp
CPU implementer\t: 0x41
CPU part\t: 0xd05

Hardware\t: a board
"""


def test_x86_keeps_the_arithmetic_sets_that_every_core_has() -> None:
    found = parse_cpuinfo(X86, machine="x86_64")
    assert found is not None
    assert found.model == "A Processor, 6/207/2"
    assert found.features == ("avx2", "fma", "sse2", "x86_64")


def test_arm_names_every_kind_of_core() -> None:
    found = parse_cpuinfo(ARM, machine="aarch64")
    assert found is not None
    assert found.model == "implementer 0x41 part 0xd05 + implementer 0x41 part 0xd0c"
    assert found.features == ("aarch64", "asimd", "asimddp", "fp", "fphp")


@pytest.mark.parametrize("text", ["", "\n\n\n", "processor: 0\nmodel name: x\n", "no colon at all"])
def test_a_text_without_instruction_sets_is_not_taken(text: str) -> None:
    assert parse_cpuinfo(text, machine="riscv64") is None


def test_without_cpuinfo_python_and_numpy_are_asked(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "missing")
    found = read_cpu()
    assert found.model
    assert found.features


def test_this_machine_is_described_the_same_way_twice() -> None:
    assert read_cpu() == read_cpu()
    assert read_kernel_family() == read_kernel_family()
    assert np.__version__ in read_kernel_family()


def test_the_core_is_that_of_the_blas_library(monkeypatch) -> None:
    libraries = [{"user_api": "openmp"}, {"user_api": "blas", "architecture": "Zen"}, {"user_api": "blas"}]
    fake = SimpleNamespace(threadpool_info=lambda: libraries)
    monkeypatch.setitem(sys.modules, "threadpoolctl", fake)
    assert read_kernel_family().endswith(", core Zen")


def test_without_threadpoolctl_the_core_is_unknown(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert read_kernel_family().endswith(", core unknown")


def test_an_unknown_numpy_build_is_still_described(monkeypatch) -> None:
    monkeypatch.setattr(np, "show_config", lambda mode: {})
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert read_kernel_family() == f"numpy {np.__version__} (baseline), unknown BLAS, core unknown"
