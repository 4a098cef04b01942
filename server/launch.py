"""From settings to what is started: the binding, the decision on MTP, and the engine's command."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from engine_bindings.binding import ArmSettings, Binding, Launch, build_environment
from engine_bindings.certificate import (
    Certificate,
    Problem,
    check_run_verdict,
    read_certificate,
    read_facts,
    verify_certificate,
)
from engine_bindings.certificate_key import find_key_file, read_key
from engine_bindings.errors import ColiAbError, UsageError
from engine_bindings.model_directory import remove_state
from engine_bindings.registry import find_binding
from server.engine_link import EngineCommand
from server.settings import ServerSettings
from server.speculation import Decision, decide_speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is about to run."""

    binding: Binding
    model_dir: Path
    decision: Decision


def plan_start(settings: ServerSettings, environment: Mapping[str, str], now: datetime | None = None) -> Plan:
    """Find engine and model, and decide whether to speculate. Raises ColiAbError when one cannot be had."""
    binding = find_binding(settings.engine)
    if "serve" not in binding.capabilities.paths:
        raise UsageError(f"the engine {binding.name!r} has no serve mode")
    model_dir = settings.model_dir or binding.default_model_dir()
    if model_dir is None:
        raise UsageError(f"the engine {binding.name!r} comes without a model", hint="give --model DIR")
    if not model_dir.is_dir():
        raise UsageError(f"--model {model_dir}: there is no such directory")
    certificate = settings.certificate

    def verify(certificate: Certificate, depth: int) -> tuple[Problem, ...]:
        key = read_key(find_key_file(settings.key_file, environment))
        launch = build_launch(binding, settings, depth)
        facts = read_facts(binding, model_dir, depth, settings.kv_slots, launch.pins)
        beside = () if settings.certificate is None else check_run_verdict(settings.certificate)
        return beside + verify_certificate(certificate, key=key, facts=facts, now=now or datetime.now(UTC))

    decision = decide_speculation(
        read=None if certificate is None else lambda: read_certificate(certificate),
        verify=verify,
        depth=settings.depth,
        kv_slots=settings.kv_slots,
    )
    return Plan(binding=binding, model_dir=model_dir, decision=decision)


def check_again(
    settings: ServerSettings, environment: Mapping[str, str], depth: int, now: datetime | None = None
) -> Decision:
    """Decide anew at the served depth: engine, model and clock are not what they were at the start."""
    try:
        return plan_start(replace(settings, depth=depth), environment, now).decision
    except (ColiAbError, OSError) as error:
        reason = f"the certificate cannot be verified again: {error}"
        return Decision(enabled=False, depth=0, reason=reason, field="certificate")


def build_launch(binding: Binding, settings: ServerSettings, depth: int) -> Launch:
    """Return how the engine is started at a depth; only context and slots differ from what a gate starts."""
    arm = ArmSettings(
        path="serve",
        depth=depth,
        cap_tokens=settings.context_tokens,
        context_tokens=settings.context_tokens,
    )
    return binding.launch(arm, {} if settings.kv_slots == 1 else {"KV_SLOTS": str(settings.kv_slots)})


def build_command(binding: Binding, settings: ServerSettings, depth: int, private_dir: Path) -> EngineCommand:
    """Return the command for one start on a private model directory, which is cleaned of earlier state."""
    remove_state(private_dir)
    launch = build_launch(binding, settings, depth)
    environment = build_environment(os.environ, launch.pins)
    environment[launch.model_variable] = str(private_dir)
    return EngineCommand(argv=launch.argv, environment=environment)
