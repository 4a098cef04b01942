"""The decodes that llama.cpp's server counts for Prometheus, read before and after a turn.

One decode takes a prompt in, because the batch is as large as the context; the others are the forwards of the
turn. They are believed only where the server's count of generated tokens grew by those of this answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine_bindings.llamacpp import MAX_DEPTH
from engine_bindings.wire.answer_events import Counts
from harness.drivers.http_transport import HttpTransport
from harness.drivers.server_counters import LOOKS, PAUSE_S, fetch_metrics

DECODES = "llamacpp:n_decode_total"
GENERATED = "llamacpp:tokens_predicted_total"
BUSY = "llamacpp:requests_processing"
PROMPT_DECODES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals since the server's start, and the requests that are being answered."""

    decodes: int
    generated_tokens: int
    busy: int = 0


def parse_totals(text: str) -> Totals | None:
    """Read the totals; None when one is missing or no number."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in (DECODES, GENERATED, BUSY):
            try:
                found[name] = int(float(value))
            except (ValueError, OverflowError):
                return None
    if DECODES not in found or GENERATED not in found:
        return None
    return Totals(decodes=found[DECODES], generated_tokens=found[GENERATED], busy=found.get(BUSY, 0))


class LlamaCounters:
    """Counts the forwards of each turn; ``note`` takes a remark for the log."""

    def __init__(self, transport: HttpTransport, note: Callable[[str], None]) -> None:
        self._transport = transport
        self._note = note
        self._before: Totals | None = None

    async def begin(self) -> None:
        """Read the totals before a turn, once the server has let go of a turn that was cancelled."""
        for look in range(LOOKS):
            if look:
                await self._transport.pause(PAUSE_S)
            self._before = await self._read()
            if self._before is None or not self._before.busy:
                return

    async def end(self, counts: Counts) -> Counts:
        """Return the counts of an answer with its forwards, where the totals prove them.

        The server counts a stop token as generated, the answer does not.
        """
        before, emitted = self._before, counts.completion_tokens
        if before is None or emitted is None:
            return counts
        generated = None
        for look in range(LOOKS):
            if look:
                await self._transport.pause(PAUSE_S)
            now = await self._read()
            if now is None:
                continue
            generated = now.generated_tokens - before.generated_tokens
            forwards = now.decodes - before.decodes - PROMPT_DECODES
            if generated in (emitted, emitted + 1) and forwards >= 0:
                return self._drop_behind(replace(counts, forwards=forwards), stopped=generated > emitted)
        self._note(
            f"/metrics counted {generated} generated tokens where the answer has {emitted}: somebody else was"
            " served; the forwards of this turn are not reported"
        )
        return counts

    def _drop_behind(self, counts: Counts, *, stopped: bool) -> Counts:
        """Take drafts behind a stop token off the accepted ones: they were right, but were not kept.

        The server adds all drafts that a forward proved right, and only then looks for a stop token in them.
        """
        accepted, forwards, emitted = counts.accepted_tokens, counts.forwards, counts.completion_tokens
        if not stopped or accepted is None or forwards is None or emitted is None:
            return counts
        behind = accepted - (emitted - forwards)
        if not 0 < behind < MAX_DEPTH:
            return counts
        self._note(f"{behind} of {accepted} accepted drafts stood behind the stop token and were not kept")
        return replace(counts, accepted_tokens=accepted - behind)

    async def _read(self) -> Totals | None:
        text = await fetch_metrics(self._transport)
        return None if text is None else parse_totals(text)
