"""Models, health, metrics, profile, tokens and the description of the interface."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.server_builders import MODEL, OFF, run_server, until

pytestmark = pytest.mark.anyio


async def test_models(tmp_path: Path) -> None:
    async with run_server(tmp_path) as running:
        listed = (await running.client.get("/v1/models")).json()
        one = (await running.client.get(f"/v1/models/{MODEL}")).json()
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["max_model_len"]) == (MODEL, "model", 4096)


async def test_health_says_why_mtp_is_off(tmp_path: Path) -> None:
    async with run_server(tmp_path, decision=OFF) as running:
        await until(lambda: running.service.status() == "ok")
        health = (await running.client.get("/health")).json()
    assert health["mtp"]["enabled"] is False
    assert health["mtp"]["reason"] == OFF.reason
    assert health["engine"]["takes_options"] is True


async def test_metrics_add_up(tmp_path: Path) -> None:
    async with run_server(tmp_path) as running:
        usages = [(await running.chat(temperature=0)).json()["usage"] for _ in range(2)]
        text = (await running.client.get("/metrics")).text
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }
    details = [usage["completion_tokens_details"] for usage in usages]
    accepted = sum(one["accepted_prediction_tokens"] for one in details)
    drafted = accepted + sum(one["rejected_prediction_tokens"] for one in details)
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert values["coli_ab:spec_decode_num_accepted_tokens_total"] == accepted > 0
    assert values["coli_ab:spec_decode_num_draft_tokens_total"] == drafted
    assert values["coli_ab:generation_tokens_total"] == values["coli_ab:tokens_predicted_total"] == generated
    assert values["coli_ab:prefix_cache_hits_total"] == usages[1]["prompt_tokens_details"]["cached_tokens"]
    assert values["coli_ab:n_decode_total"] == generated - accepted
    assert values["coli_ab:mtp_enabled"] == 1
    assert values["coli_ab:time_to_first_token_seconds_count"] == 2
    assert values["coli_ab:requests_processing"] == values["coli_ab:num_requests_waiting"] == 0


async def test_the_profile_keeps_the_last_turns(tmp_path: Path) -> None:
    async with run_server(tmp_path) as running:
        answers = [(await running.chat(temperature=0, n=2)).json() for _ in range(61)]
        turns = (await running.client.get("/profile")).json()["turns"]
    assert len(turns) == 120
    assert turns[-1]["id"] == answers[-1]["id"]
    assert turns[-1]["choice"] == 1
    assert turns[-1]["forwards"] == turns[-1]["completion_tokens"] - turns[-1]["accepted_tokens"]


@pytest.mark.parametrize("text", ["Hello, 世界", "<|user|>Hi<think>", "a\x01\x01END\x01\x01 ", ""])
async def test_tokens_and_back(tmp_path: Path, text: str) -> None:
    async with run_server(tmp_path) as running:
        post = running.client.post
        special = (await post("/tokenize", json={"content": text})).json()
        plain = (await post("/tokenize", json={"prompt": text, "parse_special": False})).json()
        back = [
            (await post("/detokenize", json={"tokens": one["tokens"]})).json()["content"]
            for one in (special, plain)
        ]
    assert back == [text, text]
    assert (special["tokens"] == plain["tokens"]) == ("<|user|>" not in text)
    assert special["count"] == len(special["tokens"])


async def test_tokens_of_a_conversation_are_the_prompts(tmp_path: Path) -> None:
    async with run_server(tmp_path) as running:
        messages = [{"role": "user", "content": "Hello"}]
        tokens = (await running.client.post("/tokenize", json={"messages": messages})).json()["tokens"]
        await running.chat()
        (turn,) = running.submitted()
    assert turn["ids"] == tokens


async def test_pieces_show_parts_of_characters_as_bytes(tmp_path: Path) -> None:
    async with run_server(tmp_path) as running:
        body = {"content": "a世", "with_pieces": True}
        tokens = (await running.client.post("/tokenize", json=body)).json()["tokens"]
    spelled = [one["piece"] for one in tokens]
    assert spelled[0] == "a"
    assert bytes(byte for piece in spelled[1:] for byte in piece).decode() == "世"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, "content"),
        ("/detokenize", {"tokens": [100_000]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_bad_token_requests(tmp_path: Path, path: str, body: dict[str, object], param: str) -> None:
    async with run_server(tmp_path) as running:
        response = await running.client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_the_description_names_every_route(tmp_path: Path) -> None:
    async with run_server(tmp_path) as running:
        description = (await running.client.get("/openapi.json")).json()
        routes = {route.path.replace(":path", "") for route in running.app.routes}  # type: ignore[attr-defined]
    assert set(description["paths"]) == routes
    chat = description["components"]["schemas"]["ChatBody"]
    assert chat["additionalProperties"] is False
    assert {"messages", "seed", "user", "logit_bias"} <= set(chat["properties"])
