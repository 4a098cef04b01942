"""What is settled about speed before the first cell runs, so that nothing of it can follow the figures."""

from dataclasses import dataclass

DEFAULT_PAIRS = 24
# Of 1,000 runs of equal arms at most ten may raise an alarm. A test that erred at just that rate would break
# the promise in every second thousand.
DEFAULT_ALPHA = 0.007
DEFAULT_BOUND_PERCENT = 1.0
DEFAULT_SEED = 0
# One run against another of the same engine, as a standard deviation; what --dry-run reckons with until a run
# has shown its own.
DEFAULT_SPREAD_PERCENT = 2.4

WARM_UP = (
    "repetition 0 of every cell is compared and not timed: it leaves the page cache warm for all arms alike"
)
FIXED = "all pairs are run, then each metric is tested once"
SEQUENTIAL = (
    "after each pair every metric is tested; the run ends when the decode speeds of every"
    " contrast test as different, else with the last pair"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPlan:
    """How speed is measured and judged.

    Attributes:
        contrasts: names of the contrasts that are judged.
        arms: labels of the arms that are timed.
        pairs: timed pairs of cells of each contrast, at most.
        repetitions: timed repetitions of each scenario, numbered from 1.
        alpha: how often equal arms may be called different, over all contrasts and metrics together.
        bound_percent: how much slower is let pass even when it is shown.
        sequential: the run may end early.
        seed: of the order.
        warm_up, stopping_rule: in words.
        digest: SHA-256 of prompts, order and all of the above; see ``harness.schedule.digest_plan``.
    """

    contrasts: tuple[str, ...]
    arms: tuple[str, ...]
    pairs: int
    repetitions: int
    alpha: float = DEFAULT_ALPHA
    bound_percent: float = DEFAULT_BOUND_PERCENT
    sequential: bool = False
    seed: int = DEFAULT_SEED
    warm_up: str = WARM_UP
    stopping_rule: str = FIXED
    digest: str = ""
