"""Requests to an OpenAI-compatible API as logs hold them: bare bodies, or bodies with what was answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.scenario_checks import MAX_PROMPT_BYTES

Role = Literal["system", "user", "tool", "assistant"]
Object = Mapping[str, Any]

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# These say how an answer is sent or who asked, and change nothing of it.
HARMLESS = frozenset(
    {
        "cache_salt",
        "echo",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "parallel_tool_calls",
        "prompt",
        "prompt_cache_key",
        "return_token_ids",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "suffix",
        "temperature",
        "top_logprobs",
        "top_p",
        "user",
    }
)
# At these values nothing is asked for.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}
# Where wrappers put the body of a request, and where the answer.
BODY_KEYS = ("body", "request", "request_body", "json", "payload")
ANSWER_KEYS = ("response", "response_body", "output", "completion")


class UnsupportedRequestError(ValueError):
    """A line is no request, or holds what a scenario cannot; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMessage:
    """One message; ``calls`` is true for an answer that called tools."""

    role: Role
    text: str
    calls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request.

    Attributes:
        place: where it stands, for messages: a line number or a file name.
        messages: of a chat. prompt: the exact prompt of a completion, None for a chat.
        max_tokens, temperature, stop: what it asked for.
        answer: what was answered, where the log holds it.
        left_out: parameters that change the answer and that a scenario does not have.
    """

    place: str
    messages: tuple[LoggedMessage, ...] = ()
    prompt: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    answer: str | None = None
    left_out: tuple[str, ...] = ()


def parse_logged_request(text: str, place: str) -> LoggedRequest:
    """Read one line of a log, or one saved body.

    Raises:
        UnsupportedRequestError: it is no request of the two completion APIs, or holds what a scenario cannot.
    """
    value = _parse_object(text)
    body, answer = _unwrap(value)
    if ("messages" in body) == ("prompt" in body):
        known = ", ".join(sorted(map(str, body))[:8]) or "none"
        raise UnsupportedRequestError(f"neither messages nor prompt; its keys: {known}")
    return LoggedRequest(
        place=place,
        messages=() if "prompt" in body else _read_messages(body["messages"]),
        prompt=_read_prompt(body["prompt"]) if "prompt" in body else None,
        max_tokens=_read_cap(body),
        temperature=_read_number(body.get("temperature")),
        stop=_read_stop(body.get("stop")),
        answer=answer,
        left_out=tuple(sorted(name for name in body if _asks_for_more(name, body[name]))),
    )


def _parse_object(text: str) -> Object:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnsupportedRequestError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedRequestError("no JSON object")
    return value


def _unwrap(value: Object) -> tuple[Object, str | None]:
    """Return the body inside wrappers, and the text of the answer beside it."""
    answer = None
    for _ in range(4):
        answer = answer if answer is not None else _find_answer(value)
        inner = next((value[key] for key in BODY_KEYS if key in value), None)
        if "messages" in value or "prompt" in value or inner is None:
            break
        value = _parse_object(inner) if isinstance(inner, str) else inner
        if not isinstance(value, dict):
            raise UnsupportedRequestError("no JSON object where the body of a request belongs")
    return value, answer


def _find_answer(value: Object) -> str | None:
    found = next((value[key] for key in ANSWER_KEYS if key in value), None)
    for _ in range(3):
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except ValueError:
                return None
        if isinstance(found, dict) and "choices" not in found and "body" in found:
            found = found["body"]
    try:
        choice = found["choices"][0]  # type: ignore[index]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None


def _read_messages(value: Any) -> tuple[LoggedMessage, ...]:
    if not isinstance(value, list) or not value:
        raise UnsupportedRequestError("messages is no list, or an empty one")
    return tuple(_read_message(item, number) for number, item in enumerate(value, start=1))


def _read_message(item: Any, number: int) -> LoggedMessage:
    role = ROLES.get(str(item.get("role"))) if isinstance(item, dict) else None
    if role is None:
        raise UnsupportedRequestError(f"message {number} has no role that is known")
    calls = bool(item.get("tool_calls") or item.get("function_call"))
    return LoggedMessage(role=role, text=_read_text(item.get("content"), number), calls=calls)


def _read_text(content: Any, number: int) -> str:
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise UnsupportedRequestError(
                f"message {number} holds a part that is no text: {kind or 'unknown'}"
            )
        texts.append(text)
    return _check_text("".join(texts), f"message {number}")


def _read_prompt(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]
    if not isinstance(value, str) or not value:
        raise UnsupportedRequestError("the prompt is no text: token ids and several prompts have no place")
    return _check_text(value, "the prompt")


def _check_text(text: str, place: str) -> str:
    if "\0" in text:
        raise UnsupportedRequestError(f"{place} holds a NUL character")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        # Bytes of the log that are no UTF-8 came as these.
        raw = "\udc80" <= text[error.start] <= "\udcff"
        what = "a byte that is no UTF-8" if raw else "half a character (a lone surrogate)"
        raise UnsupportedRequestError(f"{place} holds {what}") from error
    if size > MAX_PROMPT_BYTES:
        raise UnsupportedRequestError(f"{place} is longer than {MAX_PROMPT_BYTES:,} bytes")
    return text


def _read_cap(body: Object) -> int | None:
    value = body.get("max_completion_tokens", body.get("max_tokens"))
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if whole else None


def _read_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_stop(value: Any) -> tuple[str, ...]:
    words = value if isinstance(value, list) else [value]
    return tuple(_check_text(word, "a stop string") for word in words if isinstance(word, str) and word)


def _asks_for_more(name: str, value: Any) -> bool:
    return value is not None and name not in HARMLESS and value not in NEUTRAL.get(name, ())
