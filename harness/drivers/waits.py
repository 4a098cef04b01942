"""The named limits on waiting for an engine: which ones run now, and the error when one of them is over."""

from collections.abc import Callable
from typing import Literal

from engine_bindings.errors import EngineTimeoutError
from harness.plan import Timeouts

LimitName = Literal[
    "start-timeout", "first-output-timeout", "progress-timeout", "turn-timeout", "exit-timeout"
]

_WAITED_FOR: dict[LimitName, str] = {
    "start-timeout": "the engine was not ready",
    "first-output-timeout": "nothing of the answer arrived",
    "progress-timeout": "the answer stood still",
    "turn-timeout": "the turn did not end",
    "exit-timeout": "the engine did not exit after the end of its input",
}


class Waits:
    """The limits that run at the moment, as deadlines on one monotonic clock."""

    def __init__(self, timeouts: Timeouts, now_ns: Callable[[], int], *, place: str) -> None:
        self._now_ns = now_ns
        self._place = place
        self._limits_s: dict[LimitName, float] = {
            "start-timeout": timeouts.start_timeout_s,
            "first-output-timeout": timeouts.first_output_timeout_s,
            "progress-timeout": timeouts.progress_timeout_s,
            "turn-timeout": timeouts.turn_timeout_s,
            "exit-timeout": timeouts.exit_timeout_s,
        }
        self._deadlines_ns: dict[LimitName, int] = {}

    def begin(self, name: LimitName) -> None:
        """Start a limit, or start it again."""
        self._deadlines_ns[name] = self._now_ns() + round(self._limits_s[name] * 1e9)

    def cease(self, name: LimitName) -> None:
        """Stop a limit, if it runs."""
        self._deadlines_ns.pop(name, None)

    def note_output(self) -> None:
        """Take output as progress: the wait for the first output is over, the one for the next begins."""
        self.cease("first-output-timeout")
        self.begin("progress-timeout")

    @property
    def deadline_ns(self) -> int:
        """The earliest deadline."""
        return min(self._deadlines_ns.values())

    def timeout_error(self) -> EngineTimeoutError:
        """Return the error for the earliest deadline."""
        name = min(self._deadlines_ns, key=lambda limit: self._deadlines_ns[limit])
        limit_s = self._limits_s[name]
        return EngineTimeoutError(
            f"{self._place}: {_WAITED_FOR[name]} within {limit_s:g} s ({name})",
            limit_name=name,
            limit_s=limit_s,
        )
