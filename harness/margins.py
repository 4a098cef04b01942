"""What an engine said of its choices: a margin for each token, and how far those of two answers are apart."""

import statistics
from collections.abc import Sequence

from harness.findings import Noise
from harness.transcript import Margin, TurnRecord


def read_token_margins(turn: TurnRecord | None) -> tuple[Margin, ...] | None:
    """Return one margin for each token, or None when they cannot be told apart.

    An engine that prints one line for each forward gives fewer lines than tokens with speculation on. Lines
    and tokens match when there is a line for each token, and one more for a stop token that was chosen.
    """
    if turn is None or turn.margins is None or turn.emitted_tokens is None:
        return None
    extra = len(turn.margins) - turn.emitted_tokens
    return turn.margins if extra == 0 or (extra == 1 and turn.finish != "length") else None


def join_token_margins(parts: Sequence[TurnRecord]) -> tuple[Margin, ...] | None:
    """Return the margins of an answer that was given in parts, None when a part's are not known.

    The stop token that ended a part was no choice of the whole, unless it is the last part's.
    """
    joined: list[Margin] = []
    for place, part in enumerate(parts, start=1):
        own = read_token_margins(part)
        if own is None:
            return None
        joined += own if place == len(parts) else own[: part.emitted_tokens]
    return tuple(joined)


def pick_own_margins(known: Sequence[Margin], lines: Sequence[Margin], index: int) -> tuple[Margin, ...]:
    """Return the margins of an answer among the lines of turns that ran at once; empty when they do not show.

    Lines name no turn. The other answer's ``known`` choices are the same up to token ``index``, where the two
    best change places. Of all ways to read the lines so, in their order, the one whose margins are nearest to
    the known ones is returned: one margin for each token up to and with ``index``.

    Args:
        known: one margin for each token of the same turn alone.
        lines: what was printed while it ran beside others, in order.
        index: the first token that differs.
    """
    if index >= len(known):
        return ()
    at = known[index]
    wanted = [(None, margin) for margin in known[:index]] + [((at.second, at.best), at)]
    # best[n]: the least sum of distances, and the lines, that show the first n wanted choices so far.
    best: list[tuple[float, tuple[Margin, ...]] | None] = [(0.0, ())] + [None] * len(wanted)
    for line in lines:
        for n in range(len(wanted), 0, -1):
            pair, margin = wanted[n - 1]
            before = best[n - 1]
            fits = line.best == margin.best if pair is None else (line.best, line.second) == pair
            if before is not None and fits:
                cost = before[0] + abs(line.gap - margin.gap)
                known_cost = best[n]
                if known_cost is None or cost < known_cost[0]:
                    best[n] = cost, (*before[1], line)
    found = best[-1]
    return found[1] if found is not None else ()


def measure_noise(a: Sequence[Margin], b: Sequence[Margin]) -> Noise | None:
    """Return how far the margins of two answers are apart, token by token; None without tokens."""
    apart = [abs(left.gap - right.gap) for left, right in zip(a, b, strict=True)]
    if not apart:
        return None
    return Noise(tokens=len(apart), median=statistics.median(apart), largest=max(apart))
