"""The workflows and the action: one run at a time on the machine, a stated price, and names that exist."""

import re
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
    assert workflow["concurrency"] == {"group": "strix-halo", "cancel-in-progress": False}
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


@pytest.mark.parametrize("name", ["ci", "strix-halo"])
def test_workflows_ask_for_no_more_rights_than_they_use(name: str) -> None:
    permissions = read_yaml(f".github/workflows/{name}.yml")["permissions"]
    assert permissions["contents"] == "read"
    assert set(permissions) <= {"contents", "pull-requests"}
