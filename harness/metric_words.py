"""The one table that defines the words of a report; ``docs/metrics.md`` and the renderers take them from
here.
"""

from dataclasses import dataclass

# A rate over fewer tokens than this says more about the clock and the pipe than about the engine.
MIN_TOKENS_FOR_RATE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One word: the name in JSON, the label in reports, the unit, and what it means."""

    name: str
    label: str
    unit: str
    definition: str


METRICS: tuple[Metric, ...] = (
    Metric(
        name="emitted_tokens",
        label="tokens",
        unit="tokens",
        definition="Tokens that the engine generated in the turn, by its own count; a stop token is not one "
        "of them.",
    ),
    Metric(
        name="prompt_tokens",
        label="prompt",
        unit="tokens",
        definition="Length of the whole prompt. Not reported for a typed line, whose figure counts that "
        "turn alone.",
    ),
    Metric(
        name="cached_tokens",
        label="prefix",
        unit="tokens",
        definition="Prompt tokens taken over from the cache.",
    ),
    Metric(
        name="prefill_tokens",
        label="prefill",
        unit="tokens",
        definition="prompt_tokens - cached_tokens: positions really computed before the first output.",
    ),
    Metric(
        name="forwards",
        label="forwards",
        unit="forwards",
        definition="Decode forwards of the main model in the turn; prefill is not one.",
    ),
    Metric(
        name="drafted_tokens",
        label="drafted",
        unit="tokens",
        definition="Draft tokens proposed and verified, where the engine reports them.",
    ),
    Metric(
        name="accepted_tokens",
        label="accepted",
        unit="tokens",
        definition=(
            "Draft tokens kept: as reported, else emitted_tokens - forwards for an arm with speculation on. "
            "Exact for an engine that runs one forward for each token it picked."
        ),
    ),
    Metric(
        name="acceptance_rate",
        label="acceptance",
        unit="0 to 1",
        definition="accepted_tokens / drafted_tokens; not reported where drafted_tokens is not.",
    ),
    Metric(
        name="tokens_per_forward",
        label="tok/fwd",
        unit="tokens",
        definition=(
            "emitted_tokens / forwards. 1.00 without speculation; an engine that skips the forward of the "
            "last "
            "token at the cap shows a trifle more."
        ),
    ),
    Metric(
        name="ttft_ms",
        label="TTFT",
        unit="ms",
        definition="Request written to first non-empty output, by the client's clock.",
    ),
    Metric(
        name="itl_ms",
        label="ITL",
        unit="ms, a list",
        definition="Gaps between deliveries of output. With speculation one gap may cover several tokens.",
    ),
    Metric(
        name="tpot_ms",
        label="TPOT",
        unit="ms",
        definition=(
            "(last - first delivery) / (tokens - tokens of the first delivery), by the client's clock. "
            "Needs two "
            f"deliveries and {MIN_TOKENS_FOR_RATE} tokens after the first delivery, else not reported."
        ),
    ),
    Metric(
        name="time_per_forward_ms",
        label="ms/fwd",
        unit="ms",
        definition=(
            "tpot_ms * tokens_per_forward: one decode forward with all that comes with it. Between two "
            "builds at depth 0 its ratio is the price of speculation that drafts nothing."
        ),
    ),
    Metric(
        name="decode_tokens_per_s",
        label="decode tok/s",
        unit="tokens per s",
        definition="1000 / tpot_ms.",
    ),
    Metric(
        name="engine_tokens_per_s",
        label="engine's tok/s",
        unit="tokens per s",
        definition=(
            "The engine's own figure, shown beside ours and never mixed with it. Colibri divides by prefill "
            "and "
            "decode time in chat mode, by decode time alone in serve mode."
        ),
    ),
    Metric(
        name="speedup_ratio",
        label="speed-up",
        unit="ratio",
        definition=(
            "Median decode_tokens_per_s with speculation on / off, over the pairs of turns that are "
            "identical. "
            "Equals tokens_per_forward_ratio / time_per_forward_ratio."
        ),
    ),
    Metric(
        name="tokens_per_forward_ratio",
        label="tok/fwd ratio",
        unit="ratio",
        definition="tokens_per_forward with speculation on / off, each from the sums over the same pairs.",
    ),
    Metric(
        name="time_per_forward_ratio",
        label="time/fwd ratio",
        unit="ratio",
        definition=(
            "tokens_per_forward_ratio / speedup_ratio: how much longer one round of draft and verify takes "
            "than "
            "one plain forward."
        ),
    ),
)
