"""The forwards of each turn from the `/profile` of the colibri engine's gateway, read before and after it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine_bindings.wire.answer_events import Counts
from harness.drivers.http_transport import HttpCall, HttpTransport
from harness.drivers.server_counters import LOOKS, PAUSE_S, fetch_text

# The session's address ends with /v1, and this page does not.
PROFILE = HttpCall(method="GET", path="//profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How many turns the gateway has profiled, and what it says of the last one."""

    turns: int
    completion_tokens: int | None = None
    forwards: int | None = None


def parse_profile(text: str) -> Profile | None:
    """Read the page; None when it is something else."""
    try:
        page = json.loads(text)
        last = page["turns"][-1] if page["turns"] else {}
        values = (page["seq"], last.get("completion_tokens"), last.get("forwards"))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    if type(values[0]) is not int or any(type(value) not in (int, type(None)) for value in values):
        return None
    return Profile(turns=values[0], completion_tokens=values[1], forwards=values[2])


class GatewayCounters:
    """Counts the forwards of each turn; ``note`` takes a remark for the log."""

    def __init__(self, transport: HttpTransport, note: Callable[[str], None]) -> None:
        self._transport = transport
        self._note = note
        self._before: Profile | None = None

    async def begin(self) -> None:
        """Read how many turns there were before this one."""
        self._before = await self._read()

    async def end(self, counts: Counts) -> Counts:
        """Return the counts of an answer with its forwards, where just one turn was profiled meanwhile."""
        before, now = self._before, None
        if before is None:
            self._note("no /profile, so the forwards of this turn are not reported")
            return counts
        for look in range(LOOKS):
            if look:
                await self._transport.pause(PAUSE_S)
            now = await self._read()
            if now is not None and now.turns > before.turns:
                break
        if now is None or now.turns != before.turns + 1:
            seen = "no page" if now is None else f"{now.turns - before.turns} turns"
            self._note(f"/profile shows {seen} where one was run: its forwards are not reported")
            return counts
        if now.completion_tokens != counts.completion_tokens:
            self._note(
                f"/profile counts {now.completion_tokens} tokens where the answer has"
                f" {counts.completion_tokens}: its forwards are not reported"
            )
            return counts
        return replace(counts, forwards=now.forwards)

    async def _read(self) -> Profile | None:
        text = await fetch_text(self._transport, PROFILE)
        return None if text is None else parse_profile(text)
