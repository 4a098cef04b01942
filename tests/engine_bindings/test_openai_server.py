"""The binding of servers that run already: which one an arm asks, with which parameters and which key."""

from dataclasses import replace
from typing import Any

import pytest

from engine_bindings import openai_server
from engine_bindings.binding import UNKNOWN_DEPTH, ArmSettings, Launch, ServedBinding
from engine_bindings.errors import UsageError
from engine_bindings.openai_server import OpenAiServer, build_openai_server
from engine_bindings.registry import find_binding
from engine_bindings.served_facts import ServedFacts

OFF, ON = "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"
FACTS = ServedFacts(url=OFF, models=("m",))
ASKED: list[tuple[str, str | None]] = []


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, ServedFacts]:
    """What the servers say, for the test to change."""
    facts = {OFF: FACTS, ON: replace(FACTS, url=ON)}
    ASKED.clear()

    def read(url: str, *, api_key: str | None) -> ServedFacts:
        ASKED.append((url, api_key))
        return facts.get(url, replace(FACTS, url=url))

    monkeypatch.setattr(openai_server, "read_served_facts", read)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return facts


def launch(
    binding: OpenAiServer, depth: int = 0, overrides: dict[str, str] | None = None, **more: Any
) -> Launch:
    settings = ArmSettings(path="chat-completions", depth=depth, cap_tokens=8, **more)
    return binding.launch(settings, overrides or {})


def pins(of: Launch) -> dict[str, str]:
    return {pin.name: pin.value for pin in of.pins}


def test_an_address_is_an_engine(told: dict[str, ServedFacts]) -> None:
    for text in (OFF, f"openai={OFF}"):
        binding = find_binding(text)
        assert binding == OpenAiServer(off=OFF)
        assert isinstance(binding, ServedBinding)
        assert binding.default_model_dir() is None
    assert not isinstance(find_binding("reference"), ServedBinding)


def test_one_server_has_one_depth_that_nobody_knows(told: dict[str, ServedFacts]) -> None:
    capabilities = OpenAiServer(off=OFF).capabilities

    assert capabilities.depths == (UNKNOWN_DEPTH,)
    assert capabilities.max_depth == 0
    assert capabilities.paths[:2] == ("chat-completions", "chat-completions-whole")
    assert not capabilities.cold_cells
    assert not capabilities.exact_prefixes


def test_two_servers_are_two_arms(told: dict[str, ServedFacts]) -> None:
    binding = build_openai_server(f"off={OFF},on={ON}")

    assert binding == OpenAiServer(off=OFF, on=ON)
    assert binding.capabilities.depths is None
    assert [launch(binding, depth).url for depth in (0, 3)] == [OFF, ON]


def test_exact_prompts_only_where_both_render_alike(told: dict[str, ServedFacts]) -> None:
    told[OFF] = replace(FACTS, renders_alike=True)

    assert "completions" in OpenAiServer(off=OFF).capabilities.paths
    assert "completions" not in OpenAiServer(off=OFF, on=ON).capabilities.paths


def test_nothing_is_started(told: dict[str, ServedFacts]) -> None:
    started = launch(OpenAiServer(off=OFF))

    assert (started.argv, started.driver, started.api) == ((), "http", "chat-completions")
    assert pins(started) == {"model": "m", "cache": "keep"}


@pytest.mark.parametrize(
    ("owner", "slots", "cache"), [("vllm", None, "salt"), ("coli-ab", 1, "evict"), ("coli-ab", 2, "keep")]
)
def test_a_known_server_starts_each_cell_with_an_empty_cache(
    told: dict[str, ServedFacts], owner: str, slots: int | None, cache: str
) -> None:
    told[OFF] = replace(FACTS, owner=owner, slots=slots)
    binding = OpenAiServer(off=OFF)

    assert pins(launch(binding)) == {"model": "m", "cache": cache, "return_token_ids": "true"}
    assert binding.capabilities.cold_cells is (cache != "keep")


def test_sampling_gets_a_seed(told: dict[str, ServedFacts]) -> None:
    assert "seed" in pins(launch(OpenAiServer(off=OFF), temperature=0.5))


def test_settings_become_parameters(told: dict[str, ServedFacts]) -> None:
    assert pins(launch(OpenAiServer(off=OFF), overrides={"top_k": "1", "cache": "salt"})) == {
        "model": "m",
        "cache": "salt",
        "top_k": "1",
    }


def test_the_model_must_be_one_that_is_served(told: dict[str, ServedFacts]) -> None:
    told[OFF] = replace(FACTS, models=("a", "b"))
    binding = OpenAiServer(off=OFF)

    with pytest.raises(UsageError, match=r"several models are served there: a, b.*--model-name"):
        launch(binding)
    with pytest.raises(UsageError, match=r"no model 'c' is served there.*served: a, b"):
        launch(binding, overrides={"model": "c"})
    assert pins(launch(binding, overrides={"model": "b"}))["model"] == "b"


def test_a_server_that_lists_no_model_takes_the_one_that_is_named(told: dict[str, ServedFacts]) -> None:
    told[OFF] = replace(FACTS, models=())
    binding = OpenAiServer(off=OFF)

    with pytest.raises(UsageError, match="lists no model"):
        launch(binding)
    assert pins(launch(binding, overrides={"model": "x"}))["model"] == "x"


def test_fingerprints_are_marked_as_reported(told: dict[str, ServedFacts]) -> None:
    told[ON] = replace(FACTS, url=ON, owner="vllm", version="0.11", models=("n",))
    binding = OpenAiServer(off=OFF, on=ON)
    engine, model = binding.fingerprint(), binding.served_model({})

    assert engine.reported
    assert (engine.version, engine.source) == ("vllm 0.11", f"{OFF} and {ON}")
    assert model.reported
    assert (model.directory, model.weights_bytes) == ("m and n", 0)


@pytest.mark.parametrize(
    ("url", "named", "sent"),
    [
        ("http://127.0.0.1:1/v1", False, True),
        ("https://host.example/v1", False, True),
        ("http://host.example/v1", False, False),
        ("http://host.example/v1", True, True),
    ],
)
def test_a_key_leaves_this_machine_in_the_clear_only_when_its_variable_was_named(
    told: dict[str, ServedFacts], monkeypatch: pytest.MonkeyPatch, url: str, named: bool, sent: bool
) -> None:
    monkeypatch.setenv("KEY", "sk-secret")
    binding = OpenAiServer(off=url, key_variable="KEY", key_named=named)
    started = launch(binding)

    asked = [(url, "sk-secret" if sent else None)]
    assert asked == ASKED
    assert started.key_variable == ("KEY" if sent else None)
    assert "sk-secret" not in repr((started, binding, binding.fingerprint(), binding.served_model({})))


@pytest.mark.parametrize("location", [None, "off=http://a/v1", "off=http://a/v1,on=", "a", "http://u:p@h/"])
def test_what_is_no_server(location: str | None) -> None:
    with pytest.raises(UsageError):
        build_openai_server(location)


@pytest.mark.parametrize("key", ["sk-01234567\n", " sk-01234567", "sk-0\r\nX: y", "sk-0123ключ", "sk-0\x01"])
def test_what_is_no_key_is_refused_and_not_shown(
    told: dict[str, ServedFacts], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UsageError, match="OPENAI_API_KEY holds what no key has") as caught:
        _ = OpenAiServer(off=OFF).capabilities

    assert "sk-0" not in str(caught.value)


def test_a_variable_that_was_named_and_is_not_there_is_refused(
    told: dict[str, ServedFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(UsageError, match="--api-key-env MY_KEY"):
        _ = OpenAiServer(off=OFF, key_variable="MY_KEY", key_named=True).capabilities


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream", "false"), ("messages", "x"), ("n", "2"), ("url", "http://x"), ("cache", "x")],
)
def test_a_setting_that_makes_another_request_is_refused(
    told: dict[str, ServedFacts], name: str, value: str
) -> None:
    with pytest.raises(UsageError, match=f"--set {name}={value}"):
        launch(OpenAiServer(off=OFF), overrides={name: value})


def test_one_server_is_not_held_against_itself_as_two() -> None:
    with pytest.raises(UsageError, match="the same server"):
        build_openai_server(f"off={OFF},on={OFF}/")
