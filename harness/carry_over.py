"""Does it matter for a cell which arm ran before it? If so, the times tell of their neighbours too."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.plan import Arm, CellSpec
from harness.relabelling import LABELLINGS
from harness.robust import fit_slope, locate, score

_SEED = 19650301
_LEAST_CELLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryOver:
    """How a figure behind a cell of arm b compares with one behind a cell of arm a.

    Attributes:
        ratio: of the figures, behind b / behind a.
        p_value: how rarely cells that were dealt to the two by chance are as far apart.
        cells: that were held against each other.
    """

    ratio: float
    p_value: float
    cells: int


def find_carry_over(
    values: Mapping[CellSpec, float], before: Mapping[CellSpec, Arm], arms: tuple[Arm, Arm]
) -> CarryOver | None:
    """Test cells by the arm that ran before them.

    Args:
        values: logarithms, cleared of arm and prompt, in the order of the run.
        before: the arm of the cell that ran just before.
        arms: a and b; cells behind another arm are left out.

    Returns:
        None with fewer than 4 cells behind either.
    """
    behind = [
        (number, value, before[cell] == arms[1])
        for number, (cell, value) in enumerate(values.items())
        if before.get(cell) in arms
    ]
    is_b = np.array([after_b for _, _, after_b in behind], bool)
    if min(is_b.sum(), (~is_b).sum()) < _LEAST_CELLS:
        return None
    logs = np.array([value for _, value, _ in behind])
    numbers = np.array([number for number, _, _ in behind], np.float64)
    level = logs - fit_slope(logs, numbers) * numbers
    level = level - np.median(level)
    ratio = float(np.exp(locate(level[is_b]) - locate(level[~is_b])))
    return CarryOver(ratio=ratio, p_value=_deal(score(level), is_b), cells=len(level))


def _deal(scores: NDArray[np.float64], is_b: NDArray[np.bool_]) -> float:
    generator = np.random.default_rng(_SEED)
    dealt = generator.permuted(np.tile(is_b, (LABELLINGS, 1)), axis=1)
    centred = scores - scores.mean()
    unit = float(np.abs(centred).sum()) or 1.0
    own = round(abs(float(centred[is_b].sum())) / unit, 9)
    others = np.round(np.abs(dealt @ centred) / unit, 9)
    return float((1 + (others >= own).sum()) / (1 + LABELLINGS))
