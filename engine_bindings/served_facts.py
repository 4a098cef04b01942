"""What a running server says of itself: its models, its version, its counters, and how it renders a chat.

Nothing of this is proven: a proxy can say anything. It is recorded as reported and seals no certificate.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from engine_bindings.chat_template import Message, render_messages
from engine_bindings.errors import UsageError

# A server that is up answers such questions at once, unless it is busy with a prompt. All that is asked
# besides the models has this time together.
TIMEOUT_S = 30.0
# A gateway to many providers lists some hundred KiB of models.
MAX_BYTES = 16 << 20
UNREADABLE = (httpx.HTTPError, ValueError, RecursionError)
# They tell how the body was sent, and it has been decoded.
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CHAT = (
    Message(role="system", text=b"Be brief."),
    Message(role="user", text=b"What is a tie?"),
    Message(role="assistant", text=b"A draw."),
    Message(role="user", text=b"And then?"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFacts:
    """What one server reports.

    Attributes:
        url: the address that was asked.
        models: the ids that it serves, empty when it lists none.
        owner: who it says owns the first model: the name of the server's software, for most.
        version: of the software, None when it does not say.
        server: the header of that name.
        context_tokens: size of the context.
        slots: requests that it answers at once.
        has_metrics: there are counters for Prometheus.
        renders_alike: it puts the same template around a chat as this tool does.
    """

    url: str
    models: tuple[str, ...]
    owner: str = ""
    version: str | None = None
    server: str = ""
    context_tokens: int | None = None
    slots: int | None = None
    has_metrics: bool = False
    renders_alike: bool = False

    def digest(self) -> str:
        """Return a SHA-256 over what the server says of its software and models."""
        told = (self.url, self.models, self.owner, self.version, self.server, self.context_tokens)
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


class ServerAsker:
    """Asks one server. Only the list of models must be there."""

    def __init__(self, url: str, client: httpx.Client, now_s: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._client = client
        self._now_s = now_s
        self._end_s = now_s() + TIMEOUT_S
        parts = urlsplit(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"

    def read_facts(self) -> ServedFacts:
        """Ask for everything. Raises UsageError when no OpenAI-compatible server is there."""
        response = self._ask_for_models()
        entries = _list_entries(response, self._url)
        self._end_s = self._now_s() + TIMEOUT_S
        first = entries[0] if entries else {}
        props, version, health = (self._get(path) for path in ("/props", "/version", "/health"))
        return ServedFacts(
            url=self._url,
            models=tuple(str(entry["id"]) for entry in entries),
            owner=_sendable(str(first.get("owned_by", ""))),
            version=_text(version.get("version")) or _text(props.get("build_info")),
            server=response.headers.get("server", ""),
            context_tokens=_whole(first.get("max_model_len")) or _whole(_inside(first, "meta", "n_ctx")),
            slots=_whole(props.get("total_slots")) or _whole(_inside(health, "queue", "slots")),
            has_metrics=self._has_metrics(),
            renders_alike=self._renders_alike(str(first.get("id", ""))),
        )

    def _ask_for_models(self) -> httpx.Response:
        try:
            response = self._request("GET", f"{self._url}/models")
        except httpx.HTTPError as error:
            raise UsageError(
                f"{self._url}: cannot reach the server: {error}", hint="start it first, and check the address"
            ) from error
        if response.status_code in (401, 403):
            raise UsageError(
                f"{self._url}: the server answered {response.status_code}: it wants a key",
                hint="put it into OPENAI_API_KEY, or name its variable with --api-key-env; over http it is"
                " sent to this machine only, unless the variable is named",
            )
        if response.status_code != 200:
            place = response.headers.get("location")
            led = f" and leads to {place}" if place and response.is_redirect else ""
            raise UsageError(
                f"{self._url}/models: the server answered {response.status_code}{led}",
                hint="no redirect is followed: give the address that it leads to"
                if led
                else "the address of an OpenAI-compatible API ends with /v1 for most servers",
            )
        return response

    def _request(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """Return a whole answer. Raises httpx.HTTPError, also when it takes too long or is too large."""
        data = bytearray()
        left_s = max(0.001, self._end_s - self._now_s())
        with self._client.stream(method, url, json=body, timeout=left_s) as response:
            for piece in response.iter_bytes():
                data += piece
                if len(data) > MAX_BYTES:
                    raise httpx.ReadError(f"its answer is longer than {MAX_BYTES >> 20} MiB")
                if self._now_s() > self._end_s:
                    raise httpx.ReadTimeout(f"its answer took longer than {TIMEOUT_S:g} s")
        whole = httpx.Response(response.status_code, content=bytes(data), request=response.request)
        whole.headers = httpx.Headers(
            {name: value for name, value in response.headers.items() if name not in _OF_THE_WIRE}
        )
        return whole

    def _get(self, path: str) -> Mapping[str, Any]:
        """Return an object from beside the API; an empty one when there is none."""
        try:
            value = self._request("GET", self._origin + path).raise_for_status().json()
        except UNREADABLE:
            return {}
        return value if isinstance(value, dict) else {}

    def _has_metrics(self) -> bool:
        try:
            response = self._request("GET", self._origin + "/metrics")
        except httpx.HTTPError:
            return False
        return response.status_code == 200 and ":" in response.text and "json" not in _type(response)

    def _renders_alike(self, model: str) -> bool:
        """Say whether a chat and the prompt that we render from it are the same for the server."""
        ours = render_messages(CHAT).decode()
        messages = [{"role": one.role, "content": one.text.decode()} for one in CHAT]
        rendered = self._post("/apply-template", {"messages": messages}).get("prompt")
        if isinstance(rendered, str):
            return rendered == ours
        chat = self._post("/tokenize", {"model": model, "messages": messages}).get("tokens")
        return bool(chat) and chat == self._post("/tokenize", {"model": model, "prompt": ours}).get("tokens")

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            value = self._request("POST", self._origin + path, body).raise_for_status().json()
        except UNREADABLE:
            return {}
        return value if isinstance(value, dict) else {}


def read_served_facts(
    url: str, *, api_key: str | None = None, transport: httpx.BaseTransport | None = None
) -> ServedFacts:
    """Ask the server at a base address. Raises UsageError when none is there, or it is another kind."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(
        headers=headers, timeout=TIMEOUT_S, transport=transport, trust_env=not is_loopback(url)
    ) as client:
        return ServerAsker(url, client).read_facts()


def check_url(text: str) -> str:
    """Return a base address without a slash at its end.

    Raises:
        UsageError: it is no address, or it holds a user, a password or a query.
    """
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
        _ = httpx.URL(text).host
    except (ValueError, httpx.InvalidURL):
        fits = False
    if not fits:
        raise UsageError(
            "the address of a server is http://HOST:PORT/v1 or https://HOST/v1", hint="check --engine"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            f"the address of {parts.hostname} holds more than host, port and path: it would be recorded",
            hint="a key goes into an environment variable: see --api-key-env",
        )
    return text.rstrip("/")


def is_loopback(url: str) -> bool:
    """Say whether an address is on this machine."""
    return urlsplit(url).hostname in LOOPBACK


def _list_entries(response: httpx.Response, url: str) -> list[Mapping[str, Any]]:
    try:
        data = response.json()["data"]
        return [entry | {"id": _sendable(entry["id"])} for entry in data if isinstance(entry["id"], str)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{url}/models: no list of models, but {_type(response) or 'no type'}: {response.text[:80]!r}",
            hint="this is no OpenAI-compatible API; its address ends with /v1 for most servers",
        ) from error


def _sendable(text: str) -> str:
    """Return text with halves of surrogate pairs written out: no request and no record can hold them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0]


def _inside(value: Mapping[str, Any], *names: str) -> Any:
    found: Any = value
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _text(value: Any) -> str | None:
    return _sendable(value) if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
