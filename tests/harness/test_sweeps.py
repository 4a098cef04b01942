"""Sweeps: which conversations come of them, for which depth."""

import pytest

from engine_bindings.errors import ScenarioError
from harness import sweeps
from harness.plan import build_plan
from harness.scenario import Scenario, parse_scenario
from harness.sweeps import expand_scenario, list_caps

HEAD = 'schema = 1\nname = "s"\n[defaults]\nmax_tokens = 5\n'


def parse(turns: str) -> Scenario:
    text = HEAD + '[[conversation]]\nid = "c"\n' + turns
    return parse_scenario(text, "s.toml", lambda name: "")


@pytest.mark.parametrize(
    ("depth", "caps"), [(1, (1, 2, 3)), (2, (1, 2, 3, 5)), (3, (1, 2, 3, 4, 7)), (8, (1, 2, 8, 9, 17))]
)
def test_the_grid_has_each_end_of_a_block_and_one_past_it_once(depth: int, caps: tuple[int, ...]):
    assert list_caps("grid", depth) == caps


def test_every_cap_reaches_four_blocks():
    assert list_caps("every", 3) == tuple(range(1, 17))


def test_a_swept_cap_gives_one_conversation_for_each_value_with_its_other_turns():
    swept = parse('[[conversation.turn]]\nuser = "a"\ncaps = "grid"\n[[conversation.turn]]\nuser = "b"\n')
    conversations = expand_scenario(swept, 2).conversations
    assert [c.id for c in conversations] == ["c.cap-1", "c.cap-2", "c.cap-3", "c.cap-5"]
    assert [[turn.max_tokens for turn in c.turns] for c in conversations] == [[1, 5], [2, 5], [3, 5], [5, 5]]
    assert {turn.sweep for c in conversations for turn in c.turns} == {None}


def test_swept_stop_strings_and_repeats():
    stops = expand_scenario(parse('[[conversation.turn]]\nuser = "a"\nstops = ["x", "yz"]\n'), 3)
    assert [(c.id, c.turns[0].stop) for c in stops.conversations] == [
        ("c.stop-1", ("x",)),
        ("c.stop-2", ("yz",)),
    ]
    repeats = expand_scenario(parse('[[conversation.turn]]\nuser = " a"\nrepeats = [1, 3]\n'), 3)
    assert [(c.id, c.turns[0].text) for c in repeats.conversations] == [
        ("c.times-1", " a"),
        ("c.times-3", " a a a"),
    ]


def test_a_plan_holds_the_sweeps_written_out_for_its_depth():
    swept = parse('[[conversation.turn]]\nuser = "a"\ncaps = "grid"\n')
    plan = build_plan([swept], depth=1, repetitions=1)
    assert [c.turns[0].max_tokens for c in plan.scenario("s").conversations] == [1, 2, 3]
    assert plan.worst_case_tokens == 4 * 6


def test_a_scenario_without_sweeps_is_left_as_it_is():
    plain = parse('[[conversation.turn]]\nuser = "a"\n')
    assert expand_scenario(plain, 3) == plain


def test_as_many_conversations_and_bytes_as_a_run_can_hold(monkeypatch: pytest.MonkeyPatch):
    stops = parse('[[conversation.turn]]\nuser = "a"\nstops = ["1", "2", "3", "4", "5", "6", "7"]\n')
    repeats = parse('[[conversation.turn]]\nuser = "ab"\nrepeats = [3, 10]\n')
    monkeypatch.setattr(sweeps, "MAX_CONVERSATIONS", 7)
    monkeypatch.setattr(sweeps, "MAX_TEXT_BYTES", 26)
    assert len(expand_scenario(stops, 3).conversations) == 7
    assert len(expand_scenario(repeats, 3).conversations) == 2

    monkeypatch.setattr(sweeps, "MAX_TEXT_BYTES", 25)
    with pytest.raises(ScenarioError, match="2 conversations with 26 bytes"):
        expand_scenario(repeats, 3)
    monkeypatch.setattr(sweeps, "MAX_CONVERSATIONS", 6)
    with pytest.raises(ScenarioError, match="its sweeps are 7 conversations"):
        expand_scenario(stops, 3)


def test_repeats_of_a_long_text_are_refused_before_they_are_made():
    text = "x" * 10_000_000
    with pytest.raises(ScenarioError, match="1,000,000,000,000 bytes"):
        expand_scenario(parse(f'[[conversation.turn]]\nuser = "{text}"\nrepeats = [100000]\n'), 3)
