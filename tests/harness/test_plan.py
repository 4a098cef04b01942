"""The plan: arms, contrasts, the order of cells and what may be asked for."""

from collections import Counter
from dataclasses import fields, replace

import pytest

from engine_bindings.binding import Capabilities, EntryKind
from engine_bindings.errors import UsageError
from harness.plan import (
    MAX_CELLS,
    MAX_REPETITIONS,
    SMALL_MODEL_BYTES,
    SMALL_MODEL_TIMEOUTS,
    Plan,
    Timeouts,
    build_plan,
    choose_entry,
    choose_timeouts,
)
from harness.record_json import from_json, to_json
from harness.scenario import Entry
from tests.harness.run_builders import SERVED, make_scenario


def test_the_arms_are_both_paths_with_and_without_speculation():
    plan = build_plan([make_scenario()], depth=2)
    assert [arm.label for arm in plan.arms] == ["chat/0", "chat/2", "serve/0", "serve/2"]


def test_the_contrasts_name_the_arms_that_must_agree():
    contrasts = build_plan([make_scenario()]).contrasts
    assert [(c.name, c.a.label, c.b.label) for c in contrasts[4:]] == [
        ("path off", "chat/0", "serve/0"),
        ("path on", "chat/3", "serve/3"),
        ("speculation chat", "chat/0", "chat/3"),
        ("speculation serve", "serve/0", "serve/3"),
    ]
    assert all(c.kind == "self" and c.a == c.b for c in contrasts[:4])


def test_every_arm_runs_every_scenario_in_every_repetition_once():
    plan = build_plan([make_scenario("a"), make_scenario("b")], repetitions=3)
    assert len(plan.cells) == len(set(plan.cells)) == 4 * 2 * 3
    assert [cell.repetition for cell in plan.cells] == sorted(cell.repetition for cell in plan.cells)


def test_a_linear_drift_weighs_on_all_arms_alike():
    plan = build_plan([make_scenario()], repetitions=8)
    weight: Counter[str] = Counter()
    for position, cell in enumerate(plan.cells):
        weight[cell.arm.label] += position
    assert len(set(weight.values())) == 1


def test_every_arm_comes_first_and_last_in_some_block():
    plan = build_plan([make_scenario()], repetitions=8)
    blocks = [plan.cells[i : i + 4] for i in range(0, len(plan.cells), 4)]
    assert {block[0].arm for block in blocks} == {block[-1].arm for block in blocks} == set(plan.arms)


def test_the_price_is_the_sum_of_all_caps():
    plan = build_plan([make_scenario(turns=2, cap=24)], repetitions=3)
    assert plan.worst_case_tokens == 4 * 3 * (2 * 2 * 24)


@pytest.mark.parametrize("depth", [1, 8])
def test_the_depths_at_the_edges_are_taken(depth: int):
    assert build_plan([make_scenario()], depth=depth).depth == depth


@pytest.mark.parametrize(
    ("names", "depth", "repetitions", "words"),
    [
        ([], 3, 2, "no scenario"),
        (["a", "a"], 3, 2, "named twice"),
        (["a"], 0, 2, "depth 0 is out of range 1 to 8"),
        (["a"], 9, 2, "depth 9 is out of range 1 to 8"),
        (["a"], 3, 0, "0 repetitions are out of range 1 to 1,000"),
        (["a"], 3, 10**9, "out of range 1 to 1,000"),
        ([f"s{n}" for n in range(8)], 3, 938, "are 30,016 engine starts, and 30,000 are the most"),
    ],
)
def test_an_impossible_request_is_refused(names: list[str], depth: int, repetitions: int, words: str):
    with pytest.raises(UsageError, match=words):
        build_plan([make_scenario(name) for name in names], depth=depth, repetitions=repetitions)


def test_as_many_cells_as_a_run_may_have_are_planned():
    plan = build_plan([make_scenario(f"s{n}") for n in range(10)], repetitions=750)
    assert len(plan.cells) == MAX_CELLS
    assert len(build_plan([make_scenario()], repetitions=MAX_REPETITIONS).cells) == 4 * MAX_REPETITIONS


def test_a_plan_survives_json():
    plan = build_plan([make_scenario()])
    assert from_json(Plan, to_json(plan)) == plan
    assert plan.to_dict()["cells"][0]["arm"] == {"path": "chat", "depth": 0, "slots": 1, "build": ""}


def test_a_cell_and_an_arm_have_names():
    plan = build_plan([make_scenario()])
    assert plan.cells[1].key == "chat/3 quick 0"
    with pytest.raises(KeyError):
        plan.scenario("other")


def test_a_small_model_waits_less_than_a_large_one() -> None:
    assert choose_timeouts(SMALL_MODEL_BYTES) == SMALL_MODEL_TIMEOUTS
    assert choose_timeouts(SMALL_MODEL_BYTES + 1) == Timeouts()
    for field in fields(Timeouts):
        assert getattr(SMALL_MODEL_TIMEOUTS, field.name) < getattr(Timeouts(), field.name)


def test_several_slots_are_an_arm_of_their_own_where_a_scenario_asks_for_them():
    plan = build_plan([make_scenario("one"), make_scenario("two", slots=2)], repetitions=1)
    assert [arm.label for arm in plan.arms] == ["chat/0", "chat/3", "serve/0", "serve/3", "serve/0x2"]
    slots = [c for c in plan.contrasts if c.kind == "slots"]
    assert [(c.name, c.a.label, c.b.label) for c in slots] == [("slots 2", "serve/0", "serve/0x2")]
    assert "self serve/0x2" in [c.name for c in plan.contrasts]
    assert [spec.key for spec in plan.cells if spec.arm.slots > 1] == ["serve/0x2 two 0"]
    assert plan.worst_case_tokens == 9 * 96


MANY_PATHS = Capabilities(
    paths=("chat", "serve", "cli", "gateway"),
    max_depth=5,
    frames_are_tokens=frozenset({"serve"}),
    reports_forwards=True,
    reports_drafted=True,
    reports_cached_tokens=True,
    entries={"chat": ("line", "prompt"), "cli": ("line",), "gateway": ("messages",)},
)


def test_every_other_path_is_held_against_the_first_at_each_depth() -> None:
    plan = build_plan([make_scenario()], capabilities=replace(MANY_PATHS, entries={}))
    pairs = {(c.name, c.a.label, c.b.label) for c in plan.contrasts if c.kind == "path"}
    assert pairs == {
        ("path off serve", "chat/0", "serve/0"),
        ("path on serve", "chat/3", "serve/3"),
        ("path off cli", "chat/0", "cli/0"),
        ("path on cli", "chat/3", "cli/3"),
        ("path off gateway", "chat/0", "gateway/0"),
        ("path on gateway", "chat/3", "gateway/3"),
    }


def test_path_that_cannot_run_a_scenario_is_left_out_and_said_to_be() -> None:
    plan = build_plan([make_scenario("exact")], capabilities=MANY_PATHS)
    assert {arm.path for arm in plan.arms} == {"chat", "serve", "gateway"}
    assert plan.left_out == ("not run on cli, which takes lines only: exact",)


def test_path_runs_only_the_scenarios_that_it_can() -> None:
    typed = replace(make_scenario("typed"), entry="line")
    plan = build_plan([make_scenario("exact"), typed], capabilities=MANY_PATHS, repetitions=1)
    assert {spec.scenario for spec in plan.cells if spec.arm.path == "cli"} == {"typed"}
    assert {spec.scenario for spec in plan.cells if spec.arm.path == "chat"} == {"exact", "typed"}


def test_engine_that_can_run_nothing_of_it_is_an_error() -> None:
    only_typed = replace(MANY_PATHS, paths=("cli",))
    with pytest.raises(UsageError, match="no path of the engine"):
        build_plan([make_scenario()], capabilities=only_typed)


def test_engine_at_one_depth_only_has_no_contrast_between_depths() -> None:
    plan = build_plan([make_scenario()], capabilities=replace(MANY_PATHS, entries={}, depths=(3,)))
    assert {arm.depth for arm in plan.arms} == {3}
    assert {c.kind for c in plan.contrasts} == {"self", "path"}


@pytest.mark.parametrize(
    ("entry", "kinds", "expected"),
    [
        ("prompt", ("line", "prompt"), "prompt"),
        ("prompt", ("messages",), "messages"),
        ("prompt", ("line",), None),
        ("line", ("prompt", "line"), "line"),
        ("line", ("messages",), "messages"),
    ],
)
def test_form_of_a_turn(entry: Entry, kinds: tuple[EntryKind, ...], expected: EntryKind | None) -> None:
    assert choose_entry(replace(make_scenario(), entry=entry), kinds) == expected


def test_raw_prompts_are_no_messages() -> None:
    scenario = make_scenario()
    first = scenario.conversations[0]
    raw = replace(first, turns=(replace(first.turns[0], kind="prompt"), *first.turns[1:]))
    assert choose_entry(replace(scenario, conversations=(raw,)), ("messages",)) is None


def test_a_server_found_running_has_one_arm_for_each_path_and_no_depth():
    plan = build_plan((make_scenario(),), capabilities=SERVED)

    assert [arm.label for arm in plan.arms] == ["chat/?", "whole/?"]
    assert [contrast.name for contrast in plan.contrasts] == ["self chat/?", "self whole/?", "path"]
    assert any("what speculation changes" in text for text in plan.left_out)
    assert (plan.cold_cells, plan.exact_prefixes, plan.max_depth) == (False, False, 0)


def test_a_scenario_that_no_path_takes_has_no_cells():
    raw = make_scenario("raw")
    raw = replace(
        raw,
        conversations=tuple(
            replace(one, turns=(replace(one.turns[0], kind="prompt"),)) for one in raw.conversations
        ),
    )
    able = replace(SERVED, entries=dict.fromkeys(SERVED.paths, ("messages",)))
    plan = build_plan((make_scenario(), raw), capabilities=able)

    assert {spec.scenario for spec in plan.cells} == {"quick"}
    assert any("takes messages only: raw" in text for text in plan.left_out)
