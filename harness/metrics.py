"""Every figure that is derived from a cell's record, by the words of ``harness.metric_words``."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from harness.metric_words import MIN_TOKENS_FOR_RATE
from harness.plan import CellSpec
from harness.transcript import CellRecord, Delivery, Finish, TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMetrics:
    """The figures of one turn, by the words of ``METRICS``; None means not reported."""

    conversation: str
    turn: int
    finish: Finish
    emitted_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    prefill_tokens: int | None
    forwards: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None
    acceptance_rate: float | None
    tokens_per_forward: float | None
    ttft_ms: float | None
    itl_ms: tuple[float, ...]
    tpot_ms: float | None
    time_per_forward_ms: float | None
    decode_tokens_per_s: float | None
    engine_tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMetrics:
    """The figures of one attempt at a cell, turn by turn."""

    spec: CellSpec
    attempt: int
    turns: tuple[TurnMetrics, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts summed over turns; a sum is None when one of its turns does not report the count."""

    turns: int
    emitted_tokens: int | None
    forwards: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None
    acceptance_rate: float | None
    tokens_per_forward: float | None


AnswerKey = tuple[str, str, int, bytes, int]
"""Scenario, conversation, turn, text and token count: what two answers must share to have the same tokens."""


def collect_token_lengths(records: Iterable[CellRecord]) -> dict[AnswerKey, tuple[int, ...]]:
    """Return the token lengths that some cell showed, by the answer they belong to.

    Chat mode shows no token boundaries. Where a serve cell gave the same bytes in as many tokens, its
    boundaries hold for the chat cell too, if both paths read the same vocabulary; docs/metrics.md states
    that assumption.
    """
    found: dict[AnswerKey, tuple[int, ...]] = {}
    for record in records:
        for turn in record.turns:
            key = _answer_key(record.spec.scenario, turn)
            lengths = turn.token_lengths
            if key and lengths is not None and sum(lengths) == len(turn.text) and len(lengths) == key[-1]:
                found.setdefault(key, lengths)
    return found


def derive_metrics(
    record: CellRecord, token_lengths: Mapping[AnswerKey, tuple[int, ...]] | None = None
) -> CellMetrics:
    """Derive the figures of one cell.

    Args:
        record: what the cell did.
        token_lengths: boundaries from other cells, as :func:`collect_token_lengths` returns them, for
            turns that show none of their own.
    """
    turns = []
    for turn in record.turns:
        key = _answer_key(record.spec.scenario, turn)
        shared = token_lengths.get(key) if token_lengths and key else None
        turns.append(_derive_turn(turn, record.spec.arm.depth, turn.token_lengths or shared))
    return CellMetrics(spec=record.spec, attempt=record.attempt, turns=tuple(turns))


def sum_turns(turns: Sequence[TurnMetrics]) -> Totals:
    """Sum the counts of ``turns``, without those of which an engine need not report any: cancelled, refused,
    and empty ones, which ran no decode forward.
    """
    turns = [turn for turn in turns if turn.finish not in ("cancelled", "refused") and not _is_bare(turn)]
    emitted = sum_reported(turn.emitted_tokens for turn in turns)
    forwards = sum_reported(turn.forwards for turn in turns)
    drafted = sum_reported(turn.drafted_tokens for turn in turns)
    accepted = sum_reported(turn.accepted_tokens for turn in turns)
    return Totals(
        turns=len(turns),
        emitted_tokens=emitted,
        forwards=forwards,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        acceptance_rate=divide(accepted, drafted),
        tokens_per_forward=divide(emitted, forwards),
    )


def _is_bare(turn: TurnMetrics) -> bool:
    return turn.emitted_tokens == 0 and turn.forwards is None


def sum_reported(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None when there are no values or one of them is None."""
    known = list(values)
    present = [value for value in known if value is not None]
    return sum(present) if known and len(present) == len(known) else None


def divide(numerator: float | None, denominator: float | None) -> float | None:
    """Return the quotient, or None when a part is not reported or the denominator is 0."""
    return numerator / denominator if numerator is not None and denominator else None


def median_reported(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are reported, or None when none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _answer_key(scenario: str, turn: TurnRecord) -> AnswerKey | None:
    if turn.emitted_tokens is None:
        return None
    return scenario, turn.conversation, turn.turn, turn.text, turn.emitted_tokens


def _derive_turn(turn: TurnRecord, depth: int, token_lengths: Sequence[int] | None) -> TurnMetrics:
    accepted = _derive_accepted(turn, depth)
    tpot_ms = _derive_tpot_ms(turn, token_lengths)
    tokens_per_forward = divide(turn.emitted_tokens, turn.forwards)
    outputs = [delivery for delivery in turn.deliveries if delivery.size_bytes]
    times_ns = [delivery.at_ns for delivery in outputs]
    return TurnMetrics(
        conversation=turn.conversation,
        turn=turn.turn,
        finish=turn.finish,
        emitted_tokens=turn.emitted_tokens,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=_first_known(turn.cached_tokens, _subtract(turn.prompt_tokens, turn.prefill_tokens)),
        prefill_tokens=_first_known(turn.prefill_tokens, _subtract(turn.prompt_tokens, turn.cached_tokens)),
        forwards=turn.forwards,
        drafted_tokens=turn.drafted_tokens,
        accepted_tokens=accepted,
        acceptance_rate=divide(accepted, turn.drafted_tokens),
        tokens_per_forward=tokens_per_forward,
        ttft_ms=(times_ns[0] - turn.sent_ns) / 1e6 if times_ns else None,
        itl_ms=tuple((b - a) / 1e6 for a, b in pairwise(times_ns)),
        tpot_ms=tpot_ms,
        time_per_forward_ms=_multiply(tpot_ms, tokens_per_forward),
        decode_tokens_per_s=divide(1000.0, tpot_ms),
        engine_tokens_per_s=turn.engine_tokens_per_s,
    )


def _first_known(first: int | None, second: int | None) -> int | None:
    return first if first is not None else second


def _subtract(a: int | None, b: int | None) -> int | None:
    return a - b if a is not None and b is not None else None


def _multiply(a: float | None, b: float | None) -> float | None:
    return a * b if a is not None and b is not None else None


def _derive_accepted(turn: TurnRecord, depth: int) -> int | None:
    if turn.accepted_tokens is not None or depth == 0:
        return turn.accepted_tokens
    difference = _subtract(turn.emitted_tokens, turn.forwards)
    # More forwards than tokens: the counts do not mean what the formula needs.
    return difference if difference is not None and difference >= 0 else None


def _derive_tpot_ms(turn: TurnRecord, token_lengths: Sequence[int] | None) -> float | None:
    outputs = [index for index, delivery in enumerate(turn.deliveries) if delivery.size_bytes]
    if len(outputs) < 2:
        return None
    first, last = outputs[0], outputs[-1]
    through_first = _count_tokens(turn.deliveries[: first + 1], token_lengths)
    through_last = _count_tokens(turn.deliveries[: last + 1], token_lengths)
    tokens = _subtract(through_last, through_first)
    if tokens is None or tokens < MIN_TOKENS_FOR_RATE:
        return None
    return (turn.deliveries[last].at_ns - turn.deliveries[first].at_ns) / 1e6 / tokens


def _count_tokens(deliveries: Sequence[Delivery], token_lengths: Sequence[int] | None) -> int | None:
    """Return the tokens that arrived whole in ``deliveries``; None when neither they nor the lengths tell."""
    counted = sum_reported(delivery.tokens for delivery in deliveries)
    if counted is not None or token_lengths is None:
        return counted
    size_bytes = sum(delivery.size_bytes for delivery in deliveries)
    return sum(1 for end in accumulate(token_lengths) if end <= size_bytes)
