"""Every failure is OpenAI's error object, with the parameter and a code."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.tokens import Tokens
from tests.server.server_builders import LIMIT_S, MODEL, Running, run_server, until

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server for all that changes nothing in it."""
    async with run_server(tmp_path_factory.mktemp("shared"), limit_s=600) as running:
        yield running


BAD_BODIES: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"model": 5}, 400, "invalid_value", "model"),
    ({"messages": []}, 400, "invalid_value", "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_value", "messages.0.role"),
    ({"messages": [{"role": "user", "mood": 1}]}, 400, "unknown_parameter", "messages.0.mood"),
    ({"temperature": 2.5}, 400, "invalid_value", "temperature"),
    ({"temperature": "0"}, 400, "invalid_value", "temperature"),
    ({"top_p": 0}, 400, "invalid_value", "top_p"),
    ({"n": 5}, 400, "invalid_value", "n"),
    ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    ({"stop": [""]}, 400, "invalid_value", "stop.0"),
    ({"temprature": 1}, 400, "unknown_parameter", "temprature"),
    ({"frequency_penalty": 0.5}, 400, "unsupported", "frequency_penalty"),
    ({"logit_bias": {"5": 1}}, 400, "unsupported", "logit_bias"),
    ({"echo": 0}, 400, "unsupported", "echo"),
    ({"top_logprobs": 2}, 400, "invalid_value", "top_logprobs"),
    ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    (
        {"response_format": {"type": "json_object"}, "grammar": "root ::= 'a'"},
        400, "invalid_value", "response_format",
    ),
    ({"grammar": '{"type": "object"}'}, 400, "invalid_value", "grammar"),
    ({"grammar": "root ::= ("}, 400, "invalid_grammar", "grammar"),
    (
        {"grammar": 'root ::= "a"', "chat_template_kwargs": {"enable_thinking": True}},
        400, "unsupported", "grammar",
    ),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        400, "invalid_value", "tool_choice",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "status", "code", "param"), BAD_BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_bad_bodies(
    shared: Running, change: dict[str, Any], status: int, code: str, param: str, stream: bool
) -> None:
    body = {"model": MODEL, "messages": USER, "stream": stream} | change
    response = await shared.client.post(CHAT, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["param"].startswith(param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"5", b"\xff", b'{"model": NaN}', b"[" * 5000, b'{"a":' * 100 + b"1" + b"}" * 100,
     b'{"model":"checkpoint","messages":[{"role":"user","content":"\\ud800"}]}'],
)  # fmt: skip
async def test_bodies_that_are_no_json(shared: Running, raw: bytes) -> None:
    response = await shared.client.post(CHAT, content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["code"] in {"invalid_json", "invalid_value"}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "raw",
    [b'{"model":"checkpoint","prompt":"\xed\xa0\x80"}', '{"model":"checkpoint"}'.encode("utf-16"),
     '{"model":"checkpoint","prompt":"\ud800"}'.encode("utf-16", "surrogatepass"),
     '{"prompt":"\ud800"}'.encode("utf-16-le", "surrogatepass"), b'{"a":' + b"9" * 5000 + b"}"],
)  # fmt: skip
async def test_bodies_that_are_no_text(shared: Running, path: str, raw: bytes) -> None:
    response = await shared.client.post(path, content=raw)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_json")
    assert "sys." not in error["message"]


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', '{"\\ud800": 1}', '{"a":' * 900 + "1" + "}" * 900, "[" * 90000,
                  '{"a": NaN}', "5"],
)  # fmt: skip
async def test_arguments_of_calls_that_are_no_json(shared: Running, arguments: str) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    response = await shared.client.post(CHAT, json={"model": MODEL, "messages": messages})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_value")
    assert error["param"] == "messages.1.tool_calls.0.function.arguments"


async def test_half_a_surrogate_pair_is_named(shared: Running) -> None:
    raw = b'{"model":"checkpoint","messages":[{"role":"user","content":"\\ud800"}]}'
    error = (await shared.client.post(CHAT, content=raw)).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "messages.0.content")


async def test_parameters_without_effect_are_accepted(tmp_path: Path) -> None:
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "top_k": -1,
    }
    async with run_server(tmp_path) as running:
        response = await running.chat(**harmless, logit_bias={}, store=False, service_tier="auto")
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("prompt", "code", "param", "text"),
    [(["a", "b"], "unsupported", "prompt", "several"), ([[1], [2]], "unsupported", "prompt", "several"),
     ([1, -1], "invalid_value", "prompt.1", "greater"), ("", "empty_prompt", "prompt", "empty")],
)  # fmt: skip
async def test_prompts_of_completions(shared: Running, prompt: Any, code: str, param: str, text: str) -> None:
    response = await shared.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert text in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", [100, 25])
async def test_a_prompt_beyond_the_context_is_a_400(tmp_path: Path, stream: bool, words: int) -> None:
    # 100 words are more than the context; 25 and the template are just more than this engine's own limit.
    async with run_server(tmp_path, settings={"context_tokens": 35}) as running:
        response = await running.chat("a " * words, stream=stream)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [(CHAT, {"messages": [{"role": "user", "content": "a" * 200_000}]}, "messages"),
     ("/v1/completions", {"prompt": "a" * 200_000}, "prompt"),
     ("/v1/completions", {"prompt": [5] * 5000}, "prompt"),
     ("/tokenize", {"content": "a" * 200_000}, "content"),
     ("/tokenize", {"messages": [{"role": "user", "content": "a" * 200_000}]}, "messages")],
)  # fmt: skip
async def test_a_prompt_that_cannot_fit_is_refused_before_its_tokens_are_counted(
    shared: Running, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], param: str
) -> None:
    def encode(*_: object) -> tuple[int, ...]:
        raise AssertionError("tokens were counted")

    for name in ("encode", "encode_text", "encode_guarded"):
        monkeypatch.setattr(Tokens, name, encode)
    response = await shared.client.post(path, json={"model": MODEL, **body})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert "at most 4094 tokens" in error["message"]


async def test_a_large_body_leaves_the_server_responsive(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, encode = threading.Event(), threading.Event(), Tokens.encode

    def encode_slowly(tokens: Tokens, text: str) -> tuple[int, ...]:
        begun.set()
        assert go_on.wait(LIMIT_S)
        return encode(tokens, text)

    monkeypatch.setattr(Tokens, "encode", encode_slowly)
    body = {"content": "a" * 20_000}
    call = asyncio.create_task(shared.client.post("/tokenize", json=body))
    await until(begun.is_set)
    assert (await shared.client.get("/health")).json()["queue"]["running"] == 0
    go_on.set()
    assert (await call).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/health", 405),
        ("GET", "/v1/models/other", 404),
    ],
)
async def test_paths_and_methods(shared: Running, method: str, path: str, status: int) -> None:
    response = await shared.client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (status == 405)


async def test_a_body_that_is_too_large(tmp_path: Path) -> None:
    async with run_server(tmp_path, settings={"max_body_bytes": 1000}) as running:
        response = await running.chat("a" * 1000)

        async def pieces() -> Any:
            for _ in range(20):
                yield b"a" * 100

        in_pieces = await running.client.post(CHAT, content=pieces())
        assert (await running.chat("a" * 500)).status_code == 200
    assert response.status_code == in_pieces.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


async def test_the_key(tmp_path: Path) -> None:
    async with run_server(tmp_path, settings={"api_key": "s3cret"}) as running:
        client = running.client
        values = [b"", b"Bearer s3cre", b"s3cret", "Bearer s3crét".encode()]
        wrong = [await client.get("/v1/models", headers={"Authorization": value}) for value in values]
        right = await client.get("/v1/models", headers={"Authorization": "Bearer s3cret"})
        await until(lambda: running.service.status() == "ok")
        health = await client.get("/health")
    assert [response.status_code for response in wrong] == [401] * 4
    assert wrong[0].json()["error"]["code"] == "invalid_api_key"
    assert right.status_code == health.status_code == 200


async def test_errors_are_counted(tmp_path: Path) -> None:
    async with run_server(tmp_path) as running:
        await running.chat(temprature=1)
        text = (await running.client.get("/metrics")).text
    assert 'coli_ab:request_errors_total{code="unknown_parameter"} 1.0' in text


async def test_a_fault_of_the_server_is_a_500_without_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_server(tmp_path, raise_faults=False) as running:
        monkeypatch.setattr(type(running.service.profile), "turns", lambda self: 1 / 0)
        response = await running.client.get("/profile")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "division" not in response.text


async def test_error_bodies_are_json(shared: Running) -> None:
    response = await shared.client.get("/nothing")
    assert response.headers["content-type"] == "application/json"
    assert json.loads(response.text)["error"]["code"] == "not_found"
