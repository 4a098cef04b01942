"""All parts of a running server, put together once and started together."""

import asyncio
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from server.admission import Admission
from server.audit import AuditGuard
from server.audit_record import DifferenceStore
from server.chat_prompt import read_template
from server.engine_link import EngineCommand, EngineTimeouts
from server.engine_supervisor import EngineSupervisor
from server.generation import Generation
from server.jobs import JobBuilder
from server.launch import Plan, build_command
from server.observer import Observer
from server.profile_log import ProfileLog
from server.prometheus_metrics import Metrics
from server.sampling_defaults import read_sampling_defaults
from server.settings import ServerSettings
from server.slots import Slots
from server.speculation import Decision, SpeculationSwitch
from server.tokens import read_tokens

LOG = logging.getLogger("coli_ab.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the routes work with."""

    settings: ServerSettings
    builder: JobBuilder
    generation: Generation
    supervisor: EngineSupervisor
    admission: Admission
    switch: SpeculationSwitch
    guard: AuditGuard
    metrics: Metrics
    profile: ProfileLog
    fingerprint: str
    created: int

    def status(self) -> str:
        """Return the server's state in one word."""
        if self.admission.draining:
            return "draining"
        if self.supervisor.ready:
            return "ok"
        return "restarting" if self.supervisor.state == "ready" else self.supervisor.state

    def health(self) -> dict[str, Any]:
        """Return everything that `/health` tells."""
        decision, guard, supervisor = self.switch.decision, self.guard, self.supervisor
        return {
            "status": self.status(),
            "model": self.builder.model_id,
            "mtp": {
                "enabled": decision.enabled,
                "depth": decision.depth,
                "reason": decision.reason,
                "certified_by": decision.run_id,
                "switched_off_by_audit": self.switch.tripped,
            },
            "audit": {
                "rate": guard.rate,
                "available": supervisor.extension,
                "replayed": guard.replayed,
                "pending": guard.pending,
                "dropped": guard.dropped,
                "failed": guard.failed,
                "near_ties": guard.near_ties,
                "differences": guard.differences,
                "kept_file": guard.kept_file,
                "write_error": guard.write_error,
                "replayable": None if guard.obstacles is None else not guard.obstacles,
                "not_replayable_because": "; ".join(guard.obstacles or ()) or None,
            },
            "engine": {
                "state": supervisor.state,
                "restarts": supervisor.restarts,
                "last_failure": supervisor.last_failure,
                "takes_options": supervisor.extension,
            },
            "queue": {
                "running": self.admission.running,
                "waiting": self.admission.waiting,
                "limit": self.settings.queue_limit,
                "slots": self.settings.kv_slots,
            },
        }


def build_service(
    settings: ServerSettings,
    *,
    model_dir: Path,
    decision: Decision,
    command: Callable[[int], EngineCommand],
    engine_digest: str,
    created: int,
    check: Callable[[int], Decision] | None = None,
) -> Service:
    """Put a server together; nothing is started yet. ``command`` gives the engine's command for a depth.

    ``check`` decides anew whether a depth is certified, before every restart of the engine; it may block.

    Must be called inside a running event loop. Raises CheckpointError when a file of the model is missing
    or broken.
    """
    slots, switch = Slots(settings.kv_slots), SpeculationSwitch(decision)
    metrics, profile = Metrics(), ProfileLog()
    tokens = read_tokens(model_dir)
    timeouts = EngineTimeouts(
        start_s=settings.start_timeout_s,
        first_output_s=settings.first_output_timeout_s,
        progress_s=settings.progress_timeout_s,
    )
    supervisor = EngineSupervisor(lambda: command(switch.decision.depth), timeouts)
    supervisor.on_loss = slots.forget
    if check is not None:
        supervisor.before_restart = partial(verify_again, switch, check)
    admission = Admission(slots, settings.queue_limit)
    guard = AuditGuard(
        rate=settings.audit_rate,
        draw=random.random,
        store=DifferenceStore(settings.audit_dir, tokens),
        switch=switch,
        admission=admission,
        slots=slots,
        supervisor=supervisor,
        metrics=metrics,
    )
    admission.on_demand = guard.preempt
    service = Service(
        settings=settings,
        builder=JobBuilder(
            model_id=settings.model_id or model_dir.resolve().name,
            tokens=tokens,
            template=read_template(model_dir),
            defaults=read_sampling_defaults(model_dir),
            context_tokens=settings.context_tokens,
        ),
        generation=Generation(
            supervisor=supervisor,
            admission=admission,
            slots=slots,
            switch=switch,
            context_tokens=settings.context_tokens,
            listener=Observer(metrics, profile, guard),
        ),
        supervisor=supervisor,
        admission=admission,
        switch=switch,
        guard=guard,
        metrics=metrics,
        profile=profile,
        fingerprint=build_fingerprint(engine_digest, model_dir, decision),
        created=created,
    )
    watch_gauges(service)
    return service


async def verify_again(switch: SpeculationSwitch, check: Callable[[int], Decision]) -> None:
    """Switch MTP off when the certificate does not hold any more."""
    if not switch.decision.enabled:
        return
    decision = await asyncio.to_thread(check, switch.decision.depth)
    if not decision.enabled:
        switch.withdraw(decision)
        LOG.error("MTP is off now: %s", decision.reason)


def build_fingerprint(engine_digest: str, model_dir: Path, decision: Decision) -> str:
    """Return OpenAI's system fingerprint: it changes with the engine, the model's shape and the depth."""
    config = (model_dir / "config.json").read_bytes() if (model_dir / "config.json").is_file() else b""
    parts = f"{engine_digest} {decision.depth} ".encode() + config
    return "fp_" + hashlib.sha256(parts).hexdigest()[:12]


def watch_gauges(service: Service) -> None:
    """Let the metrics read the server's state."""
    admission, switch, supervisor = service.admission, service.switch, service.supervisor
    service.metrics.watch(
        {
            "num_requests_running": lambda: admission.running,
            "requests_processing": lambda: admission.running,
            "num_requests_waiting": lambda: admission.waiting,
            "requests_deferred": lambda: admission.waiting,
            "mtp_enabled": lambda: switch.decision.enabled,
            "mtp_depth": lambda: switch.decision.depth,
            "engine_ready": lambda: supervisor.ready,
            "engine_restarts": lambda: supervisor.restarts,
        }
    )


def command_for(plan: Plan, settings: ServerSettings, private_dir: Path) -> Callable[[int], EngineCommand]:
    """Return what gives the engine's command for a depth."""
    return lambda depth: build_command(plan.binding, settings, depth, private_dir)


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[None]:
    """Run the engine and the audit until the end of the block."""
    service.supervisor.start()
    audit = asyncio.create_task(service.guard.run())
    try:
        yield
    finally:
        service.admission.drain()
        audit.cancel()
        await asyncio.gather(audit, return_exceptions=True)
        await service.supervisor.stop()
