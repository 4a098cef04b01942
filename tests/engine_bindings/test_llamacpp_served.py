"""The binding of a llama.cpp server that runs already."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from engine_bindings.binding import UNKNOWN_DEPTH, ArmSettings, ServedBinding
from engine_bindings.errors import UsageError
from engine_bindings.llamacpp import REQUEST_PINS
from engine_bindings.registry import find_binding

SETTINGS = ArmSettings(path="chat-completions", depth=UNKNOWN_DEPTH, cap_tokens=8)


class Handler(BaseHTTPRequestHandler):
    """Lists one model, of whoever ``owner`` is."""

    owner = "llamacpp"

    def do_GET(self) -> None:
        """Answer the list of models and nothing else."""
        model = {"id": "m.gguf", "owned_by": self.owner, "meta": {"n_ctx": 512}}
        found = self.path == "/v1/models"
        body = json.dumps({"data": [model]} if found else {}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Know nothing."""
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_the_server_says_is_recorded_as_its_word(address: str) -> None:
    binding = find_binding(f"llamacpp={address}/v1/")
    assert isinstance(binding, ServedBinding)
    assert binding.capabilities.depths == (UNKNOWN_DEPTH,)
    assert binding.capabilities.context_tokens == 512
    assert binding.capabilities.cold_cells is False
    assert binding.fingerprint().reported
    assert binding.fingerprint().source == address
    assert binding.served_model({}).directory == "m.gguf"
    assert binding.default_model_dir() is None


def test_requests_get_their_settings_and_the_server_none(address: str) -> None:
    launch = find_binding(f"llamacpp={address}").launch(SETTINGS, {"SEED": "5"})
    assert (launch.argv, launch.url, launch.api) == ((), address, "chat-completions")
    assert {pin.name for pin in launch.pins} <= set(REQUEST_PINS)
    assert [pin.value for pin in launch.pins if pin.name == "SEED"] == ["5"]


def test_another_server_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "owner", "vllm")
    with pytest.raises(UsageError, match=r"not llama\.cpp's server but 'vllm'") as error:
        _ = find_binding(f"llamacpp={address}").capabilities
    assert f"--engine {address}/v1" in error.value.hint


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match="address of a server"):
        find_binding("llamacpp=http://")
