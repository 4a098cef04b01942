"""Seals a certificate for a run that passed, so that a server may speculate on just what was compared."""

import datetime
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from engine_bindings.binding import Binding
from engine_bindings.certificate import (
    CERTIFICATE_NAME,
    Certificate,
    Evidence,
    Facts,
    issue_certificate,
    read_facts,
    write_certificate,
)
from engine_bindings.certificate_key import find_key_file, read_or_create_key
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import read_version
from harness.cli.output import write_note
from harness.cli.scenario_files import LoadedScenario
from harness.drivers.launcher import EngineLauncher
from harness.environment import Environment
from harness.plan import Arm, Plan
from harness.report import Report
from harness.rundir import read_run
from harness.verdict import count_near_ties, has_compared_arms

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
    if launcher.model_dir is None:
        write_note("no certificate: which engine and model a running server has is its word only\n")
        return False
    try:
        certificate = _issue(report, plan, launcher, scenarios, run_id=directory.name, key_file=key_file)
        _check_unchanged(certificate.facts, read_run(directory).environment)
        path = write_certificate(directory, certificate)
    except UsageError as error:
        write_note(f"no certificate: {error}\n")
        return False
    write_note(f"certificate: {path}, valid until {certificate.expires_at:%Y-%m-%d %H:%M} UTC\n")
    return True


def withdraw_certificate(report: Report, directory: Path) -> None:
    """Remove the certificate of a run whose verdict is no pass any more."""
    path = directory / CERTIFICATE_NAME
    if report.verdict.status != "pass" and path.exists():
        path.unlink()
        write_note(f"certificate withdrawn: the verdict of {directory} is no pass any more\n")


def _check_unchanged(facts: Facts, before: Environment) -> None:
    """Raise UsageError when the engine or the model is not what it was when the run began."""
    pairs = {
        "the engine": (facts.engine_digest, before.engine.digest),
        "config.json": (facts.config_digest, before.model.config_digest),
        "tokenizer.json": (facts.tokenizer_digest, before.model.tokenizer_digest),
        "the weights": (facts.weights_digest, before.model.weights_digest),
    }
    changed = [name for name, (now, then) in pairs.items() if now != then]
    if changed:
        raise UsageError(
            f"{' and '.join(changed)} changed while the run went on, so the cells are not of one engine",
            hint="run it again, and leave engine and model alone until it has ended",
        )


def _issue(
    report: Report,
    plan: Plan,
    launcher: EngineLauncher,
    scenarios: Sequence[LoadedScenario],
    *,
    run_id: str,
    key_file: Path | None,
) -> Certificate:
    if not has_compared_arms(report.comparison):
        raise UsageError(
            "only sampled answers were tested, and no token of one arm was held against another's",
            hint="add a scenario at temperature 0",
        )
    launch = launcher.launch(Arm(path="serve", depth=plan.depth), plan.scenarios[0])
    binding: Binding = launcher.binding
    assert launcher.model_dir is not None, "a server that runs already is not certified"  # noqa: S101
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
