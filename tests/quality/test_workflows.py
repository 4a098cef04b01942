"""The workflows and the action: one run at a time on the machine, a stated price, and names that exist."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.scenario_files import load_scenarios
from harness.plan import build_plan

ROOT = Path(__file__).parents[2]
MAX_TOKENS = 2000


def read_yaml(name: str) -> dict[str, Any]:
    # YAML 1.1 reads the key "on" as true.
    value = yaml.safe_load((ROOT / name).read_text())
    return {("on" if key is True else key): part for key, part in value.items()}


def test_one_machine_runs_one_job_and_finishes_what_it_began():
    workflow = read_yaml(".github/workflows/strix-halo.yml")
    assert workflow["concurrency"]["cancel-in-progress"] is False
    # Of the runs that wait only the last is kept: one for another label would push a real one out.
    ours = "github.event_name != 'pull_request' || github.event.label.name == 'strix-halo'"
    assert workflow["concurrency"]["group"] == f"${{{{ ({ours}) && 'strix-halo' || github.run_id }}}}"
    assert workflow["jobs"]["compare"]["if"] == ours
    assert workflow["jobs"]["compare"]["runs-on"] == ["self-hosted", "strix-halo"]


def test_code_of_strangers_runs_on_the_machine_only_by_a_label_given_for_it():
    workflow = read_yaml(".github/workflows/strix-halo.yml")
    assert workflow["on"]["pull_request"]["types"] == ["labeled"]
    assert "pull_request_target" not in workflow["on"]


def test_every_input_of_the_action_is_used_and_none_is_pasted_into_a_script():
    action = read_yaml("action.yml")
    text = (ROOT / "action.yml").read_text()
    for name in action["inputs"]:
        assert f"${{{{ inputs.{name} }}}}" in text, name
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_workflow_gives_only_inputs_that_the_action_takes():
    known = set(read_yaml("action.yml")["inputs"])
    steps = read_yaml(".github/workflows/strix-halo.yml")["jobs"]["compare"]["steps"]
    own = next(step for step in steps if step.get("uses") == "./")
    assert set(own["with"]) <= known


def test_options_of_the_action_exist():
    text = (ROOT / "action.yml").read_text()
    options = set(re.findall(r"(--[a-z-]+)", text)) - {"--quiet", "--engine", "--model"}
    source = (ROOT / "harness/cli/compare.py").read_text() + (ROOT / "harness/cli/report.py").read_text()
    assert {option for option in options if f'"{option}"' not in source} == set()


def test_the_default_scenario_has_every_class_and_an_agent_and_keeps_to_its_price():
    scenario = read_yaml("action.yml")["inputs"]["scenario"]["default"]
    loaded, classes = load_scenarios([scenario, "classes"])
    plan = build_plan([loaded.scenario], repetitions=1)
    assert plan.worst_case_tokens <= MAX_TOKENS
    wanted = {conversation.category for conversation in classes.scenario.conversations} | {"agent", "chat"}
    assert wanted <= {conversation.category for conversation in loaded.scenario.conversations}


FAKE = """#!/bin/sh
printf '%s\\n' "$@" -- >> "$CALLS"
case "$*" in *--dry-run*) exit "$DRY" ;; *"--format markdown"*) echo "the report"; exit 1 ;; esac
while [ $# -gt 1 ]; do if [ "$1" = --out ]; then touch "$2/report.json"; fi; shift; done
exit "$STATUS"
"""


def run_compare_step(
    tmp_path: Path, *, status: int = 0, dry: int = 0, **inputs: str
) -> tuple[dict[str, str], list[list[str]]]:
    """Run the step as the runner does, with a program in place of ours; return outputs and calls."""
    action = read_yaml("action.yml")
    (step,) = [step for step in action["runs"]["steps"] if step.get("id") == "compare"]
    program = tmp_path / "coli-ab-venv/bin/coli-ab"
    program.parent.mkdir(parents=True)
    program.write_text(FAKE)
    program.chmod(0o755)
    given = {name: str(spec.get("default", "")) for name, spec in action["inputs"].items()} | inputs
    env = {name: given[re.findall(r"inputs\.(\w+)", text)[0]] for name, text in step["env"].items()}
    files = {name: str(tmp_path / name) for name in ("CALLS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        Path(file).touch()
    fixed = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path), "DRY": str(dry), "STATUS": str(status)}
    script = tmp_path / "step.sh"
    script.write_text(step["run"])
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    subprocess.run(command, env=env | files | fixed, cwd=tmp_path, capture_output=True, check=False)
    lines = Path(files["GITHUB_OUTPUT"]).read_text().splitlines()
    calls = Path(files["CALLS"]).read_text().split("--\n")[:-1]
    return dict(line.split("=", 1) for line in lines), [call.splitlines() for call in calls]


def test_inputs_of_several_lines_are_taken_whole_and_run_nothing(tmp_path: Path) -> None:
    outputs, calls = run_compare_step(
        tmp_path,
        status=1,
        engine="main=a b\npr=$(touch pwned)\n",
        model="main=x\npr=y",
        scenario="quick\n*",
        options="--until fault\n--set A=1;touch pwned\n",
    )
    words = ["--engine", "main=a b", "--engine", "pr=$(touch pwned)", "--model", "main=x", "--model", "pr=y"]
    words += ["--until", "fault", "--set", "A=1;touch", "pwned", "--scenario", "quick", "*"]
    dry, real, *_ = calls
    assert dry == ["compare", "--depth", "3", "--repetitions", "1", *words, "--dry-run"]
    assert real[:-2] == dry[:-1]
    assert outputs["status"] == "1"
    assert Path(outputs["markdown"]).read_text() == "the report\n"
    assert not (tmp_path / "pwned").exists()


def test_a_wrong_command_line_and_an_engine_that_is_not_named_are_usage(tmp_path: Path) -> None:
    outputs, calls = run_compare_step(tmp_path / "a", dry=2, engine="colibri")
    assert (outputs["status"], len(calls)) == ("2", 1)
    # Without an engine the embedded one would be tested, and pass.
    outputs, calls = run_compare_step(tmp_path / "b", engine=" \n")
    assert (outputs["status"], calls) == ("2", [])


def test_a_comment_is_for_pull_requests_whose_token_may_write() -> None:
    steps = read_yaml(".github/workflows/strix-halo.yml")["jobs"]["compare"]["steps"]
    (comment,) = [step for step in steps if "gh pr comment" in step.get("run", "")]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in comment["if"]


@pytest.mark.parametrize("name", ["ci", "strix-halo"])
def test_workflows_ask_for_no_more_rights_than_they_use(name: str) -> None:
    permissions = read_yaml(f".github/workflows/{name}.yml")["permissions"]
    assert permissions["contents"] == "read"
    assert set(permissions) <= {"contents", "pull-requests"}
