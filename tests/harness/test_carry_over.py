"""Whether a cell feels which arm ran before it."""

from itertools import pairwise

import numpy as np
import pytest

from harness.carry_over import find_carry_over
from harness.plan import Arm, CellSpec

A, B, OTHER = Arm(path="serve", depth=0), Arm(path="serve", depth=3), Arm(path="chat", depth=0)


def run(after_b: float, cells: int = 24) -> tuple[dict[CellSpec, float], dict[CellSpec, Arm]]:
    noise = np.random.default_rng(1).normal(0, 0.01, cells)
    order = [CellSpec(arm=(A, B, B, A)[n % 4], scenario="s", repetition=n) for n in range(cells)]
    before = {spec: earlier.arm for earlier, spec in pairwise(order)}
    values = {
        spec: float(noise[n]) + after_b * (before.get(spec) == B) + 0.01 * n for n, spec in enumerate(order)
    }
    return values, before


def test_a_slow_down_behind_one_arm_is_found_beside_a_drift():
    values, before = run(0.05)
    found = find_carry_over(values, before, (A, B))
    assert found is not None
    assert found.p_value < 0.001
    assert found.ratio == pytest.approx(1.05, abs=0.01)
    assert found.cells == 23


def test_without_one_none_is_found():
    found = find_carry_over(*run(0.0), (A, B))
    assert found is not None
    assert found.p_value > 0.05


def test_too_few_cells_and_other_neighbours_show_nothing():
    assert find_carry_over(*run(0.05, cells=6), (A, B)) is None
    values, before = run(0.05)
    assert find_carry_over(values, dict.fromkeys(before, OTHER), (A, B)) is None
