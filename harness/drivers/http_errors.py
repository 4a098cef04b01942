"""What a server's refusal says, in OpenAI's form or in another, and the error that it becomes."""

import json
from dataclasses import dataclass

from engine_bindings.errors import EngineDiedError, EngineError, EngineRefusedError
from engine_bindings.wire.answer_events import ServerFault
from engine_bindings.wire.openai_objects import read_object
from harness.drivers.http_transport import Head

MESSAGE_CHARACTERS = 300
# How servers name a prompt that does not fit: OpenAI's code, and llama.cpp's type.
LENGTH_WORDS = (
    "context_length_exceeded",
    "exceed_context_size_error",
    "maximum context length",
    "context length",
)
HINTS = {
    401: "the server wants a key: put it into OPENAI_API_KEY, or name its variable with --api-key-env",
    403: "the server does not take this key: see --api-key-env",
    404: "the address or the model is not known there; an address ends with /v1 for most servers",
    405: "the address is not that of an OpenAI-compatible API",
    429: "the server is busy or limits requests: nothing else may use it during a measurement",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRefusal:
    """An error that a server answered with, by its status or inside an answer of status 200."""

    status: int
    fault: ServerFault

    @property
    def message(self) -> str:
        """What the server said, with its code."""
        code = f" ({self.fault.code})" if self.fault.code and self.fault.code != str(self.status) else ""
        return f"{self.fault.message[:MESSAGE_CHARACTERS]}{code}"

    @property
    def hint(self) -> str:
        """What to do about it."""
        return HINTS.get(self.status, "the server's own log may say more")

    @property
    def is_about_length(self) -> bool:
        """True when the prompt does not fit into the context."""
        told = f"{self.fault.code} {self.fault.kind} {self.fault.message}".lower()
        return self.status in (200, 400, 413, 422) and any(word in told for word in LENGTH_WORDS)

    def error(self, place: str) -> EngineError:
        """Return the error for a turn."""
        if self.status == 200:
            text = f"{place}: the server reported an error inside its answer: {self.message}"
            return EngineDiedError(text, hint=self.hint)
        if 300 <= self.status < 400:
            text = f"{place}: the server redirects ({self.status}) {self.message}"
            return EngineRefusedError(text, hint="give the address that it leads to")
        kind = EngineDiedError if self.status >= 500 else EngineRefusedError
        return kind(f"{place}: the server answered {self.status}: {self.message}", hint=self.hint)


def read_refusal(head: Head, body: bytes) -> HttpRefusal:
    """Return what an answer whose status is not 200 says."""
    if "location" in head.headers:
        return HttpRefusal(status=head.status, fault=ServerFault(message=f"to {head.headers['location']}"))
    try:
        value = json.loads(body)
        fault = next((one for one in read_object(value) if isinstance(one, ServerFault)), None)
    except (ValueError, RecursionError):
        fault = None
    if fault is None:
        shown = " ".join(body.decode("utf-8", "replace").split())
        fault = ServerFault(message=shown or "an empty body")
    return HttpRefusal(status=head.status, fault=fault)
