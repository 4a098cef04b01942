"""Tool calls and structured output."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.server_builders import MODEL, run_server

pytestmark = pytest.mark.anyio
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["metric", "imperial"]},
    },
    "required": ["city"],
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather <now>", "parameters": PARAMETERS},
}
CALL = (
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>12</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
)
TWO_CALLS = {"match": "Hello", "text": f"Let me see.{CALL}\n<tool_call>now</tool_call>"}


async def test_calls_are_read_out_of_the_answer(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[TWO_CALLS]) as running:
        answer = (await running.chat(tools=[WEATHER])).json()
        (turn,) = running.submitted()
    (choice,) = answer["choices"]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert [call["function"]["name"] for call in calls] == ["get_weather", "now"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "12", "days": 3}
    assert calls[1]["function"]["arguments"] == "{}"
    assert len({call["id"] for call in calls}) == 2
    assert '"description": "Weather <now>"' in turn["prompt"]


async def test_calls_are_streamed_with_a_stable_index(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[TWO_CALLS]) as running:
        chunks = await running.stream(tools=[WEATHER])
    deltas = [delta for chunk in chunks for delta in chunk["choices"][0]["delta"].get("tool_calls", [])]
    names = {delta["index"]: delta["function"]["name"] for delta in deltas if "id" in delta}
    arguments: dict[int, str] = {}
    for delta in deltas:
        arguments[delta["index"]] = arguments.get(delta["index"], "") + delta["function"]["arguments"]
    assert names == {0: "get_weather", 1: "now"}
    assert json.loads(arguments[0]) == {"city": "12", "days": 3}
    assert json.loads(arguments[1]) == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_without_tools_markup_is_text(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[TWO_CALLS]) as running:
        plain = (await running.chat()).json()
        none = (await running.chat(tools=[WEATHER], tool_choice="none")).json()
        turns = running.submitted()
    for answer in (plain, none):
        assert answer["choices"][0]["message"]["content"] == TWO_CALLS["text"]
        assert answer["choices"][0]["finish_reason"] == "stop"
    assert turns[0]["prompt"] == turns[1]["prompt"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_a_forced_call_is_constrained(tmp_path: Path, choice: Any) -> None:
    async with run_server(tmp_path, replies=[TWO_CALLS]) as running:
        await running.chat(tools=[WEATHER], tool_choice=choice)
        await running.chat(tools=[WEATHER], tool_choice="auto")
        forced, free = running.submitted()
    assert forced["grammar"].startswith("%lark\nstart: answer\n")
    assert '"get_weather"' in forced["grammar"]
    assert forced["options"]["constrain"] == "1"
    assert (free["grammar"], free["options"]["constrain"]) == ("", "0")


async def test_results_of_calls_go_back_to_the_model(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[TWO_CALLS]) as running:
        message = (await running.chat(tools=[WEATHER])).json()["choices"][0]["message"]
        messages = [
            {"role": "user", "content": "Hello"},
            message,
            {
                "role": "tool",
                "tool_call_id": message["tool_calls"][0]["id"],
                "content": "<tool_call> 20 degrees",
            },
        ]
        body = {"model": MODEL, "messages": messages, "tools": [WEATHER]}
        response = await running.client.post("/v1/chat/completions", json=body)
        first, second = running.submitted()
        marker = running.service.builder.tokens.added_ids["<tool_call>"]
    assert response.status_code == 200
    assert CALL in second["prompt"]
    assert second["prompt"].endswith(
        "<|observation|><tool_response><tool_call> 20 degrees</tool_response><|assistant|><think></think>"
    )
    # The two calls of the answer and the one in the notice about tools; the one in the result stays text.
    assert second["ids"].count(marker) == first["ids"].count(marker) + 2


async def test_a_json_schema_is_the_grammar(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    async with run_server(tmp_path) as running:
        await running.chat(response_format=named)
        await running.chat(response_format={"type": "json_object"})
        await running.chat(response_format={"type": "text"})
        await running.chat(grammar='root ::= "a"')
        await running.chat(response_format=named, reasoning_effort="low")
        turns = running.submitted()
    assert json.loads(turns[0]["grammar"]) == schema
    assert json.loads(turns[1]["grammar"]) == {"type": "object"}
    assert [turn["options"]["constrain"] for turn in turns] == ["1", "1", "0", "1", "1"]
    assert turns[2]["grammar"] == ""
    assert turns[3]["grammar"] == 'root ::= "a"'
    assert "start: REASONING </think> answer" in turns[4]["grammar"]
