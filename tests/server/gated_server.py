"""An engine and a model that passed a gate, for the tests of what a certificate allows."""

import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from engine_bindings.certificate import Evidence, issue_certificate, read_facts, write_certificate
from engine_bindings.certificate_key import read_or_create_key
from engine_bindings.registry import find_binding
from server.launch import build_launch, plan_start
from server.settings import ServerSettings
from server.speculation import Decision
from tests.server.server_builders import MODEL_DIR, write_engine

EVIDENCE = Evidence(
    run_id="20261130-120000-test", scenarios=("quick",), scenarios_digest="0" * 64, cells_compared=8,
    tokens_compared=100, near_tie_policy="explain", near_ties=0, verdict="pass",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """An engine and a model that passed a gate at depth 2, and the settings to serve them."""

    settings: ServerSettings
    engine: Path
    now: datetime

    def decide(self, **changes: object) -> Decision:
        """Decide as a start with changed settings would."""
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        return plan_start(settings, {}, self.now).decision


def build_gated(tmp_path: Path, now: datetime) -> Gated:
    """Certify a copy of the shipped model with a scripted engine, up to depth 2."""
    model_dir = tmp_path / "model"
    shutil.copytree(MODEL_DIR, model_dir)
    engine = write_engine(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    settings = ServerSettings(
        engine=f"reference={engine}", model_dir=model_dir, certificate=run, key_file=tmp_path / "key"
    )
    binding = find_binding(settings.engine)
    pins = build_launch(binding, settings, 2).pins
    facts = read_facts(binding, model_dir, 2, 1, pins, paths=("chat", "serve"))
    key = read_or_create_key(tmp_path / "key")
    write_certificate(
        run, issue_certificate(facts=facts, evidence=EVIDENCE, key=key, now=now, tool_version="0.1.0")
    )
    return Gated(settings=settings, engine=engine, now=now)
