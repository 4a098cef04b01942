"""The ways to ask a server: each builds the request of a turn and reads its answer.

Another kind of JSON is another class here with these three members; the session stays the same.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from engine_bindings.binding import EntryKind
from engine_bindings.chat_template import Message
from engine_bindings.wire.openai_stream import AnswerReader, OpenAiStream, OpenAiWhole
from harness.drivers.base import TurnRequest
from harness.drivers.http_transport import HttpCall

# The two best candidates of a token, so that a gap between them can be read too.
ASKED_LOGPROBS = 2
Object = Mapping[str, Any]
_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "observation": "tool"}


class HttpApi(Protocol):
    """One way to ask for a turn."""

    @property
    def entry(self) -> EntryKind:
        """The form in which it takes a turn: ``messages`` or ``prompt``."""

    def build_call(self, request: TurnRequest, received: Mapping[bytes, Object]) -> HttpCall:
        """Return the request of a turn.

        ``received`` holds the messages of this conversation's answers as they came, by their text: a server
        wants its own tool calls and reasoning back.
        """

    def open_reader(self) -> AnswerReader:
        """Return a reader for the answer."""


class ChatApi:
    """Chat completions: the server puts its template around messages.

    Args:
        parameters: goes into every body, for example ``model``.
        streams: ask for server-sent events, or for one JSON object.
        mark_expected: a stream ends with ``[DONE]``; a client library keeps that to itself.
    """

    entry: EntryKind = "messages"
    path = "/chat/completions"

    def __init__(self, parameters: Object, *, streams: bool = True, mark_expected: bool = True) -> None:
        self._parameters = parameters
        self._streams = streams
        self._mark_expected = mark_expected

    def build_call(self, request: TurnRequest, received: Mapping[bytes, Object]) -> HttpCall:
        """Return the request of a turn."""
        messages = build_messages(request.messages, received)
        asked = {"logprobs": True, "top_logprobs": ASKED_LOGPROBS} if request.logprobs else {}
        body = build_body(request, {**asked, **self._parameters}, streams=self._streams)
        body["messages"] = messages
        return HttpCall(method="POST", path=self.path, body=body, streams=self._streams)

    def open_reader(self) -> AnswerReader:
        """Return a reader for the answer."""
        return OpenAiStream(mark_expected=self._mark_expected) if self._streams else OpenAiWhole()


class CompletionsApi:
    """Completions: the exact prompt goes in."""

    entry: EntryKind = "prompt"
    path = "/completions"

    def __init__(self, parameters: Object, *, streams: bool = True) -> None:
        self._parameters = parameters
        self._streams = streams

    def build_call(self, request: TurnRequest, received: Mapping[bytes, Object]) -> HttpCall:  # noqa: ARG002
        """Return the request of a turn."""
        prompt = request.prompt.decode("utf-8", "surrogateescape")
        asked = {"logprobs": ASKED_LOGPROBS} if request.logprobs else {}
        body = build_body(request, {**asked, **self._parameters}, streams=self._streams)
        body["prompt"] = prompt
        return HttpCall(method="POST", path=self.path, body=body, streams=self._streams)

    def open_reader(self) -> AnswerReader:
        """Return a reader for the answer."""
        return OpenAiStream() if self._streams else OpenAiWhole()


def build_body(request: TurnRequest, parameters: Object, *, streams: bool) -> dict[str, Any]:
    """Return what both APIs share. A parameter that the user set wins over the one of the scenario."""
    body: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stream": streams,
    }
    if request.stop:
        body["stop"] = list(request.stop)
    if streams:
        body["stream_options"] = {"include_usage": True}
    return {**body, **parameters}


def build_messages(messages: tuple[Message, ...], received: Mapping[bytes, Object]) -> list[Object]:
    """Return OpenAI's messages.

    An answer goes back as it was received. The result of a tool carries the id of the call before it that has
    none yet, if there is one.
    """
    built: list[Object] = []
    open_calls: list[str] = []
    for message in messages:
        if message.role == "assistant" and message.text in received:
            answer = received[message.text]
            open_calls = [call["id"] for call in answer.get("tool_calls", ()) if call.get("id")]
            built.append(answer)
            continue
        item: dict[str, Any] = {
            "role": _ROLES[message.role],
            "content": message.text.decode("utf-8", "replace"),
        }
        if message.role == "observation" and open_calls:
            item["tool_call_id"] = open_calls.pop(0)
        built.append(item)
    return built
