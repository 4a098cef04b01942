"""OpenAI's answer objects, whole or as chunks of a stream, turned into events.

Servers differ in what they add and leave out, so unknown fields are skipped and absent ones are not reported;
a field of the wrong type is an error that names it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .answer_events import (
    AnswerEvent,
    AnswerToken,
    CallPiece,
    Candidate,
    Counts,
    Finish,
    KeepAlive,
    Piece,
    ServerFault,
)

Object = Mapping[str, Any]
# No answer has so many tokens; counts are divided later, and far larger whole numbers are no floats.
MAX_COUNT = 10**12
SHOWN_CHARACTERS = 40
# Under either name; a server that changes from one to the other sends both, with the same text.
REASONING_FIELDS = ("reasoning_content", "reasoning")


class WrongObjectError(ValueError):
    """An answer object is not what the API promises; the message names the field."""


def read_object(value: object) -> Iterator[AnswerEvent]:
    """Yield the events of one object: a whole answer of either API, or one chunk of it.

    Raises:
        WrongObjectError: it is no answer, or a field has the wrong type.
    """
    if not isinstance(value, dict):
        raise WrongObjectError(f"a JSON {_kind(value)} where an object belongs")
    fault = _read_fault(value)
    if fault is not None:
        yield fault
        return
    choices = value.get("choices")
    if not isinstance(choices, list):
        known = ", ".join(sorted(map(str, value))[:8]) or "none"
        raise WrongObjectError(f"no list of choices; its keys: {known}")
    for place, choice in enumerate(choices):
        yield from _read_choice(_as_object(choice, f"choices[{place}]"))
    counts = _read_usage(value).join(_read_timings(value))
    if counts != Counts():
        yield counts
    elif not choices:
        yield KeepAlive()


def _read_fault(value: Object) -> ServerFault | None:
    error = value.get("error")
    if isinstance(error, str) and error:
        return ServerFault(message=error)
    if isinstance(error, dict):
        value = error
    elif value.get("object") != "error":
        return None
    message, kind, code = (value.get(name) for name in ("message", "type", "code"))
    told = message if isinstance(message, str) and message else "no message"
    return ServerFault(message=told, kind=_word(kind), code=_word(code))


def _read_choice(choice: Object) -> Iterator[AnswerEvent]:
    index = choice.get("index", 0)
    if index != 0:
        raise WrongObjectError(f"choice {index!r}, although one choice was asked for")
    yield _read_piece(choice)
    reason = choice.get("finish_reason")
    if reason is not None:
        # vLLM's: the stop string, the id of a stop token, or null for the usual one.
        told = isinstance(choice["stop_reason"], str) if "stop_reason" in choice else None
        yield Finish(reason=_as_text(reason, "finish_reason"), stop_string=told)


def _read_piece(choice: Object) -> Piece:
    ids = choice.get("token_ids")
    tokens = _read_logprobs(choice.get("logprobs"))
    token_ids = (
        None if ids is None else tuple(_as_count(one, "token_ids") for one in _as_list(ids, "token_ids"))
    )
    name = "delta" if choice.get("delta") is not None else "message"
    said = choice.get(name)
    if said is None:
        content = _as_text(choice.get("text"), "text")
        return Piece(content=content, token_ids=token_ids, tokens=tokens)
    said = _as_object(said, name)
    # A refusal is what the model said instead of content.
    content = _as_text(said.get("content"), f"{name}.content") + _as_text(
        said.get("refusal"), f"{name}.refusal"
    )
    reasoning = (_as_text(said.get(one), f"{name}.{one}") for one in REASONING_FIELDS)
    return Piece(
        content=content,
        reasoning=next(filter(None, reasoning), ""),
        calls=tuple(_read_calls(said.get("tool_calls"), f"{name}.tool_calls")),
        token_ids=token_ids,
        tokens=tokens,
    )


def _read_calls(value: object, place: str) -> Iterator[CallPiece]:
    for position, item in enumerate(_as_list(value, place)):
        call = _as_object(item, place)
        function = _as_object(call.get("function") or {}, f"{place}.function")
        index = call.get("index")
        yield CallPiece(
            index=position if index is None else _as_count(index, f"{place}.index"),
            name=_as_text(function.get("name"), f"{place}.function.name"),
            arguments=_as_text(function.get("arguments"), f"{place}.function.arguments"),
            call_id=_as_text(call.get("id"), f"{place}.id"),
        )


def _read_logprobs(value: object) -> tuple[AnswerToken, ...] | None:
    """Read the form of chats, with bytes, or that of completions, which has texts only."""
    if not isinstance(value, dict):
        return None
    content = value.get("content")
    if isinstance(content, list):
        return tuple(_read_token(_as_object(item, "logprobs.content")) for item in content)
    tops = value.get("top_logprobs")
    if not isinstance(value.get("tokens"), list):
        return None
    tokens = value["tokens"]
    rows = tops if isinstance(tops, list) and len(tops) == len(tokens) else [None] * len(tokens)
    own = value.get("token_logprobs")
    own = own if isinstance(own, list) and len(own) == len(tokens) else [None] * len(tokens)
    return tuple(
        AnswerToken(data=None, logprob=_read_finite(logprob, "logprob"), candidates=_read_row(row))
        for row, logprob in zip(rows, own, strict=True)
    )


def _read_token(entry: Object) -> AnswerToken:
    data = entry.get("bytes")
    tops = entry.get("top_logprobs")
    candidates = [_read_candidate(_as_object(one, "top_logprobs")) for one in tops or []]
    logprob = _read_finite(entry.get("logprob"), "logprob")
    return AnswerToken(data=_as_bytes(data), logprob=logprob, candidates=_sort(candidates))


def _read_finite(value: object, place: str) -> float | None:
    """Return a number; one that is not finite says nothing, and no record can hold it."""
    number = None if value is None else _as_number(value, place)
    return number if number is None or math.isfinite(number) else None


def _read_candidate(entry: Object) -> Candidate:
    data = _as_bytes(entry.get("bytes"))
    if data is None:
        data = _encode(_as_text(entry.get("token"), "top_logprobs.token"))
    return Candidate(token=data, logprob=_as_number(entry.get("logprob"), "top_logprobs.logprob"))


def _read_row(row: object) -> tuple[Candidate, ...]:
    if not isinstance(row, dict):
        return ()
    return _sort(
        [Candidate(token=_encode(str(k)), logprob=_as_number(v, "top_logprobs")) for k, v in row.items()]
    )


def _sort(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """Return the best first. One without a chance, of minus infinity, has no distance to another."""
    finite = [one for one in candidates if math.isfinite(one.logprob)]
    return tuple(sorted(finite, key=lambda one: -one.logprob))


def _read_usage(value: Object) -> Counts:
    usage = value.get("usage")
    if usage is None:
        return Counts()
    usage = _as_object(usage, "usage")
    prompt = _as_object(usage.get("prompt_tokens_details") or {}, "usage.prompt_tokens_details")
    completion = _as_object(usage.get("completion_tokens_details") or {}, "usage.completion_tokens_details")
    return Counts(
        prompt_tokens=_count_in(usage, "prompt_tokens", "usage"),
        completion_tokens=_count_in(usage, "completion_tokens", "usage"),
        cached_tokens=_count_in(prompt, "cached_tokens", "usage.prompt_tokens_details"),
        accepted_tokens=_count_in(
            completion, "accepted_prediction_tokens", "usage.completion_tokens_details"
        ),
        rejected_tokens=_count_in(
            completion, "rejected_prediction_tokens", "usage.completion_tokens_details"
        ),
    )


def _read_timings(value: Object) -> Counts:
    """Read the object that llama.cpp and servers after its manner add."""
    timings = value.get("timings")
    if not isinstance(timings, dict):
        return Counts()
    return Counts(
        prefill_tokens=_count_in(timings, "prompt_n", "timings"),
        cached_tokens=_count_in(timings, "cache_n", "timings"),
        drafted_tokens=_count_in(timings, "draft_n", "timings"),
        accepted_tokens=_count_in(timings, "draft_n_accepted", "timings"),
        tokens_per_s=_read_finite(timings.get("predicted_per_second"), "timings.predicted_per_second"),
    )


def _count_in(table: Object, name: str, place: str) -> int | None:
    value = table.get(name)
    return None if value is None else _as_count(value, f"{place}.{name}")


def _as_object(value: object, place: str) -> Object:
    if not isinstance(value, dict):
        raise WrongObjectError(f"{place}: a JSON {_kind(value)} where an object belongs")
    return value


def _as_list(value: object, place: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise WrongObjectError(f"{place}: a JSON {_kind(value)} where a list belongs")
    return value


def _as_text(value: object, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise WrongObjectError(f"{place}: a JSON {_kind(value)} where text belongs")
    return value


def _as_count(value: object, place: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise WrongObjectError(f"{place}: {_show(value)} where a count belongs")
    return value


def _as_number(value: object, place: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongObjectError(f"{place}: a JSON {_kind(value)} where a number belongs")
    try:
        return float(value)
    except OverflowError as error:
        raise WrongObjectError(f"{place}: {_show(value)} where a number belongs") from error


def _as_bytes(value: object) -> bytes | None:
    if not isinstance(value, list):
        return None
    if any(not isinstance(one, int) or not 0 <= one <= 255 for one in value):
        raise WrongObjectError("logprobs: bytes that are no numbers from 0 to 255")
    return bytes(value)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _show(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _word(value: object) -> str:
    return "" if value is None else str(value)[:80]


def _kind(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
