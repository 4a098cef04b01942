"""Tells metrics, the profile and the audit what happens to jobs."""

import time

from server.audit import AuditGuard
from server.choice import Choice
from server.engine_turn import TurnRequest
from server.job import Ended, Job
from server.profile_log import ProfileLog
from server.prometheus_metrics import Metrics

NS_PER_S = 1e9


class Observer:
    """The one listener of Generation."""

    def __init__(self, metrics: Metrics, profile: ProfileLog, guard: AuditGuard) -> None:
        self._metrics = metrics
        self._profile = profile
        self._guard = guard

    def accepted(self, job: Job) -> None:
        """Note how long the job waited for the engine."""
        self._metrics.observe_queue((time.monotonic_ns() - job.received_ns) / NS_PER_S)

    def first_output(self, job: Job) -> None:
        """Note how long the client waited for the first text."""
        self._metrics.observe_first_token((time.monotonic_ns() - job.received_ns) / NS_PER_S)

    def finished(self, job: Job, request: TurnRequest, choice: Choice, ended: Ended) -> None:
        """Count a choice that ended well, and offer it to the audit."""
        self._metrics.count_end(ended)
        self._profile.add(job, ended, at_s=int(time.time()))
        self._guard.offer(job, request, choice, ended)
