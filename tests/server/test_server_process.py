"""`python -m server` as a process, and the official client against it."""

import asyncio
import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.server.gated_server import EVIDENCE, build_gated
from tests.server.server_builders import MODEL
from tests.server.server_process import LIMIT_S, ServerProcess

CALL = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
SCRIPT: dict[str, Any] = {
    "replies": [
        {"match": "Weather", "text": CALL},
        {"match": "Person", "text": '{"name": "Ada", "age": 36}'},
        {"match": "Think", "text": "let me see</think>42"},
        {"match": "slow", "text": "one two ", "repeat": True, "fault": "hold", "after": 6},
    ]
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = ServerProcess(tmp_path_factory.mktemp("server"), **SCRIPT)
    first, second = process.line(), process.line()
    assert first == "coli-ab serve: MTP off: no certificate was given (--certificate RUN)"
    assert second.startswith("listening on http://127.0.0.1:")
    yield second.removeprefix("listening on ") + "/v1"
    assert process.end() == 0


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("Hello"))
    assert answer.choices[0].message.content is not None
    assert answer.choices[0].message.content.startswith("answer ")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None


def test_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=user("Hello"), temperature=0)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=user("Hello"),
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_tools(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("Weather"), tools=[WEATHER])
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with client.chat.completions.stream(model=MODEL, messages=user("Weather"), tools=[WEATHER]) as stream:
        final = stream.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls or []
    assert streamed.function.arguments == call.function.arguments


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=user("Person"), response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)


def test_logprobs_and_reasoning(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=user("Think"), logprobs=True, top_logprobs=2, reasoning_effort="high"
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    assert answer.usage is not None
    assert len(choice.logprobs.content or []) == answer.usage.completion_tokens
    assert choice.message.content == "42"
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "let me see"


def test_raw_response_and_errors(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user("Hello"))
    assert raw.http_response.headers["content-type"] == "application/json"
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="gpt-4", messages=user("Hello"))
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=user("Hello"), frequency_penalty=1)
    assert (bad.value.code, bad.value.param) == ("unsupported", "frequency_penalty")


def test_completions_and_models(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Hello", max_tokens=5, logprobs=1)
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or []) == 5
    assert [model.id for model in client.models.list()] == [MODEL]


def test_many_clients_at_once(url: str) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", timeout=LIMIT_S) as client:
            requests = (
                client.chat.completions.create(model=MODEL, messages=user(f"Number {index}"), temperature=0)
                for index in range(20)
            )
            return [answer.choices[0].message.content for answer in await asyncio.gather(*requests)]

    first, second = asyncio.run(ask()), asyncio.run(ask())
    assert first == second
    assert len(set(first)) == 20


def test_a_stream_that_is_closed_frees_the_engine(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=user("slow"), stream=True)
    next(stream)
    stream.close()
    assert client.chat.completions.create(model=MODEL, messages=user("Hello")).choices


def test_a_signal_lets_what_runs_finish(tmp_path: Path) -> None:
    release = tmp_path / "release"
    reply = SCRIPT["replies"][3] | {"release_file": str(release)}
    process = ServerProcess(tmp_path, replies=[reply])
    base_url = process.url() + "/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        stream = client.chat.completions.create(model=MODEL, messages=user("slow"), stream=True, max_tokens=9)
        next(stream)
        process.popen.send_signal(signal.SIGTERM)
        release.touch()
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    process.popen.communicate(timeout=LIMIT_S)
    assert process.popen.returncode == 0


def test_with_a_certificate_the_first_line_and_health_name_the_run(tmp_path: Path) -> None:
    gated = build_gated(tmp_path, datetime.now(UTC))
    certificate, key = str(gated.settings.certificate), str(gated.settings.key_file)
    options = ["--certificate", certificate, "--key-file", key, "--require-mtp"]
    model = ["--model", str(gated.settings.model_dir)]
    process = ServerProcess(tmp_path, *options, *model, engine=gated.engine)
    first = process.line()
    url = process.line().removeprefix("listening on ")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=LIMIT_S) as client:
        answer = client.chat.completions.create(model="model", messages=user("Hello"), temperature=0)
    health = httpx.get(f"{url}/health").json()
    assert process.end() == 0
    assert first == f"coli-ab serve: MTP on, depth 2: certified by run {EVIDENCE.run_id} up to depth 2"
    assert health["mtp"]["certified_by"] == EVIDENCE.run_id
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert (answer.usage.completion_tokens_details.accepted_prediction_tokens or 0) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "::"], "can be reached from outside, and there is no key"),
        (["--require-mtp"], "MTP is required and would be off: no certificate was given"),
        (["--engine", "nothing"], "unknown engine 'nothing'"),
        (["--model", "/nothing"], "there is no such directory"),
        (["--kv-slots", "0"], "0 is not between 1 and 16"),
        (["--audit", "1.5"], "1.5 is not between 0 and 1"),
    ],
)  # fmt: skip
def test_usage_errors_exit_with_2(tmp_path: Path, options: list[str], message: str) -> None:
    process = ServerProcess(tmp_path, *options)
    out, err = process.popen.communicate(timeout=LIMIT_S)
    assert process.popen.returncode == 2
    assert message in err
    assert out == ""


def test_an_engine_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "--start-timeout", "30", refuse_start=True)
    _, err = process.popen.communicate(timeout=LIMIT_S)
    assert process.popen.returncode == 4
    assert "this engine never starts" in err
