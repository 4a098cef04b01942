"""Made-up timings of cells, for tests of what is said of speed."""

import numpy as np

from harness.paired_cells import CellPair


def make_pairs(
    count: int,
    *,
    effect: float = 0.0,
    spread: float = 0.02,
    drift: float = 0.0,
    seed: int = 1,
    outliers: tuple[int, ...] = (),
    order: str = "balanced",
) -> tuple[CellPair, ...]:
    """Return pairs in blocks of two; ``effect`` and ``drift`` (over the run) are logarithms.

    ``outliers`` are the positions of cells that took twice as long. The order is A B B A in every block, or
    ``blocked``: all of arm a first.
    """
    generator = np.random.default_rng(seed)
    logs = generator.normal(0.0, spread, 2 * count) + drift * np.arange(2 * count) / (2 * count)
    logs[list(outliers)] += np.log(2)
    pairs = []
    for number in range(count):
        first, second = 2 * number, 2 * number + 1
        a, b = (first, second) if number % 2 == 0 else (second, first)
        if order == "blocked":
            a, b = number, count + number
        pairs.append(
            CellPair(
                block=number // 2,
                position_a=a,
                position_b=b,
                log_a=float(logs[a]),
                log_b=float(logs[b] + effect),
            )
        )
    return tuple(pairs)
