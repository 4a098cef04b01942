"""What a server says of itself, in the words of each kind; only the list of models must be there."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from engine_bindings.chat_template import render_messages
from engine_bindings.errors import UsageError
from engine_bindings.served_facts import (
    CHAT,
    ServedFacts,
    ServerAsker,
    check_url,
    is_loopback,
    read_served_facts,
)

URL = "http://127.0.0.1:9/v1"
MODELS = {"object": "list", "data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}
OURS = render_messages(CHAT).decode()


def serve(pages: Mapping[str, Any], *, key: str | None = None) -> ServedFacts:
    def answer(request: httpx.Request) -> httpx.Response:
        page = pages.get(request.url.path)
        if callable(page):
            page = page(json.loads(request.content))
        if page is None:
            return httpx.Response(404)
        if isinstance(page, httpx.Response):
            return page
        return httpx.Response(200, text=page) if isinstance(page, str) else httpx.Response(200, json=page)

    return read_served_facts(URL, api_key=key, transport=httpx.MockTransport(answer))


def test_the_list_of_models_is_enough() -> None:
    assert serve({"/v1/models": {"data": [{"id": "a"}, {"id": "b"}]}}) == ServedFacts(
        url=URL, models=("a", "b")
    )


def test_everything_that_vllm_tells() -> None:
    def tokenize(body: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": [1, 2] if "messages" in body or body["prompt"] == OURS else [3]}

    facts = serve(
        {
            "/v1/models": httpx.Response(200, json=MODELS, headers={"server": "uvicorn"}),
            "/version": {"version": "0.11.0"},
            "/metrics": "vllm:generation_tokens_total 0\n",
            "/tokenize": tokenize,
        }
    )
    assert facts == ServedFacts(
        url=URL,
        models=("m",),
        owner="vllm",
        version="0.11.0",
        server="uvicorn",
        context_tokens=4096,
        has_metrics=True,
        renders_alike=True,
    )


def test_everything_that_llama_cpp_tells() -> None:
    entry = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 2048}}
    facts = serve(
        {
            "/v1/models": {"data": [entry]},
            "/props": {"build_info": "b1234", "total_slots": 4},
            "/metrics": httpx.Response(501, json={"error": {}}),
            "/apply-template": lambda body: {"prompt": OURS + " "},
        }
    )
    assert (facts.version, facts.slots, facts.context_tokens) == ("b1234", 4, 2048)
    assert not facts.has_metrics
    assert not facts.renders_alike


def test_pages_of_something_else_are_not_taken_for_facts() -> None:
    facts = serve(
        {"/v1/models": MODELS, "/version": ["x"], "/props": "<html>", "/metrics": {"a": 1}, "/tokenize": {}}
    )

    assert (facts.version, facts.has_metrics, facts.renders_alike) == (None, False, False)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (None, "answered 404"),
        (httpx.Response(401), "it wants a key.*--api-key-env"),
        ("<html></html>", "no list of models, but text/plain: '<html></html>'"),
        ({"data": [{}]}, "no list of models"),
        ([], "no list of models"),
    ],
)
def test_what_is_no_such_server_is_refused(page: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        serve({"/v1/models": page})


def test_a_server_that_is_not_there() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    with pytest.raises(UsageError, match="cannot reach the server: connection refused"):
        read_served_facts(URL, transport=httpx.MockTransport(refuse))


def test_the_key_goes_into_the_header_and_into_no_message() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(403)

    with pytest.raises(UsageError) as caught:
        read_served_facts(URL, api_key="sk-secret", transport=httpx.MockTransport(answer))
    assert seen == ["Bearer sk-secret"]
    assert "sk-secret" not in str(caught.value)


def test_the_digest_is_over_what_was_told() -> None:
    one, other = (ServedFacts(url=URL, models=("m",), version=version) for version in ("1", "2"))

    assert one.digest() == ServedFacts(url=URL, models=("m",), version="1", has_metrics=True).digest()
    assert one.digest() != other.digest()


@pytest.mark.parametrize("text", ["http://h:1/v1/", "https://h/v1", "http://[::1]:8000"])
def test_addresses(text: str) -> None:
    assert check_url(text) == text.rstrip("/")


@pytest.mark.parametrize("text", ["h:1", "ftp://h/", "http://", "http://h:port/", "http://[::1/"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="http://HOST:PORT/v1"):
        check_url(text)


@pytest.mark.parametrize("text", ["http://u:secret@h/v1", "http://secret@h/v1", "http://h/v1?key=secret", "http://h/#secret"])  # fmt: skip  # noqa: E501
def test_an_address_with_a_secret_is_refused_without_naming_it(text: str) -> None:
    with pytest.raises(UsageError, match="--api-key-env") as caught:
        check_url(text)
    assert "secret" not in str(caught.value)


def test_loopback() -> None:
    assert is_loopback("http://127.0.0.1:1/v1")
    assert is_loopback("http://[::1]/")
    assert not is_loopback("http://127.0.0.1.example.com/")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (httpx.Response(200, content=b"[" * 100_000), "no list of models"),
        (
            httpx.Response(307, headers={"location": "http://other/v1/models"}),
            "leads to http://other/v1/models",
        ),
    ],
)
def test_a_list_that_cannot_be_read_is_named(page: httpx.Response, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        serve({"/v1/models": page})


def test_a_name_that_no_record_can_hold_is_written_out() -> None:
    models = json.dumps({"data": [{"id": "m\ud800", "owned_by": "\udfff"}]})
    facts = serve({"/v1/models": models, "/version": "[" * 100_000})

    assert (facts.models, facts.owner) == (("m\\ud800",), "\\udfff")
    assert facts.digest()


def drip(clock: list[float], piece: bytes) -> Iterator[bytes]:
    while True:
        clock[0] += 1
        yield piece


@pytest.mark.parametrize(
    ("piece", "words"), [(b" ", "took longer than 30 s"), (b" " * (1 << 20), "than 16 MiB")]
)
def test_a_list_without_an_end_is_given_up(piece: bytes, words: str) -> None:
    clock = [0.0]
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=drip(clock, piece)))
    with (
        httpx.Client(transport=transport) as client,
        pytest.raises(UsageError, match=f"cannot reach the server: its answer .*{words}"),
    ):
        ServerAsker(URL, client, lambda: clock[0]).read_facts()


def test_pages_that_never_come_take_one_limit_together() -> None:
    clock = [0.0]
    limits: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json=MODELS)
        limits.append(request.extensions["timeout"]["read"])
        clock[0] += limits[-1]
        raise httpx.ReadTimeout("no answer")

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        facts = ServerAsker(URL, client, lambda: clock[0]).read_facts()

    assert facts.models == ("m",)
    assert sum(limits) < 31


@pytest.mark.parametrize("url", ["http://xn--/v1", "http://a\x00b/v1", "http://[::1/v1", "http://a:99999/v1"])
def test_a_host_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="the address of a server is"):
        check_url(url)
