"""What the engine says about itself on stderr, and the numbers of its replies."""

import os
from collections.abc import Sequence

from engine_bindings.reference.drafting import PAUSE_FORWARDS, Guard
from engine_bindings.reference.generate import Turn
from engine_bindings.reference.machine import read_rss_gb
from engine_bindings.reference.sampling import Margin
from engine_bindings.wire.counts import Stat
from engine_bindings.wire.stderr_lines import (
    DecodeForwards,
    DraftsPaused,
    LogitGap,
    PrefixReuse,
    SpeculationCounts,
)

SHOWN_PREFILL_TOKENS = 8  # the real engine shows its progress from so many rows on
MIN_SECONDS = 1e-6  # keeps a rate finite


def log(line: str) -> None:
    """Write one line to stderr; a closed stderr does not stop the engine."""
    try:
        os.write(2, line.encode("utf-8", "replace") + b"\n")
    except OSError:
        return


class TurnLog:
    """The part of a turn's listener that both protocols share: everything but the tokens themselves."""

    def __init__(self, *, prof: bool, layers: int) -> None:
        self.prof = prof
        self.layers = layers
        self.margins = 0

    def on_prefix(self, turn: Turn) -> None:
        """Say what an exact prompt found in the KV; an interactive line always continues it."""
        if turn.request.exact:
            line = PrefixReuse(
                slot=turn.slot.index,
                cached_tokens=turn.cached_tokens,
                prompt_tokens=len(turn.request.prompt),
                prefill_tokens=turn.prefill_tokens,
            )
            log(line.to_line())

    def on_margin(self, _turn: Turn, margin: Margin) -> None:
        """Write the next LOGITGAP line: one for every chosen token, accepted drafts and stops included.

        The real engine writes none for accepted drafts.
        """
        line = LogitGap(
            position=self.margins,
            top1_id=margin.top1_id,
            top1_logit=margin.top1_logit,
            top2_id=margin.top2_id,
            top2_logit=margin.top2_logit,
            gap=margin.top1_logit - margin.top2_logit,
        )
        log(line.to_line())
        self.margins += 1

    def on_pause(self, _turn: Turn, guard: Guard) -> None:
        """Say that drafting pauses."""
        percent = round(100 * guard.accepted / guard.drafted)
        line = DraftsPaused(
            acceptance_percent=percent, window_tokens=guard.drafted, pause_tokens=PAUSE_FORWARDS
        )
        log(line.to_line())

    def report_prefill(self, turn: Turn) -> None:
        """Say how long the prompt took."""
        if turn.prefill_tokens >= SHOWN_PREFILL_TOKENS:
            seconds = turn.prefilled_s - turn.started_s
            log(
                f"[prefill] layer {self.layers}/{self.layers} · {turn.prefill_tokens} token · +{seconds:.2f}s"
            )

    def report_turn(self, turn: Turn) -> None:
        """Write the turn's counts, when they are wanted; called before the reply's end is written."""
        if turn.guide.failure:
            log(f"[GRAMMAR] turn: {turn.guide.failure}")
        if not self.prof:
            return
        if turn.forwards:
            log(describe_forwards(turn).to_line())
        counts = SpeculationCounts(
            drafted_tokens=turn.drafted, accepted_tokens=turn.accepted, forwards=turn.forwards
        )
        log(counts.to_line())


def describe_forwards(turn: Turn) -> DecodeForwards:
    """Return the values of the `[PROF] decode forwards` line of a turn that ran any."""
    times_ms = sorted(1000 * seconds for seconds in turn.forward_s)
    return DecodeForwards(
        forwards=turn.forwards,
        p50_ms=_percentile(times_ms, 50),
        p90_ms=_percentile(times_ms, 90),
        p99_ms=_percentile(times_ms, 99),
        max_ms=times_ms[-1],
        tokens_per_forward=turn.emitted / turn.forwards,
    )


def build_stat(turn: Turn, *, seconds: float, prompt_tokens: int | None, length_limited: bool) -> Stat:
    """Return a turn's STAT values; every expert is resident, so the hit rate is always 100."""
    return Stat(
        emitted_tokens=turn.emitted,
        tokens_per_s=turn.emitted / max(seconds, MIN_SECONDS),
        hit_percent=100.0,
        rss_gb=read_rss_gb(),
        prompt_tokens=prompt_tokens,
        length_limited=None if prompt_tokens is None else length_limited,
    )


def build_empty_stat(*, short: bool) -> Stat:
    """Return the STAT of a reply without a turn: four fields, or six with zeros for a refused prompt."""
    return Stat(
        emitted_tokens=0,
        tokens_per_s=0.0,
        hit_percent=0.0,
        rss_gb=read_rss_gb(),
        prompt_tokens=None if short else 0,
        length_limited=None if short else False,
    )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
