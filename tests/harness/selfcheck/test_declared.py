"""The engine's list of defects is read strictly."""

import json
import subprocess
import sys

import pytest

from engine_bindings.errors import EngineStartError, UsageError
from harness.selfcheck.declared import parse_defects, select_defects
from harness.selfcheck.places import COMMON_PLACES, FAST_PLACES, SCENARIOS, list_places
from scenarios import scenario_paths
from tests.harness.selfcheck.selfcheck_samples import make_control, make_defect

ENGINE = (sys.executable, "-m", "engine_bindings.reference.host")


@pytest.fixture(scope="module")
def listed() -> bytes:
    return subprocess.run([*ENGINE, "--list-defects", "--json"], capture_output=True, check=True).stdout


def test_the_engine_and_the_harness_understand_each_other(listed: bytes):
    defects = parse_defects(listed)
    assert {defect.name for defect in defects if defect.is_control} == {
        "near-tie",
        "cold-warm-tie",
        "batch-tie",
        "kernel-switch",
    }
    assert all(defect.unavailable for defect in defects if not defect.available)


def test_every_place_belongs_to_a_defect_of_the_engine(listed: bytes):
    assert set(FAST_PLACES) <= {defect.name for defect in parse_defects(listed)}


def test_every_place_is_a_shipped_scenario_of_the_full_form():
    assert set(SCENARIOS) <= set(scenario_paths())
    for places in (COMMON_PLACES, *FAST_PLACES.values()):
        assert set(places) <= set(SCENARIOS)
    assert list_places("anything") == COMMON_PLACES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "the list"),
        ("nonsense", "the list"),
        (json.dumps([make_defect().model_dump() | {"verdict": "guilty"}]), "0.verdict"),
        (json.dumps([make_defect().model_dump() | {"severity": 1}]), "0.severity"),
    ],
)
def test_another_list_is_refused_with_the_place(text: str, words: str):
    with pytest.raises(EngineStartError, match=words):
        parse_defects(text)


def test_defects_are_chosen_by_name_in_the_order_of_the_list():
    defects = (make_defect("a"), make_defect("b"), make_control("c"))
    assert select_defects(defects, ["c", "a"]) == (defects[0], defects[2])
    assert select_defects(defects, []) == defects


def test_a_name_that_is_not_there_is_refused_with_a_guess():
    with pytest.raises(UsageError) as caught:
        select_defects((make_defect("keep-rejected-kv"),), ["keep-rejected-kw"])
    assert "did you mean 'keep-rejected-kv'?" in caught.value.hint
