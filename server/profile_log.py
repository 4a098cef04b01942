"""The last turns with their counts and times, for `GET /profile`."""

from collections import deque
from typing import Any

from server.job import Ended, Job
from server.usage import timings_object

# As many as the engine's own gateway keeps.
KEPT_TURNS = 120


class ProfileLog:
    """Keeps the last turns, oldest first."""

    def __init__(self) -> None:
        self._turns: deque[dict[str, Any]] = deque(maxlen=KEPT_TURNS)

    def add(self, job: Job, ended: Ended, *, at_s: int) -> None:
        """Add a turn that ended well."""
        counts = ended.counts
        self._turns.append(
            {
                "id": job.id,
                "choice": ended.choice,
                "at": at_s,
                "finish_reason": ended.finish_reason,
                "prompt_tokens": counts.prompt_tokens,
                "cached_tokens": counts.cached_tokens,
                "completion_tokens": counts.completion_tokens,
                "drafted_tokens": counts.drafted_tokens,
                "accepted_tokens": counts.accepted_tokens,
                "forwards": counts.forwards,
                "timings": timings_object(ended),
            }
        )

    def turns(self) -> list[dict[str, Any]]:
        """Return the turns."""
        return list(self._turns)
