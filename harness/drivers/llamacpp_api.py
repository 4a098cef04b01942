"""The two ways to ask llama.cpp's server for a turn: its own ``/completion`` and chat completions."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from engine_bindings.binding import EntryKind, Pin
from engine_bindings.wire.llamacpp_stream import LlamaChatStream, LlamaStream
from engine_bindings.wire.openai_stream import AnswerReader
from harness.drivers.base import TurnRequest
from harness.drivers.http_api import Object, build_messages
from harness.drivers.http_transport import HttpCall
from harness.grammar import Grammar

SPECULATION_OFF = "none"


class Parameters:
    """What goes into every request, from the pins of a cell. The seed grows by one with each request."""

    def __init__(self, pins: Iterable[Pin], grammar: Grammar | None = None) -> None:
        """Take the pins. Raises ValueError when the text of one is no number."""
        texts = {pin.name: pin.value for pin in pins}
        self._seed = int(texts.get("SEED", "0"))
        self._shared: dict[str, Any] = {
            "top_k": int(texts.get("TOP_K", "0")),
            "min_p": float(texts.get("MIN_P", "0")),
            "cache_prompt": texts.get("LLAMA_ARG_CACHE_PROMPT", "1") != "0",
        }
        self.thinking = texts.get("ENABLE_THINKING", "false") == "true"
        self.reasoning_format = texts.get("REASONING_FORMAT", "none")
        speculates = texts.get("LLAMA_ARG_SPEC_TYPE", SPECULATION_OFF) != SPECULATION_OFF
        # Beside drafts the server tells candidates of few tokens, and not always those of their place.
        self.probabilities = 0 if speculates else int(texts.get("N_PROBS", "0"))
        self.grammar = grammar if grammar is not None and grammar.binds else None

    def build_body(self, request: TurnRequest) -> dict[str, Any]:
        """Return what both ways share; every call takes the next seed."""
        body = {
            **self._shared,
            "seed": self._seed,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stream": True,
        }
        self._seed += 1
        return body


class LlamaCompletionApi:
    """``/completion``: the exact prompt goes in, and the server looks for the stop strings."""

    entry: EntryKind = "prompt"

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def build_call(self, request: TurnRequest, received: Mapping[bytes, Object]) -> HttpCall:  # noqa: ARG002
        """Return the request of a turn."""
        body = {
            **self._parameters.build_body(request),
            "prompt": request.prompt.decode("utf-8", "surrogateescape"),
            "n_predict": request.max_tokens,
            "id_slot": request.slot,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        if self._parameters.probabilities:
            body["n_probs"] = self._parameters.probabilities
        if grammar := self._parameters.grammar:
            schema = grammar.kind == "schema"
            body |= {"json_schema": json.loads(grammar.text)} if schema else {"grammar": grammar.text}
        return HttpCall(method="POST", path="/completion", body=body, streams=True)

    def open_reader(self) -> AnswerReader:
        """Return a reader for the answer."""
        return LlamaStream()


class LlamaChatApi:
    """Chat completions: the server puts the model's template around messages.

    Stop strings are left to the harness: the answer does not tell whether one of them ended it, or a stop
    token.
    """

    entry: EntryKind = "messages"

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def build_call(self, request: TurnRequest, received: Mapping[bytes, Object]) -> HttpCall:
        """Return the request of a turn."""
        body = {
            **self._parameters.build_body(request),
            "messages": build_messages(request.messages, received),
            "max_tokens": request.max_tokens,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": self._parameters.thinking},
            "reasoning_format": self._parameters.reasoning_format,
        }
        if grammar := self._parameters.grammar:
            if grammar.kind == "gbnf":
                body["grammar"] = grammar.text
            else:
                schema = {"name": "answer", "schema": json.loads(grammar.text)}
                body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return HttpCall(method="POST", path="/v1/chat/completions", body=body, streams=True)

    def open_reader(self) -> AnswerReader:
        """Return a reader for the answer."""
        return LlamaChatStream()
