"""Controls: differences that a gate must not call bugs.

The logits are rounded to a coarse grid first, so that exact ties are common enough to be met; who wins a tie
then depends on what the forward was made of. Each rounding is the same in all arms.
"""

import numpy as np

from engine_bindings.reference.defects.defect import Defect, Seeded
from engine_bindings.reference.rules import FloatArray, Shape

GRID = 0.125  # the step of bfloat16 between 16 and 32
TINY_MARGIN = 1e-4
FAMILY_MARGIN = 1e-3


def break_ties(logits: FloatArray, *, last: bool, margin: float) -> FloatArray:
    """Round rows [n, V] to the grid and lift the first or the last of a row's best tokens by ``margin``."""
    rounded: FloatArray = (np.round(logits / GRID) * GRID).astype(np.float32)
    for row in rounded:
        tied = np.flatnonzero(row == row.max())
        row[tied[-1 if last else 0]] += margin
    return rounded


class NearTie(Seeded):
    """A forward of several rows breaks ties the other way."""

    def seen_logits(self, logits: FloatArray, shape: Shape, /) -> FloatArray:
        """Round, and let the number of rows decide ties."""
        return break_ties(logits, last=shape.rows > 1, margin=TINY_MARGIN)


class ColdWarmTie(Seeded):
    """A turn on a reused prefix breaks ties the other way."""

    def seen_logits(self, logits: FloatArray, shape: Shape, /) -> FloatArray:
        """Round, and let the reuse decide ties."""
        return break_ties(logits, last=shape.cached_tokens > 0, margin=TINY_MARGIN)


class BatchTie(Seeded):
    """A turn with a neighbour in the batch breaks ties the other way."""

    def seen_logits(self, logits: FloatArray, shape: Shape, /) -> FloatArray:
        """Round, and let the number of turns decide ties."""
        return break_ties(logits, last=shape.turns > 1, margin=TINY_MARGIN)


class KernelSwitch(Seeded):
    """Draft-and-verify runs on another kernel family, whose results are about 1e-3 away."""

    def seen_logits(self, logits: FloatArray, shape: Shape, /) -> FloatArray:
        """Round, and let the number of rows decide ties, by a margin that rounding alone does not give."""
        return break_ties(logits, last=shape.rows > 1, margin=FAMILY_MARGIN)


CONTROLS = (
    Defect(
        name="near-tie",
        group="control",
        wrong="nothing: another verify width rounds differently and flips a tie",
        references=("llama.cpp#25618", "Rapid-MLX#3295", "colibri#100"),
        seen_in="speculation on against off; the first difference does not move with the depth, margin 1e-4",
        verdict="near-tie",
        rules=NearTie,
    ),
    Defect(
        name="cold-warm-tie",
        group="control",
        wrong="nothing: a prefix that was computed in another chunking flips a tie",
        references=("vllm#5543",),
        seen_in="a turn on a reused prefix against the same prompt cold, margin 1e-4",
        verdict="near-tie",
        rules=ColdWarmTie,
    ),
    Defect(
        name="batch-tie",
        group="control",
        wrong="nothing: neighbours in the batch flip a tie",
        references=("vllm#51187",),
        seen_in="two slots against one, margin 1e-4",
        verdict="near-tie",
        rules=BatchTie,
    ),
    Defect(
        name="kernel-switch",
        group="control",
        wrong="no fault: draft and verify use other kernel families; report it with its margin",
        references=("colibri#163", "colibri#689"),
        seen_in="speculation on against off, margin about 1e-3",
        verdict="numerics",
        rules=KernelSwitch,
    ),
)
