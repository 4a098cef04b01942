"""Counts that a server keeps for Prometheus, read before and after a turn: what the turn drafted and
accepted.

They are believed only where they prove that nobody else was served: the server's own count of generated
tokens must have grown by exactly the tokens of this answer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Protocol

from prometheus_client.parser import text_string_to_metric_families

from engine_bindings.wire.answer_events import Counts
from harness.drivers.http_transport import ConnectionLostError, HttpCall, HttpTransport

# Counters are written when a request is done, by some servers a moment after its last byte: 40 looks, 50 ms
# apart.
LOOKS = 40
PAUSE_S = 0.05
# Names behind the server's prefix, without the ending of a counter; the first one that is there counts.
NAMES: dict[str, tuple[str, ...]] = {
    "generated_tokens": ("generation_tokens", "tokens_predicted"),
    "drafted_tokens": ("spec_decode_num_draft_tokens", "tokens_drafted"),
    "accepted_tokens": ("spec_decode_num_accepted_tokens", "tokens_drafted_accepted"),
}
_COUNTERS = frozenset(name for names in NAMES.values() for name in names)
# Elsewhere this counts the steps of the prefill too.
FORWARDS = "coli_ab:n_decode"
# vLLM has the counters of drafts if and only if it was started with speculation.
COUNTS_ALL_DRAFTS = "vllm"

METRICS = HttpCall(method="GET", path="//metrics")
LIMIT_S = 10.0
# A server with many models and histograms writes some hundred KiB.
MAX_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounts:
    """Totals since the server's start; None where it does not keep them."""

    generated_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    forwards: int | None = None

    def since(self, before: "ServerCounts") -> "ServerCounts":
        """Return what was added; a total that is new counts from 0, and one that fell says nothing."""
        added = {}
        for item in fields(ServerCounts):
            now, then = getattr(self, item.name), getattr(before, item.name)
            added[item.name] = None if now is None or now < (then or 0) else now - (then or 0)
        return ServerCounts(**added)


def parse_counts(text: str) -> ServerCounts | None:
    """Read the totals from Prometheus' text format, summed over models and engines.

    Returns:
        None when the text is something else, or holds no count of generated tokens.
    """
    totals = _sum_samples(text)
    found = {field: _find(totals, names) for field, names in NAMES.items()}
    if found["generated_tokens"] is None:
        return None
    counts = ServerCounts(**found, forwards=_find(totals, (FORWARDS,)))
    only_vllm = all(name.startswith(f"{COUNTS_ALL_DRAFTS}:") for name in totals if ":" in name)
    if counts.drafted_tokens is None and only_vllm:
        return replace(counts, drafted_tokens=0, accepted_tokens=0)
    return counts


def _sum_samples(text: str) -> Mapping[str, int]:
    """Return the value of every counter by its name without ``_total``; nothing when the text is broken.

    NaN and infinity, which gauges may have, are left out; for a counter that is read here they are a break.
    """
    totals: dict[str, int] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if ":" in sample.name and not sample.name.endswith(("_bucket", "_created", "_sum", "_count")):
                    name = sample.name.removesuffix("_total")
                    if math.isfinite(sample.value):
                        totals[name] = totals.get(name, 0) + int(sample.value)
                    elif name.partition(":")[2] in _COUNTERS:
                        return {}
    except (ValueError, LookupError, AttributeError, TypeError):
        return {}
    return totals


def _find(totals: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    for wanted in names:
        for name, value in totals.items():
            if wanted in (name, name.partition(":")[2]):
                return value
    return None


async def fetch_metrics(transport: HttpTransport) -> str | None:
    """Return the text of ``/metrics``, None when the server has none or does not answer in time."""
    return await fetch_text(transport, METRICS)


async def fetch_text(transport: HttpTransport, call: HttpCall) -> str | None:
    """Return the text of a page, None when the server has none or does not answer in time."""
    deadline_ns = transport.now_ns() + round(LIMIT_S * 1e9)
    body = bytearray()
    try:
        async with transport.open(call) as exchange:
            head = await exchange.read_head(deadline_ns)
            if head is None or head.status != 200:
                return None
            while arrival := await exchange.receive(deadline_ns):
                if not arrival.data or len(body) > MAX_BYTES:
                    return body.decode("utf-8", "replace") if not arrival.data else None
                body += arrival.data
    except ConnectionLostError:
        return None
    return None


class TurnCounters(Protocol):
    """Counts that a server keeps beside its answers."""

    async def begin(self) -> None:
        """Read them before a turn."""

    async def end(self, counts: Counts) -> Counts:
        """Return the counts of an answer with what the server counted beside them."""


CountersKind = Callable[[HttpTransport, Callable[[str], None]], TurnCounters]


class MetricsCounters:
    """Reads a server's totals around each turn.

    Args:
        transport: the server.
        note: takes a remark for the log.
    """

    def __init__(self, transport: HttpTransport, note: Callable[[str], None]) -> None:
        self._transport = transport
        self._note = note
        self._absent = False
        self._before: ServerCounts | None = None

    async def begin(self) -> None:
        """Read the totals before a turn. A server that has none is not asked again."""
        self._before = None if self._absent else await self._read()
        self._absent = self._before is None

    async def end(self, counts: Counts) -> Counts:
        """Return the counts of an answer with what the server counted beside them.

        The answer's own numbers win where it has them.
        """
        if self._before is None or counts.completion_tokens is None:
            return counts
        added = None
        for look in range(LOOKS):
            if look:
                await self._transport.pause(PAUSE_S)
            now = await self._read()
            added = None if now is None else now.since(self._before)
            if added is not None and added.generated_tokens == counts.completion_tokens:
                beside = Counts(
                    drafted_tokens=added.drafted_tokens,
                    accepted_tokens=added.accepted_tokens,
                    forwards=added.forwards,
                )
                return beside.join(counts)
        seen = "nothing" if added is None else f"{added.generated_tokens} tokens"
        self._note(
            f"/metrics counted {seen} where the answer has {counts.completion_tokens}: somebody else was"
            " served, or it counts otherwise; its counts of this turn are not used"
        )
        return counts

    async def _read(self) -> ServerCounts | None:
        text = await fetch_metrics(self._transport)
        return None if text is None else parse_counts(text)
