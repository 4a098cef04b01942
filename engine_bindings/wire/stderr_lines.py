"""What an engine says on stderr that can be counted on: each kind of line as a value with its exact form.

`parse_stderr_line` is lenient, as stderr is for people: a line of no known form gives None. `to_line` of each
value writes the form of the real engine, so that the reference engine can be read by the same parser.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

MtpStatus: TypeAlias = Literal["active", "absent", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixReuse:
    """How much of an exact prompt was in the slot's KV cache; written before prefill, not for lines."""

    slot: int
    cached_tokens: int
    prompt_tokens: int
    prefill_tokens: int

    def to_line(self) -> str:
        """Write the line without a newline."""
        reuse = f"{self.cached_tokens}/{self.prompt_tokens}"
        return f"[API] KV slot {self.slot} prefix {reuse} token, prefill {self.prefill_tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeForwards:
    """Decode forwards of one turn (PROF=1); not written for a turn without any. The times are per forward."""

    forwards: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    tokens_per_forward: float

    def to_line(self) -> str:
        """Write the line without a newline."""
        latency = f"p50 {self.p50_ms:.1f} ms | p90 {self.p90_ms:.1f} ms | p99 {self.p99_ms:.1f} ms"
        return (
            f"[PROF] decode forwards: {self.forwards} | latency {latency} | max {self.max_ms:.1f} ms"
            f" | {self.tokens_per_forward:.2f} tok/forward"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationCounts:
    """Drafts of one turn (PROF=1); our own extension, which the real engine does not write."""

    drafted_tokens: int
    accepted_tokens: int
    forwards: int

    def to_line(self) -> str:
        """Write the line without a newline."""
        drafts = f"drafted {self.drafted_tokens}, accepted {self.accepted_tokens}"
        return f"[SPEC] turn: {drafts}, forwards {self.forwards}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftsPaused:
    """The guard paused drafting inside a turn, for so many forwards without drafts."""

    acceptance_percent: int
    window_tokens: int
    pause_tokens: int

    def to_line(self) -> str:
        """Write the line without a newline."""
        window = f"{self.acceptance_percent}% acceptance over the last {self.window_tokens} proposals"
        return f"[MTP] {window}: drafts paused for {self.pause_tokens} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvResumed:
    """A saved conversation was loaded at start, so the first prompt of that slot does not start cold."""

    tokens: int
    load_s: float

    def to_line(self) -> str:
        """Write the line without a newline."""
        return (
            f"[KV] resumed conversation from disk: {self.tokens} tokens in {self.load_s:.1f}s (no re-prefill)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTokens:
    """The stop set; `from_tokenizer` of the ids come from the tokenizer's special tokens."""

    ids: tuple[int, ...]
    from_tokenizer: int = 0

    def to_line(self) -> str:
        """Write the line without a newline."""
        line = f"[stop] {len(self.ids)} stop tokens:" + "".join(f" {token}" for token in self.ids)
        if self.from_tokenizer:
            line += f" ({self.from_tokenizer} from the tokenizer's special set)"
        return line


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTokensFiltered:
    """Serve mode took so many tokens out of the stop set, all but the end of text."""

    count: int

    def to_line(self) -> str:
        """Write the line without a newline."""
        why = "(tool-call safety, #401)"
        return f"[stop] batched serve mode: filtered {self.count} non-EOS stop tokens {why}"


_MTP_DISABLED = (
    "[MTP] disabled in multiplexed serve (SERVE_BATCH=1, KV_SLOTS>1): speculation is not ragged-safe"
    " across KV slots. Single-slot serve (KV_SLOTS=1) keeps MTP."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpState:
    """Whether a head is loaded. `active` does not mean that drafts are made: the depth may be 0."""

    state: MtpStatus
    draft: int | None = None

    def to_line(self) -> str:
        """Write the line without a newline."""
        if self.state == "active":
            return f"[MTP] active: native speculative decoding (draft={self.draft})"
        if self.state == "absent":
            return f"[MTP] absent (draft={self.draft})"
        return _MTP_DISABLED


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSpeculation:
    """Serve mode with one slot drafts up to `draft` tokens."""

    draft: int

    def to_line(self) -> str:
        """Write the line without a newline."""
        return f"[MTP] single-slot serve: speculation active (draft={self.draft})"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSlots:
    """Size of the KV cache; chat mode only."""

    slots: int
    context_tokens: int
    pool_gb: float

    def to_line(self) -> str:
        """Write the line without a newline."""
        size = f"{self.slots} x {self.context_tokens} tokens"
        return f"[KV] context slots: {size}, projected pool {self.pool_gb:.2f} GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitGap:
    """The two best logits of one pick (COLI_LOGIT_GAP). `position` counts such lines since the start."""

    position: int
    top1_id: int
    top1_logit: float
    top2_id: int
    top2_logit: float
    gap: float

    def to_line(self) -> str:
        """Write the line without a newline."""
        top1 = f"top1={self.top1_id}:{self.top1_logit:.6f}"
        top2 = f"top2={self.top2_id}:{self.top2_logit:.6f}"
        return f"LOGITGAP pos={self.position} {top1} {top2} gap={self.gap:.9f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTooLong:
    """A served prompt was refused. The engine stops counting one beyond the limit: a lower bound."""

    prompt_tokens: int
    limit_tokens: int
    context_tokens: int

    def to_line(self) -> str:
        """Write the line without a newline."""
        return (
            f"[API] prompt does not fit: >={self.prompt_tokens} token, context is {self.limit_tokens}"
            f" (CTX={self.context_tokens}). Raise it, e.g. CTX=32768"
            " -- coding clients send large system prompts."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLoaded:
    """A request's grammar compiled; it forces at most `span_tokens` drafts at once."""

    rules: int
    span_tokens: int

    def to_line(self) -> str:
        """Write the line without a newline."""
        span = f"forced span capped at {self.span_tokens} tokens/forward"
        return f"[GRAMMAR] request: {self.rules} rules, {span}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarRefused:
    """A request's grammar or schema did not compile; the turn runs without it."""

    reason: str
    source: Literal["GRAMMAR", "SCHEMA"] = "GRAMMAR"

    def to_line(self) -> str:
        """Write the line without a newline."""
        tail = " (running without grammar)" if self.source == "SCHEMA" else ""
        return f"[{self.source}] request: {self.reason}{tail}"


StderrEvent: TypeAlias = (
    PrefixReuse
    | DecodeForwards
    | SpeculationCounts
    | DraftsPaused
    | KvResumed
    | StopTokens
    | StopTokensFiltered
    | MtpState
    | ServeSpeculation
    | KvSlots
    | LogitGap
    | PromptTooLong
    | GrammarLoaded
    | GrammarRefused
)
_Build: TypeAlias = Callable[[dict[str, str]], StderrEvent]


def _count(name: str) -> str:
    return f"(?P<{name}>[0-9]{{1,20}})"


def _decimal(name: str) -> str:
    return rf"(?P<{name}>-?[0-9]{{1,40}}\.[0-9]{{1,40}})"


def _numbers(kind: Callable[..., StderrEvent]) -> _Build:
    """Build `kind` from groups named like its fields; decimals have a point and counts have none."""
    return lambda groups: kind(
        **{name: float(text) if "." in text else int(text) for name, text in groups.items()}
    )


def _stop_tokens(groups: dict[str, str]) -> StopTokens:
    ids = tuple(int(text) for text in groups["ids"].split())
    return StopTokens(ids=ids, from_tokenizer=int(groups["from_tokenizer"] or 0))


def _mtp_active(groups: dict[str, str]) -> MtpState:
    return MtpState(state="active", draft=int(groups["draft"]))


def _mtp_absent(groups: dict[str, str]) -> MtpState:
    return MtpState(state="absent", draft=int(groups["draft"]))


def _mtp_disabled(_: dict[str, str]) -> MtpState:
    return MtpState(state="disabled")


def _grammar_refused(groups: dict[str, str]) -> GrammarRefused:
    return GrammarRefused(reason=groups["reason"])


def _schema_refused(groups: dict[str, str]) -> GrammarRefused:
    return GrammarRefused(reason=groups["reason"], source="SCHEMA")


# The first form that a line starts with is its kind.
_FORMS: tuple[tuple[re.Pattern[str], _Build], ...] = tuple(
    (re.compile(pattern), build)
    for pattern, build in (
        (
            rf"\[API\] KV slot {_count('slot')} prefix {_count('cached_tokens')}/{_count('prompt_tokens')}"
            rf" token, prefill {_count('prefill_tokens')}$",
            _numbers(PrefixReuse),
        ),
        (
            rf"\[API\] prompt does not fit: >={_count('prompt_tokens')} token,"
            rf" context is {_count('limit_tokens')} \(CTX={_count('context_tokens')}\)",
            _numbers(PromptTooLong),
        ),
        (
            rf"\[PROF\] decode forwards: {_count('forwards')} \| latency p50 {_decimal('p50_ms')} ms"
            rf" \| p90 {_decimal('p90_ms')} ms \| p99 {_decimal('p99_ms')} ms \| max {_decimal('max_ms')} ms"
            rf" \| {_decimal('tokens_per_forward')} tok/forward$",
            _numbers(DecodeForwards),
        ),
        (
            rf"\[SPEC\] turn: drafted {_count('drafted_tokens')}, accepted {_count('accepted_tokens')},"
            rf" forwards {_count('forwards')}$",
            _numbers(SpeculationCounts),
        ),
        (
            rf"\[MTP\] {_count('acceptance_percent')}% acceptance"
            rf" over the last {_count('window_tokens')} proposals:"
            rf" drafts paused for {_count('pause_tokens')} tokens",
            _numbers(DraftsPaused),
        ),
        (
            rf"LOGITGAP pos={_count('position')} top1={_count('top1_id')}:{_decimal('top1_logit')}"
            rf" top2={_count('top2_id')}:{_decimal('top2_logit')} gap={_decimal('gap')}$",
            _numbers(LogitGap),
        ),
        (
            rf"\[KV\] resumed conversation from disk: {_count('tokens')} tokens in {_decimal('load_s')}s",
            _numbers(KvResumed),
        ),
        (
            rf"\[KV\] context slots: {_count('slots')} x {_count('context_tokens')} tokens,"
            rf" projected pool {_decimal('pool_gb')} GB",
            _numbers(KvSlots),
        ),
        (
            r"\[stop\] [0-9]+ stop tokens:(?P<ids>(?: [0-9]{1,20})*)"
            r"(?: \((?P<from_tokenizer>[0-9]{1,20}) from the tokenizer's special set\))?$",
            _stop_tokens,
        ),
        (
            rf"\[stop\] batched serve mode: filtered {_count('count')} non-EOS stop tokens",
            _numbers(StopTokensFiltered),
        ),
        (rf"\[MTP\] active: .*\(draft={_count('draft')}\)$", _mtp_active),
        (rf"\[MTP\] absent \(draft={_count('draft')}\)$", _mtp_absent),
        (r"\[MTP\] disabled in multiplexed serve", _mtp_disabled),
        (
            rf"\[MTP\] single-slot serve: speculation active \(draft={_count('draft')}\)$",
            _numbers(ServeSpeculation),
        ),
        (
            rf"\[GRAMMAR\] request: {_count('rules')} rules,"
            rf" forced span capped at {_count('span_tokens')} tokens",
            _numbers(GrammarLoaded),
        ),
        (r"\[GRAMMAR\] request: (?P<reason>.*)$", _grammar_refused),
        (r"\[SCHEMA\] request: (?P<reason>.*?)(?: \(running without grammar\))?$", _schema_refused),
    )
)


def parse_stderr_line(line: str) -> StderrEvent | None:
    """Read one line, with or without its newline; None when it has no known form."""
    line = line.rstrip("\r\n")
    if not line.startswith(("[", "LOGITGAP")):
        return None
    for pattern, build in _FORMS:
        match = pattern.match(line)
        if match is not None:
            return build(match.groupdict())
    return None
