"""A scenario, rendered and parsed again, is the same scenario."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.scenario_files import load_scenarios
from harness.grammar import Grammar
from harness.minimize import is_valid
from harness.scenario import Conversation, Scenario, Sweep, Turn, parse_scenario
from harness.scenario_text import name_grammar_file, quote_text, render_scenario
from harness.sweeps import expand_scenario
from scenarios import scenario_paths

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
NUMBERS = st.integers(1, 50)
SWEEPS = st.one_of(
    st.none(),
    st.builds(Sweep, kind=st.just("cap"), values=st.sampled_from([("grid",), ("every",)])),
    st.builds(Sweep, kind=st.just("stop"), values=st.lists(TEXTS, min_size=1, max_size=3).map(tuple)),
    st.builds(Sweep, kind=st.just("repeat"), values=st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    sweep = draw(SWEEPS)
    kind = sweep.kind if sweep else ""
    first = Turn(
        kind=draw(st.sampled_from(["user", "prompt"])),
        text=draw(TEXTS),
        max_tokens=1 if kind == "cap" else draw(NUMBERS),
        stop=() if kind == "stop" else tuple(draw(st.lists(TEXTS, max_size=2))),
        expect=tuple(draw(st.lists(TEXTS, max_size=2))),
        expect_prompt_tokens=draw(st.none() | NUMBERS),
        sweep=sweep,
    )
    second = Turn(
        kind="append" if first.kind == "prompt" else "tool",
        text=draw(TEXTS),
        max_tokens=200,
        after=draw(st.sampled_from([None, 1])),
        cancel_after_tokens=draw(st.none() | NUMBERS),
        refusal=draw(st.sampled_from(["never", "possible", "expected"])),
    )
    talk = Conversation(
        id="c",
        category=draw(TEXTS),
        system=draw(st.none() | TEXTS) if first.kind == "user" else None,
        turns=(first, second),
        slot=draw(st.integers(0, 15)),
    )
    return Scenario(
        name="drawn",
        title=draw(TEXTS),
        description=draw(TEXTS),
        entry="prompt",
        temperature=draw(st.sampled_from([0.0, 0.7])),
        top_p=draw(st.sampled_from([1.0, 0.5])),
        conversations=(talk,),
        context_tokens=draw(st.none() | st.integers(16, 99)),
        slots=draw(st.just(1) if first.stop or sweep or second.answer_is_sure is False else st.just(2)),
    )


def parse(text: str, files: Mapping[str, str] | None = None) -> Scenario:
    return parse_scenario(text, "rendered.toml", (files or {}).__getitem__)


def files_of(scenario: Scenario) -> dict[str, str]:
    return {name_grammar_file(scenario): scenario.grammar.text} if scenario.grammar else {}


@given(scenarios())
def test_rendering_and_parsing_gives_the_same_scenario(scenario: Scenario):
    assert parse(render_scenario(scenario)) == scenario


@pytest.mark.parametrize("name", list(scenario_paths()))
def test_shipped_scenarios_survive_as_written_and_expanded(name: str):
    scenario = load_scenarios([name])[0].scenario
    assert parse(render_scenario(scenario), files_of(scenario)) == scenario
    expanded = expand_scenario(scenario, 3)
    assert parse(render_scenario(expanded), files_of(expanded)) == expanded


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="schema", text='{"type": "object"}', binds=True),
        Grammar(kind="gbnf", text='root ::= "a"\n', binds=False),
    ],
)
def test_grammar_is_a_file_beside_the_scenario(grammar: Grammar):
    scenario = replace(load_scenarios(["quick"])[0].scenario, grammar=grammar)

    assert parse(render_scenario(scenario), files_of(scenario)) == scenario
    assert is_valid(scenario)


def test_characters_that_a_string_cannot_hold_are_escaped():
    assert quote_text('a"b\\c\n\x02\x7f\U0001f98a') == '"a\\"b\\\\c\\n\\u0002\\u007f\U0001f98a"'
