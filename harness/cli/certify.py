"""Seals a certificate for a run that passed, so that a server may speculate on just what was compared."""

import datetime
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine_bindings.binding import Binding
from engine_bindings.certificate import (
    Certificate,
    Evidence,
    issue_certificate,
    read_facts,
    write_certificate,
)
from engine_bindings.certificate_key import find_key_file, read_or_create_key
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import read_version
from harness.cli.scenario_files import LoadedScenario
from harness.drivers.launcher import EngineLauncher
from harness.plan import Arm, Plan
from harness.report import Report
from harness.verdict import count_near_ties

SERVED_SLOTS = 1


def certify_run(
    report: Report,
    plan: Plan,
    launcher: EngineLauncher,
    scenarios: Sequence[LoadedScenario],
    *,
    directory: Path,
    key_file: Path | None,
) -> bool:
    """Write ``certificate.json`` into the directory of a run that passed; return whether there is one.

    Why there is none is said on stderr: the verdict of the run stands without it.
    """
    if report.verdict.status != "pass":
        return False
    try:
        certificate = _issue(report, plan, launcher, scenarios, run_id=directory.name, key_file=key_file)
        path = write_certificate(directory, certificate)
    except UsageError as error:
        sys.stderr.write(f"no certificate: {error}\n")
        return False
    sys.stderr.write(f"certificate: {path}, valid until {certificate.expires_at:%Y-%m-%d %H:%M} UTC\n")
    return True


def _issue(
    report: Report,
    plan: Plan,
    launcher: EngineLauncher,
    scenarios: Sequence[LoadedScenario],
    *,
    run_id: str,
    key_file: Path | None,
) -> Certificate:
    launch = launcher.launch(Arm(path="serve", depth=plan.depth), plan.scenarios[0])
    binding: Binding = launcher.binding
    facts = read_facts(
        binding, launcher.model_dir, plan.depth, SERVED_SLOTS, launch.pins, paths=binding.capabilities.paths
    )
    evidence = Evidence(
        run_id=run_id,
        scenarios=tuple(sorted(scenario.name for scenario in plan.scenarios)),
        scenarios_digest=_digest_scenarios(scenarios),
        cells_compared=report.comparison.cells_measured,
        tokens_compared=sum(contrast.tokens_compared for contrast in report.comparison.contrasts),
        near_tie_policy=plan.near_tie,
        near_ties=count_near_ties(report.comparison),
        verdict=report.verdict.status,
    )
    return issue_certificate(
        facts=facts,
        evidence=evidence,
        key=read_or_create_key(find_key_file(key_file, os.environ)),
        now=datetime.datetime.now(datetime.UTC),
        tool_version=read_version(),
    )


def _digest_scenarios(scenarios: Sequence[LoadedScenario]) -> str:
    digest = hashlib.sha256()
    for loaded in sorted(scenarios, key=lambda loaded: loaded.scenario.name):
        for name, text in sorted(loaded.files.items()):
            digest.update(f"{loaded.scenario.name}\0{name}\0{len(text.encode())}\0{text}".encode())
    return digest.hexdigest()
