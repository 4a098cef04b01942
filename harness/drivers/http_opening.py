"""Opens a session over HTTP: with a server that runs already, or with one that is started for the cell."""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engine_bindings.binding import Launch
from engine_bindings.model_directory import private_model_directory
from harness.drivers.base import EngineSession
from harness.drivers.http_api import ChatApi, CompletionsApi, HttpApi
from harness.drivers.http_session import HttpSession
from harness.drivers.http_transport import HttpCall, HttpTransport, HttpxTransport
from harness.drivers.openai_client import OpenAiClientTransport
from harness.drivers.opening import Opening
from harness.drivers.server_process import ServerProcess, choose_port

# Settings that are no parameter of a request.
OWN_SETTINGS = ("cache",)
# It shares no prefix with any chat, so a server with one slot keeps nothing of what was there.
FLUSH_PROMPT = "~"

Parameters = dict[str, Any]
APIS: dict[str, Callable[[Parameters], HttpApi]] = {
    "chat-completions": ChatApi,
    "chat-completions-whole": lambda parameters: ChatApi(parameters, streams=False),
    "openai-client": lambda parameters: ChatApi(parameters, mark_expected=False),
    "completions": CompletionsApi,
}
"""How turns are asked for, by the ``api`` of a launch."""


@contextlib.contextmanager
def open_http(opening: Opening) -> Iterator[EngineSession]:
    """Open a session; leaving the block closes its connections and kills what was started for it.

    Raises:
        EngineStartError: the system cannot run the server's program.
    """
    if not opening.launch.argv:
        with _open_session(opening, opening.launch, host=None) as session:
            yield session
        return
    launch = choose_port(opening.launch)
    assert opening.model_dir is not None, "a server is started on a model"  # noqa: S101
    with private_model_directory(opening.model_dir, opening.guard) as private:
        host = ServerProcess.start(
            launch, inherited=opening.inherited, directory=private, log=opening.log, guard=opening.guard
        )
        try:
            with _open_session(opening, launch, host=host) as session:
                yield session
        finally:
            host.kill()


@contextlib.contextmanager
def _open_session(opening: Opening, launch: Launch, *, host: ServerProcess | None) -> Iterator[EngineSession]:
    settings = {pin.name: pin.value for pin in launch.pins if host is None or pin.name in launch.parameters}
    session = HttpSession(
        open_transport(launch, opening.inherited),
        APIS[launch.api](read_parameters(settings, api=launch.api)),
        opening.log,
        opening.timeouts,
        on_output=opening.on_output,
        counted=launch.reads_metrics,
        preparations=list_preparations(settings),
        host=host,
        secret=read_key(launch, opening.inherited),
    )
    try:
        yield session
    finally:
        session.close()


def open_transport(launch: Launch, variables: Mapping[str, str]) -> HttpTransport:
    """Return the way to the server of a launch, with the key that a variable holds."""
    assert launch.url is not None, "a server has an address"  # noqa: S101
    key = read_key(launch, variables)
    kind = OpenAiClientTransport if launch.api == "openai-client" else HttpxTransport
    return kind(launch.url, api_key=key)


def read_key(launch: Launch, variables: Mapping[str, str]) -> str | None:
    """Return the key for the server of a launch, None where it gets none."""
    return variables.get(launch.key_variable) if launch.key_variable else None


def read_parameters(settings: Mapping[str, str], *, api: str) -> Parameters:
    """Return what goes into the body of every request: the settings, read as JSON where they are JSON."""
    parameters = {name: _parse(value) for name, value in settings.items() if name not in OWN_SETTINGS}
    # A model may be called 7 or true.
    if "model" in parameters:
        parameters["model"] = settings["model"]
    if "top_logprobs" in parameters:
        chat = api != "completions"
        top = parameters["top_logprobs"]
        parameters |= {"logprobs": True} if chat else {"logprobs": top}
        if not chat:
            del parameters["top_logprobs"]
    if settings.get("cache") == "salt":
        parameters["cache_salt"] = secrets.token_hex(8)
    return parameters


def list_preparations(settings: Mapping[str, str]) -> tuple[HttpCall, ...]:
    """Return what is sent before the first turn of a cell."""
    if settings.get("cache") != "evict":
        return ()
    body = {"model": settings.get("model", ""), "prompt": FLUSH_PROMPT, "max_tokens": 1}
    return (HttpCall(method="POST", path="/completions", body=body),)


def _parse(value: str) -> Any:
    """Return the value of JSON text, any other text as it is. What no JSON can hold, such as NaN, is text."""
    try:
        parsed = json.loads(value)
        json.dumps(parsed, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return value
    return parsed
