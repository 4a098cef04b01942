import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire.stderr_lines import (
    DecodeForwards,
    DraftsPaused,
    GrammarLoaded,
    GrammarRefused,
    KvResumed,
    KvSlots,
    LogitGap,
    MtpState,
    PrefixReuse,
    PromptTooLong,
    ServeSpeculation,
    SpeculationCounts,
    StderrEvent,
    StopTokens,
    StopTokensFiltered,
    parse_stderr_line,
)
from tests.engine_bindings.wire.recorded_streams import RECORDINGS

RECORDED = sorted(
    {line for path in RECORDINGS.glob("[cd]_*.err") for line in path.read_text("utf-8").splitlines()}
)
# Forms that are of no use to anybody who measures.
UNKNOWN = ("[DSA]", "[RAM_GB=", "[prefill]", "[SPEC_PIN]")
LINES: list[tuple[str, StderrEvent]] = [
    (
        "[API] KV slot 0 prefix 2765/2804 token, prefill 39",
        PrefixReuse(slot=0, cached_tokens=2765, prompt_tokens=2804, prefill_tokens=39),
    ),
    (
        "[PROF] decode forwards: 12 | latency p50 2.5 ms | p90 3.0 ms | p99 -0.0 ms | max 9.1 ms"
        " | 2.67 tok/forward",
        DecodeForwards(forwards=12, p50_ms=2.5, p90_ms=3.0, p99_ms=-0.0, max_ms=9.1, tokens_per_forward=2.67),
    ),
    (
        "[SPEC] turn: drafted 30, accepted 20, forwards 12",
        SpeculationCounts(drafted_tokens=30, accepted_tokens=20, forwards=12),
    ),
    (
        "[MTP] 42% acceptance over the last 24 proposals: drafts paused for 256 tokens",
        DraftsPaused(acceptance_percent=42, window_tokens=24, pause_tokens=256),
    ),
    (
        "[KV] resumed conversation from disk: 30 tokens in 0.0s (no re-prefill)",
        KvResumed(tokens=30, load_s=0.0),
    ),
    (
        "[KV] context slots: 1 x 4096 tokens, projected pool 0.01 GB",
        KvSlots(slots=1, context_tokens=4096, pool_gb=0.01),
    ),
    ("[stop] 1 stop tokens: 492", StopTokens(ids=(492,))),
    (
        "[stop] 3 stop tokens: 492 499 501 (2 from the tokenizer's special set)",
        StopTokens(ids=(492, 499, 501), from_tokenizer=2),
    ),
    ("[stop] 0 stop tokens:", StopTokens(ids=())),
    (
        "[stop] batched serve mode: filtered 9 non-EOS stop tokens (tool-call safety, #401)",
        StopTokensFiltered(count=9),
    ),
    ("[MTP] active: native speculative decoding (draft=3)", MtpState(state="active", draft=3)),
    ("[MTP] absent (draft=0)", MtpState(state="absent", draft=0)),
    ("[MTP] single-slot serve: speculation active (draft=1)", ServeSpeculation(draft=1)),
    (
        "LOGITGAP pos=0 top1=17:3.100000 top2=4:-2.900000 gap=0.200000000",
        LogitGap(position=0, top1_id=17, top1_logit=3.1, top2_id=4, top2_logit=-2.9, gap=0.2),
    ),
    (
        "[API] prompt does not fit: >=511 token, context is 510 (CTX=512). Raise it, e.g. CTX=32768"
        " -- coding clients send large system prompts.",
        PromptTooLong(prompt_tokens=511, limit_tokens=510, context_tokens=512),
    ),
    (
        "[GRAMMAR] request: 5 rules, forced span capped at 24 tokens/forward",
        GrammarLoaded(rules=5, span_tokens=24),
    ),
    ("[GRAMMAR] request: missing ')'", GrammarRefused(reason="missing ')'")),
    (
        "[SCHEMA] request: not an object (running without grammar)",
        GrammarRefused(reason="not an object", source="SCHEMA"),
    ),
]


@pytest.mark.parametrize(("line", "event"), LINES, ids=lambda value: value if isinstance(value, str) else "")
def test_each_form_is_read_and_written_exactly(line: str, event: StderrEvent) -> None:
    assert parse_stderr_line(line) == event
    assert parse_stderr_line(line + "\n") == event
    assert event.to_line() == line


@pytest.mark.parametrize("line", RECORDED)
def test_recorded_lines_come_back_exactly(line: str) -> None:
    event = parse_stderr_line(line)
    if line.startswith(UNKNOWN):
        assert event is None
    else:
        assert event is not None
        assert event.to_line() == line


def test_the_recordings_hold_the_disabled_form() -> None:
    assert MtpState(state="disabled").to_line() in RECORDED


def test_a_guard_pause_is_not_taken_for_a_state() -> None:
    states = [line for line in RECORDED if isinstance(parse_stderr_line(line), MtpState)]
    assert len(states) == 4


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "[API]",
        "[API] KV slot 0 prefix 1/2 token, prefill",
        "[API] KV slot x prefix 1/2 token, prefill 3",
        "[PROF] decode forwards: nan",
        "[PROF] verdict: balanced",
        "[MTP] maybe (draft=3)",
        "LOGITGAP pos=0 top1=17:nan top2=4:1.000000 gap=nan",
        "  [MTP] absent (draft=0)",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert parse_stderr_line(line) is None


@given(line=st.text() | st.builds(str.__add__, st.sampled_from([line for line, _ in LINES]), st.text()))
def test_any_line_is_an_event_or_none(line: str) -> None:
    event = parse_stderr_line(line)
    assert event is None or event.to_line().startswith(("[", "LOGITGAP"))
