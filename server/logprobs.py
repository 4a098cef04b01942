"""OpenAI's two forms of token probabilities, from what the engine says of every token."""

from collections.abc import Iterable, Sequence
from typing import Any

from server.engine_turn import Token
from server.tokens import Tokens

# JSON has no infinity; OpenAI's own value for a token that cannot come.
LEAST_LOGPROB = -9999.0
Entry = dict[str, Any]


def chat_logprobs(tokens: Iterable[Token], vocabulary: Tokens) -> Entry:
    """Return the ``logprobs`` of a chat choice, one entry for every token."""
    return {"content": [_chat_entry(token, vocabulary) for token in tokens], "refusal": None}


def completion_logprobs(tokens: Sequence[Token], vocabulary: Tokens, offset: int) -> Entry:
    """Return the ``logprobs`` of a completion; ``offset`` is where the first token's text starts."""
    entries = [_chat_entry(token, vocabulary) for token in tokens]
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in entry["top_logprobs"]} for entry in entries
        ],
        "text_offset": offsets,
    }


def token_ids(tokens: Iterable[Token]) -> list[int]:
    """Return the ids of tokens."""
    return [token.detail.token_id for token in tokens if token.detail is not None]


def _chat_entry(token: Token, vocabulary: Tokens) -> Entry:
    detail = token.detail
    if detail is None:
        return {**_token_entry(token.payload, LEAST_LOGPROB), "top_logprobs": []}
    others = (_token_entry(vocabulary.token_bytes(one.token_id), one.logprob) for one in detail.alternatives)
    return {**_token_entry(token.payload, detail.logprob), "top_logprobs": list(others)}


def _token_entry(payload: bytes, logprob: float) -> Entry:
    return {
        "token": payload.decode("utf-8", "replace"),
        "logprob": max(logprob, LEAST_LOGPROB),
        "bytes": list(payload),
    }
