"""Counters for Prometheus, under the names that dashboards know, with our own prefix.

What vLLM calls `vllm:X` is `coli_ab:X` here, and so is what llama.cpp calls `llamacpp:X`. The number of
drafts (vLLM's `spec_decode_num_drafts`) is not there: the engine reports drafted tokens, not how many times
it drafted.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from server.api_errors import ApiError
from server.job import Ended

PREFIX = "coli_ab:"
LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
COUNTERS = {
    "prompt_tokens": "Prompt tokens of finished requests",
    "generation_tokens": "Generated tokens (vLLM's name)",
    "tokens_predicted": "Generated tokens (llama.cpp's name)",
    "prefix_cache_queries": "Prompt tokens that could have been reused",
    "prefix_cache_hits": "Prompt tokens that were reused",
    "prompt_seconds": "Seconds from acceptance to the first token",
    "tokens_predicted_seconds": "Seconds from the first token to the last",
    "n_decode": "Forward passes of decoding",
    "spec_decode_num_draft_tokens": "Tokens that the MTP head drafted",
    "spec_decode_num_accepted_tokens": "Drafted tokens that the model accepted",
    "audit_replays": "Requests that were replayed with speculation off",
    "audit_near_ties": "Replays that differed at a proven near-tie",
    "audit_differences": "Replays that differed, which switches MTP off",
}
GAUGES = {
    "num_requests_running": "Requests on the engine (vLLM's name)",
    "num_requests_waiting": "Requests in the queue (vLLM's name)",
    "requests_processing": "Requests on the engine (llama.cpp's name)",
    "requests_deferred": "Requests in the queue (llama.cpp's name)",
    "mtp_enabled": "1 when the server may speculate, else 0",
    "mtp_depth": "Draft depth that is served",
    "engine_ready": "1 when the engine takes turns, else 0",
    "engine_restarts": "Times that the engine was started again",
}


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {name: self._counter(name, text) for name, text in COUNTERS.items()}
        self._success = Counter(
            PREFIX + "request_success", "Finished choices", ["finished_reason"], registry=self._registry
        )
        self._errors = Counter(
            PREFIX + "request_errors", "Requests that failed", ["code"], registry=self._registry
        )
        self._first_token = Histogram(
            PREFIX + "time_to_first_token_seconds",
            "From the request's arrival to its first output",
            buckets=LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._queue_time = Histogram(
            PREFIX + "request_queue_time_seconds",
            "From the request's arrival to its acceptance by the engine",
            buckets=LATENCY_BUCKETS_S,
            registry=self._registry,
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(PREFIX + name, text, registry=self._registry)

    def watch(self, readers: dict[str, Callable[[], float]]) -> None:
        """Read gauges from functions when they are scraped; names are keys of GAUGES."""
        for name, read in readers.items():
            Gauge(PREFIX + name, GAUGES[name], registry=self._registry).set_function(read)

    def add(self, name: str, value: float | None = 1) -> None:
        """Add to a counter; None, not reported, adds nothing."""
        if value is not None:
            self._counters[name].inc(value)

    def count_end(self, ended: Ended) -> None:
        """Count a choice that ended well."""
        counts, times = ended.counts, ended.timings
        self._success.labels(ended.finish_reason).inc()
        self.add("prompt_tokens", counts.prompt_tokens)
        self.add("generation_tokens", counts.completion_tokens)
        self.add("tokens_predicted", counts.completion_tokens)
        if counts.cached_tokens is not None:
            self.add("prefix_cache_queries", counts.prompt_tokens)
            self.add("prefix_cache_hits", counts.cached_tokens)
        self.add("prompt_seconds", _seconds(times.prompt_ms))
        self.add("tokens_predicted_seconds", _seconds(times.predicted_ms))
        self.add("n_decode", counts.forwards)
        self.add("spec_decode_num_draft_tokens", counts.drafted_tokens)
        self.add("spec_decode_num_accepted_tokens", counts.accepted_tokens)

    def count_error(self, error: ApiError) -> None:
        """Count a request that failed."""
        self._errors.labels(error.code).inc()

    def observe_queue(self, seconds: float) -> None:
        """Note how long a request waited for the engine."""
        self._queue_time.observe(seconds)

    def observe_first_token(self, seconds: float) -> None:
        """Note how long a client waited for the first output."""
        self._first_token.observe(seconds)

    def render(self) -> bytes:
        """Return everything in the text format."""
        return generate_latest(self._registry)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000
