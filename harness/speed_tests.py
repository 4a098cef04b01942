"""Several tests of speed at one error rate: Holm's correction with weights, at the end or look by look.

Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 6, 1979:
each test gets its share of the error rate, and what is shown to differ leaves its share to the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.paired_cells import CellPair
from harness.relabelling import Look, Outcome, decide, find_p_value

# Shares are sums of decimal fractions; what is left of 1 by rounding alone is nothing.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SpeedTest:
    """One metric of one contrast.

    Attributes:
        contrast, metric: names.
        pairs: in the order of their blocks.
        share: of the error rate; the shares of all that was planned sum up to 1.
        looks: one at the end, or one after each pair.
    """

    contrast: str
    metric: str
    pairs: tuple[CellPair, ...]
    share: float
    looks: tuple[Look, ...]


@dataclass(frozen=True, slots=True)
class TestResult:
    """What a test came to.

    Attributes:
        differs: the arms are called different.
        p_value: corrected; None where it was looked at more than once.
        pairs: up to the look that decided.
        rate: at which the look that decided errs by itself; None where there was one look.
    """

    differs: bool
    p_value: float | None
    pairs: int
    rate: float | None


def correct_p_values(tests: Sequence[SpeedTest], alpha: float) -> list[TestResult]:
    """Decide tests that were looked at once, in their order."""
    found = [find_p_value(test.looks[-1]) for test in tests]
    order = sorted(range(len(tests)), key=lambda i: found[i] / tests[i].share)
    corrected = [1.0] * len(tests)
    left, highest = 1.0, 0.0
    for i in order:
        highest = max(highest, found[i] / tests[i].share * left)
        corrected[i] = min(highest, 1.0)
        left = max(left - tests[i].share, _ROUNDING)
    return [
        TestResult(differs=p <= alpha, p_value=p, pairs=len(test.pairs), rate=None)
        for p, test in zip(corrected, tests, strict=True)
    ]


def decide_by_looks(tests: Sequence[SpeedTest], alpha: float) -> list[TestResult]:
    """Decide tests that were looked at after each pair, in their order.

    An interval has the level at which its look would err by itself, so that it holds for a run that ends
    there (Jennison and Turnbull, Interim Analyses: the Repeated Confidence Interval Approach, Journal of the
    Royal Statistical Society B 51, 1989).
    """
    outcomes: dict[int, Outcome] = {}
    left = 1.0
    while True:
        open_tests = [i for i in range(len(tests)) if i not in outcomes or not outcomes[i].differs]
        for i in open_tests:
            outcomes[i] = decide(tests[i].looks, alpha * tests[i].share / left)
        newly = [i for i in open_tests if outcomes[i].differs]
        left -= sum(tests[i].share for i in newly)
        if not newly or left <= _ROUNDING:
            break
    return [
        TestResult(differs=outcome.differs, p_value=None, pairs=outcome.pairs, rate=outcome.nominal_rate)
        for outcome in (outcomes[i] for i in range(len(tests)))
    ]
