"""What an engine's stderr says about one turn."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from engine_bindings.wire.stderr_lines import (
    DecodeForwards,
    DraftsPaused,
    LogitGap,
    PrefixReuse,
    SpeculationCounts,
    StderrEvent,
)
from harness.transcript import Margin


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCounts:
    """Counts of one turn; None where stderr said nothing."""

    cached_tokens: int | None = None
    prefill_tokens: int | None = None
    forwards: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    drafts_paused: int = 0
    margins: tuple[Margin, ...] | None = None

    def add(self, event: StderrEvent) -> "TurnCounts":
        """Return the counts with one more line of stderr taken in."""
        match event:
            case PrefixReuse():
                return replace(self, cached_tokens=event.cached_tokens, prefill_tokens=event.prefill_tokens)
            case DecodeForwards():
                return replace(self, forwards=event.forwards)
            case SpeculationCounts():
                return replace(
                    self, drafted_tokens=event.drafted_tokens, accepted_tokens=event.accepted_tokens
                )
            case DraftsPaused():
                return replace(self, drafts_paused=self.drafts_paused + 1)
            case LogitGap():
                margin = Margin(best=event.top1_id, second=event.top2_id, gap=event.gap)
                return replace(self, margins=(*(self.margins or ()), margin))
            case _:
                return self

    def list_missing(self, names: Collection[str]) -> frozenset[str]:
        """Return those of ``names`` of which nothing was said."""
        return frozenset(name for name in names if getattr(self, name) is None)

    def forget(self, names: Collection[str]) -> "TurnCounts":
        """Return the counts without those of ``names``, and without what stands in the same line."""
        counts = self
        if "cached_tokens" in names:
            counts = replace(counts, cached_tokens=None, prefill_tokens=None)
        if "drafted_tokens" in names:
            counts = replace(counts, drafted_tokens=None, accepted_tokens=None)
        if "forwards" in names:
            counts = replace(counts, forwards=None)
        return counts
