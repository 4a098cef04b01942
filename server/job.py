"""What one HTTP request asks of the engine, and what comes out of it, independent of the endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from server.answer_text import Delta
from server.chat_prompt import Prompt
from server.engine_turn import Token
from server.request_bodies import FunctionDefinition

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request, checked and rendered.

    Attributes:
        id: the id that the client sees.
        received_ns: when the request arrived, by the monotonic clock.
        max_tokens: cap that the client asked for; None for all the room that the context has.
        seed: None when the client gave none.
        grammar: what the answer must obey; empty for nothing.
        grammar_param: the parameter that asked for it.
        prompt_param: the parameter that the prompt comes from.
        logprobs: alternatives per token; None when logprobs were not asked for.
        token_ids: token ids were asked for.
        choices: how many answers.
        splits_reasoning: reasoning is told apart from content.
        functions: functions whose calls are read out of the answer, by name.
    """

    id: str
    received_ns: int
    prompt: Prompt
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None = None
    stops: tuple[str, ...] = ()
    grammar: bytes = b""
    grammar_param: str = "grammar"
    prompt_param: str = "messages"
    logprobs: int | None = None
    token_ids: bool = False
    choices: int = 1
    ignore_eos: bool = False
    splits_reasoning: bool = False
    functions: Mapping[str, FunctionDefinition] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Times of one choice by the server's clock, in ms; None when there was nothing to time.

    Attributes:
        prompt_ms: acceptance to first token.
        predicted_ms: first token to last.
        timed_tokens: the tokens that came in that time: those that were not read together with the first.
    """

    prompt_ms: float | None
    predicted_ms: float | None
    timed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceCounts:
    """Counts of one choice; None where the engine does not report one.

    Attributes:
        completion_tokens: up to and including the one that completed a stop string.
        accepted_tokens: of those, the ones that were MTP drafts; where the engine does not say it, emitted
            tokens less forwards.
        rejected_tokens: drafts that the model did not take.
    """

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    reasoning_tokens: int
    drafted_tokens: int | None
    accepted_tokens: int | None
    rejected_tokens: int | None
    forwards: int | None


class Started(NamedTuple):
    """The engine took the prompt of a choice; only now is a request sure not to be refused."""

    choice: int
    prompt_tokens: int


class Piece(NamedTuple):
    """What became visible with some tokens; the deltas of several tokens never share a piece."""

    choice: int
    deltas: list[Delta]
    tokens: list[Token]


class Ended(NamedTuple):
    """The end of a choice."""

    choice: int
    finish_reason: FinishReason
    counts: ChoiceCounts
    timings: Timings


JobEvent = Started | Piece | Ended
