"""The options of ``compare`` that have speed judged, and what they add to a plan."""

import argparse

from harness.plan import Plan
from harness.schedule import add_timed_cells
from harness.speed_plan import DEFAULT_ALPHA, DEFAULT_BOUND_PERCENT, DEFAULT_PAIRS, DEFAULT_SEED

MAX_PAIRS = 1_000
MAX_SEED = 2**32 - 1


def add_speed_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; any of them has speed judged."""
    group = parser.add_argument_group(
        "speed",
        "any of these adds timed cells and has the speed of two builds judged, or of two depths; see"
        " docs/performance.md",
    )
    group.add_argument(
        "--performance", action="store_true", help="judge speed with the defaults of the options below"
    )
    group.add_argument(
        "--pairs",
        type=_whole,
        metavar="N",
        help=f"timed pairs of cells of each contrast, at least (default: {DEFAULT_PAIRS})",
    )
    group.add_argument(
        "--sequential",
        action="store_true",
        help="look after every pair and end as soon as all is said, at the same error rate",
    )
    group.add_argument(
        "--bound",
        type=_percent,
        metavar="PERCENT",
        help="a build that is shown to be slower by more than this fails"
        f" (default: {DEFAULT_BOUND_PERCENT:g})",
    )
    group.add_argument(
        "--alpha",
        type=_rate,
        metavar="RATE",
        help="how often a run of equal arms may call anything different, over all contrasts and metrics"
        f" (default: {DEFAULT_ALPHA:g})",
    )
    group.add_argument(
        "--timed",
        nargs="+",
        action="extend",
        metavar="ARM",
        help="time only contrasts with one of these arms, for example pr:serve/3 (default: all)",
    )
    group.add_argument(
        "--order-seed", type=_seed, metavar="N", help=f"seed of the order (default: {DEFAULT_SEED})"
    )


def add_speed(plan: Plan, arguments: argparse.Namespace) -> Plan:
    """Return the plan with the timed cells that were asked for, or as it is. Raises UsageError."""
    values = (arguments.pairs, arguments.bound, arguments.alpha, arguments.timed, arguments.order_seed)
    if not (arguments.performance or arguments.sequential) and all(value is None for value in values):
        return plan
    return add_timed_cells(
        plan,
        pairs=DEFAULT_PAIRS if arguments.pairs is None else arguments.pairs,
        alpha=DEFAULT_ALPHA if arguments.alpha is None else arguments.alpha,
        bound_percent=DEFAULT_BOUND_PERCENT if arguments.bound is None else arguments.bound,
        sequential=arguments.sequential,
        seed=DEFAULT_SEED if arguments.order_seed is None else arguments.order_seed,
        only=arguments.timed or (),
    )


def _whole(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MAX_PAIRS:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MAX_PAIRS:,}")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value <= MAX_SEED:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {MAX_SEED:,}")
    return value


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to below 100")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0.00001 <= value <= 0.5:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.00001 to 0.5")
    return value
