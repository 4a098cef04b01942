"""What a server's answer over HTTP is made of, whatever its JSON looks like: pieces, how it ended, and
counts.
"""

from dataclasses import dataclass, field, fields
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One token that could have come: text as bytes, natural log probability, and id where it is told."""

    token: bytes
    logprob: float
    token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerToken:
    """One token with its probabilities: its bytes and its own log probability, each None where it is not
    told, and the best candidates.
    """

    data: bytes | None
    logprob: float | None = None
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """A part of tool call number ``index``: its name when it begins, and the next text of its arguments."""

    index: int
    name: str = ""
    arguments: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Output that came together. One piece is any number of tokens: pieces are never counted as tokens.

    Attributes:
        content, reasoning: the next text of each.
        calls: the next parts of tool calls.
        token_ids: ids of the tokens of this piece, None where the server shows none.
        tokens: the same tokens with their probabilities, None where the server shows none.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()
    token_ids: tuple[int, ...] | None = None
    tokens: tuple[AnswerToken, ...] | None = None

    @property
    def is_output(self) -> bool:
        """False for a role, a keep-alive or an empty delta."""
        return bool(self.content or self.reasoning or self.calls)

    @property
    def token_count(self) -> int | None:
        """Tokens of this piece, None where the server does not show them."""
        shown = self.token_ids if self.token_ids is not None else self.tokens
        return None if shown is None else len(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Why the answer ended, in the server's word.

    ``stop_string`` is whether a stop string ended it, None where the server does not tell that from a stop
    token.
    """

    reason: str
    stop_string: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of one answer as the server reports them; None is not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    rejected_tokens: int | None = None
    forwards: int | None = None
    tokens_per_s: float | None = None

    def join(self, later: "Counts") -> "Counts":
        """Return both, the later ones where both have a number."""
        joined = {item.name: getattr(self, item.name) for item in fields(Counts)}
        told = {item.name: getattr(later, item.name) for item in fields(Counts)}
        told["drafted_tokens"] = later.drafted
        return Counts(**{name: joined[name] if told[name] is None else told[name] for name in joined})

    @property
    def drafted(self) -> int | None:
        """Drafts proposed: as reported, else those taken and those not."""
        if self.drafted_tokens is not None or self.accepted_tokens is None or self.rejected_tokens is None:
            return self.drafted_tokens
        return self.accepted_tokens + self.rejected_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFault:
    """An error that the server reports, also inside an answer whose status was 200."""

    message: str
    kind: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    """A sign of life that is no output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """The answer is complete. ``remarks`` say where its form was not what it should be."""

    remarks: tuple[str, ...] = field(default=())


AnswerEvent: TypeAlias = Piece | Finish | Counts | ServerFault | KeepAlive | AnswerEnd
