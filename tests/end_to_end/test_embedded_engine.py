"""The whole way from the command line to the verdict on the embedded engine and its shipped model."""

import json
from pathlib import Path

import pytest

from engine_bindings.binding import EnginePath
from harness.report import Report
from harness.rundir import RunContents, read_run
from tests.end_to_end.comparisons import Compare


@pytest.fixture(scope="module")
def healthy(compare: Compare, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, RunContents, int]:
    out = tmp_path_factory.mktemp("healthy") / "run"
    # A depth that somebody left in the shell must not reach the engine.
    done = compare(out, "--json", DRAFT="1", COLI_LOGIT_GAP="1")
    return Report.from_json(done.stdout), read_run(out), done.returncode


def test_healthy_engine_passes_with_every_contrast_identical(
    healthy: tuple[Report, RunContents, int],
) -> None:
    report, _, status = healthy

    assert (report.verdict.status, status) == ("pass", 0)
    assert len(report.comparison.contrasts) == 8
    assert {contrast.state for contrast in report.comparison.contrasts} == {"identical"}


def test_engagement_is_shown_by_counters(healthy: tuple[Report, RunContents, int]) -> None:
    report, _, _ = healthy

    by_arm = {row.arm.label: row for row in report.arms}
    for off in ("chat/0", "serve/0"):
        assert by_arm[off].totals.tokens_per_forward == 1.0
        assert by_arm[off].totals.drafted_tokens == 0
    for on in ("chat/3", "serve/3"):
        speed = by_arm[on].totals.tokens_per_forward
        assert speed is not None
        assert speed > 1.2
    assert by_arm["chat/3"].totals == by_arm["serve/3"].totals


@pytest.mark.parametrize("path", ["chat", "serve"])
def test_counts_of_a_turn_add_up(healthy: tuple[Report, RunContents, int], path: EnginePath) -> None:
    _, contents, _ = healthy

    records = [
        record for record in contents.records if record.spec.arm.path == path and not record.spec.probe
    ]
    assert len(records) == 4
    for record in records:
        for turn in record.turns:
            assert turn.emitted_tokens is not None
            assert turn.forwards is not None
            assert turn.accepted_tokens == turn.emitted_tokens - turn.forwards
            assert (turn.prompt_tokens or 0) - (turn.cached_tokens or 0) == turn.prefill_tokens
        first, second, _ = record.turns
        assert (first.prompt_tokens or 0) + (first.emitted_tokens or 0) >= (second.cached_tokens or 0) > 0


def test_settings_of_the_shell_are_removed_and_named(healthy: tuple[Report, RunContents, int]) -> None:
    report, contents, _ = healthy

    assert contents.environment.removed_variables == ("COLI_LOGIT_GAP", "DRAFT")
    depths = {pin.value: [arm.label for arm in pin.arms] for pin in report.pins if pin.name == "DRAFT"}
    assert depths == {"0": ["chat/0", "serve/0"], "3": ["chat/3", "serve/3"]}


def test_environment_names_engine_and_model_by_digest(healthy: tuple[Report, RunContents, int]) -> None:
    environment = healthy[1].environment

    assert len(environment.engine.digest) == 64
    assert len(environment.model.weights_digest) == 64
    assert environment.cpu_count >= 1


def test_packaged_checkpoint_gets_no_state_files(healthy: tuple[Report, RunContents, int]) -> None:
    directory = Path(healthy[1].environment.model.directory)

    assert not [path.name for path in directory.iterdir() if path.name.startswith(".coli_")]


def test_plan_and_records_are_one_value_each(healthy: tuple[Report, RunContents, int]) -> None:
    contents = healthy[1]

    plan = json.loads((contents.path / "plan.json").read_text())
    assert [cell["scenario"] for cell in plan["cells"]] == ["short"] * 8
    # The last two ask for logprobs.
    assert len((contents.path / "cells.jsonl").read_text().splitlines()) == 10
