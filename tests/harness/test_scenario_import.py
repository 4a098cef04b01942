"""Logged requests become a scenario that reads back, and whatever is not in it is said with its line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.errors import ScenarioError
from harness.redaction import Redactor
from harness.request_log import UnsupportedRequestError, parse_logged_request
from harness.scenario import Scenario, parse_scenario
from harness.scenario_import import EMPTY_RESULT, ImportedScenario, ScenarioImport
from harness.scenario_text import render_scenario


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str = "ok") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool(text: str) -> dict[str, str]:
    return {"role": "tool", "content": text, "tool_call_id": "1"}


CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
SYSTEM = {"role": "system", "content": "Be brief."}


def run_import(*lines: Any, **options: Any) -> ImportedScenario:
    reader = ScenarioImport(Redactor(), **options)
    for number, line in enumerate(lines, start=1):
        value = {"messages": line} if isinstance(line, list) else line
        try:
            reader.add(parse_logged_request(json.dumps(value), f"line {number}"))
        except UnsupportedRequestError as error:
            reader.refuse(f"line {number}", str(error))
    return reader.build("log", "From log.jsonl")


def shapes(scenario: Scenario) -> list[list[tuple[str, str, int]]]:
    return [[(t.kind, t.text, t.max_tokens) for t in c.turns] for c in scenario.conversations]


def test_requests_that_extend_one_another_are_one_conversation() -> None:
    first = [SYSTEM, user("a")]
    second = [*first, CALL, tool("42")]
    third = [*second, answer(), user("b")]
    imported = run_import(
        {"messages": first, "max_tokens": 10},
        {"messages": second, "max_tokens": 20},
        {"messages": third, "max_tokens": 30, "stop": ["\n"]},
    )

    (conversation,) = imported.scenario.conversations
    assert shapes(imported.scenario) == [[("user", "a", 10), ("tool", "42", 20), ("user", "b", 30)]]
    assert (conversation.id, conversation.category, conversation.system) == ("c1", "agent", "Be brief.")
    assert [turn.stop for turn in conversation.turns] == [(), (), ("\n",)]
    assert imported.requests == 3


def test_conversations_may_be_interleaved() -> None:
    imported = run_import(
        [user("a")], [user("x")], [user("a"), answer(), user("b")], [user("x"), answer(), user("y")]
    )

    assert shapes(imported.scenario) == [
        [("user", "a", 256), ("user", "b", 256)],
        [("user", "x", 256), ("user", "y", 256)],
    ]


def test_another_system_message_is_another_conversation() -> None:
    imported = run_import([user("a")], [SYSTEM, user("a"), answer(), user("b")])

    assert len(imported.scenario.conversations) == 2


def test_a_history_that_was_never_asked_for_itself_takes_the_cap_of_its_request() -> None:
    imported = run_import({"messages": [user("a"), answer(), user("b")], "max_tokens": 5})

    assert shapes(imported.scenario) == [[("user", "a", 5), ("user", "b", 5)]]


def test_a_request_that_comes_again_is_kept_once() -> None:
    imported = run_import([user("a")], [user("a")])

    assert len(imported.scenario.conversations) == 1
    assert "line 2: the same request as an earlier one: kept once" in imported.notes


def test_completions_continue_one_another() -> None:
    imported = run_import(
        {"request": {"prompt": "Once", "max_tokens": 4}, "response": {"choices": [{"text": " upon"}]}},
        {"request": {"prompt": "Once upon a", "max_tokens": 4}},
        {"request": {"prompt": "Once upon a time", "max_tokens": 4}},
        {"request": {"prompt": "Other", "max_tokens": 4}},
        {"request": {"prompt": "Other", "max_tokens": 4}},
    )

    assert shapes(imported.scenario) == [
        [("prompt", "Once", 4), ("append", " a", 4), ("prompt", "Once upon a time", 4)],
        [("prompt", "Other", 4)],
    ]
    assert "line 5: the same request as an earlier one: kept once" in imported.notes


def test_several_messages_in_a_row_are_one_turn() -> None:
    imported = run_import([SYSTEM, SYSTEM, user("a"), CALL, tool("1"), tool("2"), user("b")])

    (conversation,) = imported.scenario.conversations
    assert conversation.system == "Be brief.\n\nBe brief."
    assert [turn.text for turn in conversation.turns] == ["a", "1\n\n2\n\nb"]
    assert [turn.kind for turn in conversation.turns] == ["user", "user"]
    assert any("joined to one turn" in note for note in imported.notes)
    assert any("several system messages" in note for note in imported.notes)


def test_an_empty_result_of_a_tool_has_a_text() -> None:
    imported = run_import([user("a"), CALL, tool("")])

    assert imported.scenario.conversations[0].turns[1].text == EMPTY_RESULT


def test_a_greeting_is_left_out() -> None:
    imported = run_import([answer("Welcome"), user("a")])

    assert shapes(imported.scenario) == [[("user", "a", 256)]]
    assert any("before the first question" in note for note in imported.notes)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([tool("1"), answer(), user("a")], "begins with the result of a tool"),
        ([user("a"), answer("To be")], "ends with the beginning of an answer"),
        ([SYSTEM], "asks nothing"),
        ([user("")], "a message of a user is empty"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "no text: image_url"),
    ],
)
def test_what_has_no_place_is_refused_by_line(messages: list[Any], reason: str) -> None:
    imported = run_import([user("a")], messages)

    assert len(imported.scenario.conversations) == 1
    assert any(note.startswith("line 2: refused: ") and reason in note for note in imported.notes)


def test_parameters_that_are_left_out_are_noted_once_with_their_lines() -> None:
    lines = [{"messages": [user(str(n))], "tools": [{}], "temperature": 1, "max_tokens": 1} for n in range(9)]

    assert run_import(*lines).notes == (
        "line 1, line 2, line 3, line 4, line 5, line 6 and 3 more: tools is left out: a scenario has no such"
        " thing",
        "line 1, line 2, line 3, line 4, line 5, line 6 and 3 more: asked for a temperature above 0; the"
        " scenario is greedy, to be comparable",
    )


def test_a_log_without_a_request_says_why() -> None:
    with pytest.raises(ScenarioError, match="line 1: refused: neither messages nor prompt"):
        run_import({"x": 1})
    with pytest.raises(ScenarioError, match="no request"):
        run_import()


def test_secrets_are_in_no_text() -> None:
    key = "sk-abcdefghijklmnop"
    imported = run_import(
        {"messages": [{"role": "system", "content": key}, user(f"use {key}")], "stop": [key]},
        {"prompt": f"/home/jane {key}"},
        {"input": 1, key: 2},
    )

    written = render_scenario(imported.scenario) + "".join(imported.notes)
    assert key not in written
    assert "jane" not in written


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
messages = st.lists(
    st.one_of(texts.map(user), texts.map(answer), texts.map(tool), st.just(SYSTEM)), min_size=1, max_size=6
)


@given(st.lists(messages, min_size=1, max_size=5))
def test_whatever_is_imported_reads_back(log: list[list[dict[str, Any]]]) -> None:
    try:
        scenario = run_import(*log).scenario
    except ScenarioError:
        return

    assert parse_scenario(render_scenario(scenario), "log.toml", lambda _: "") == scenario
