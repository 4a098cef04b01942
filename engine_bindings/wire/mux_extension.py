"""Serve mode's extension: options per request (OPTIONS), and what was picked for every token (TOKEN, SPEC).

An engine without it answers OPTIONS with `ERROR 0 BAD_REQUEST`; a client that sends no OPTIONS sees the plain
protocol byte for byte. The readers of the plain protocol pass TOKEN and SPEC lines on as `Note`.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

from .events import BAD_REQUEST, Note, Refused
from .parameters import MAX_REQUEST_ID

BAD_OPTION = "BAD_OPTION"
BAD_GRAMMAR = "BAD_GRAMMAR"
LARK_PREFIX = b"%lark\n"
MAX_LOGPROBS = 20
MAX_DEPTH = 8
MAX_SEED = 2**64 - 1
# No engine knows this option: one with the extension has to name it, one without cannot read the line.
PROBE_OPTION = "probe"

Payload: TypeAlias = Literal["text", "ids"]
ConstrainAfter: TypeAlias = Literal["prompt", "think"]
Origin: TypeAlias = Literal["p", "d", "g"]
Reason: TypeAlias = Literal["stop", "length", "stopped"]
Value: TypeAlias = bool | int | str
_WHOLE = re.compile(r"[0-9]{1,20}")


class OptionError(ValueError):
    """An OPTIONS line names a key or a value that is not there; `key` is what BAD_OPTION answers.

    `request_id` is the line's.
    """

    def __init__(self, key: str, *, request_id: int) -> None:
        super().__init__(f"no such option or value: {key}")
        self.key = key
        self.request_id = request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds for one request.

    Attributes:
        detail: TOKEN and SPEC lines are written.
        logprobs: so many alternatives per TOKEN line, at most 20; more than 0 implies detail.
        seed: the request's own sampling seed; None leaves it to the engine.
        depth: most drafts per forward, 0 for no speculation; None leaves it to the engine.
        payload: the prompt is text, or decimal token ids separated by spaces.
        constrain: the grammar limits what is sampled, instead of being a source of drafts at most.
        constrain_after: "think": when the prompt ends in `<think>`, the grammar begins behind the answer's
            `</think>`, and what comes before is free text; "prompt": it always begins with the answer.
        ignore_eos: stop tokens do not end the turn.
    """

    detail: bool = False
    logprobs: int = 0
    seed: int | None = None
    depth: int | None = None
    payload: Payload = "text"
    constrain: bool = False
    constrain_after: ConstrainAfter = "prompt"
    ignore_eos: bool = False


DEFAULTS = Options()


def encode_options(request_id: int, options: Options) -> bytes:
    """Write the OPTIONS line of the request that is submitted next under this id; defaults are left out."""
    words = [f"OPTIONS {request_id}"]
    for field in fields(options):
        value = getattr(options, field.name)
        if value != getattr(DEFAULTS, field.name):
            words.append(f"{field.name}={int(value) if isinstance(value, bool) else value}")
    return (" ".join(words) + "\n").encode()


def encode_probe(request_id: int) -> bytes:
    """Write the line that tells engines with and without the extension apart; never use the id again."""
    return f"OPTIONS {request_id} {PROBE_OPTION}=1\n".encode()


def read_probe(request_id: int, answer: Refused) -> bool | None:
    """Say what an ERROR line answers to the probe: there, not there, or None when it is no answer to it."""
    if answer.request_id == request_id and answer.code == BAD_OPTION:
        return True
    return False if answer.request_id == 0 and answer.code == BAD_REQUEST else None


def parse_options(line: str) -> tuple[int, Options]:
    """Read an OPTIONS line without its newline: the engine's end.

    Raises:
        OptionError: a key or value is not known; `key` names it.
        ValueError: the line is no OPTIONS line with an id.
    """
    word, request_id, *settings = line.split(" ")
    if word != "OPTIONS" or not 0 < _whole(request_id) <= MAX_REQUEST_ID:
        raise ValueError("not OPTIONS with a request id")
    values: dict[str, Value] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        try:
            values[key] = _OPTION_READERS[key](text)
        except (KeyError, ValueError) as error:
            raise OptionError(key, request_id=int(request_id)) from error
    options = Options(**values)  # type: ignore[arg-type]
    return int(request_id), options


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """`SPEC id drafted accepted forwards cached_tokens reason [forced_drafted forced_accepted]`.

    The first two counts are of MTP drafts only; the last two, of tokens that a grammar forced, may be absent.
    """

    request_id: int
    drafted_tokens: int
    accepted_tokens: int
    forwards: int
    cached_tokens: int
    reason: Reason
    forced_drafted_tokens: int | None = None
    forced_accepted_tokens: int | None = None

    def to_line(self) -> bytes:
        """Write the line without a newline."""
        counts = f"{self.drafted_tokens} {self.accepted_tokens} {self.forwards} {self.cached_tokens}"
        line = f"SPEC {self.request_id} {counts} {self.reason}"
        if self.forced_drafted_tokens is not None:
            line += f" {self.forced_drafted_tokens} {self.forced_accepted_tokens or 0}"
        return line.encode()


class Alternative(NamedTuple):
    """Another token that could have come, with its natural logarithm of probability."""

    token_id: int
    logprob: float


class TokenDetail(NamedTuple):
    """`TOKEN id token_id p|d|g logprob [alt_id:alt_logprob ...]`, just before the DATA of that token.

    `origin`: p picked from a forward's row, d accepted MTP draft, g forced by the grammar.
    """

    request_id: int
    token_id: int
    origin: Origin
    logprob: float
    alternatives: tuple[Alternative, ...] = ()

    def to_line(self) -> bytes:
        """Write the line without a newline."""
        line = f"TOKEN {self.request_id} {self.token_id} {self.origin} {self.logprob:.6f}"
        others = "".join(f" {token_id}:{logprob:.6f}" for token_id, logprob in self.alternatives)
        return (line + others).encode()


def parse_note(note: Note) -> TokenDetail | Speculation | None:
    """Read a Note of kind TOKEN or SPEC; None for any other kind. Raises ValueError when it is broken."""
    if note.kind == "TOKEN":
        return parse_token(note.line)
    return parse_speculation(note.line) if note.kind == "SPEC" else None


def parse_token(line: str) -> TokenDetail:
    """Read a TOKEN line without its newline. Raises ValueError when a field is missing or broken."""
    word, request_id, token_id, origin, logprob, *others = line.split(" ")
    if word != "TOKEN" or origin not in get_args(Origin):
        raise ValueError(f"not a TOKEN line: {line[:80]!r}")
    return TokenDetail(
        _whole(request_id),
        _whole(token_id),
        cast(Origin, origin),
        _logprob(logprob),
        tuple(_parse_alternatives(others)) if others else (),
    )


def parse_speculation(line: str) -> Speculation:
    """Read a SPEC line without its newline; fields beyond the known ones are ignored. Raises ValueError."""
    word, request_id, drafted, accepted, forwards, cached, reason, *forced = line.split(" ")
    if word != "SPEC" or reason not in get_args(Reason):
        raise ValueError(f"not a SPEC line: {line[:80]!r}")
    return Speculation(
        request_id=_whole(request_id),
        drafted_tokens=_whole(drafted),
        accepted_tokens=_whole(accepted),
        forwards=_whole(forwards),
        cached_tokens=_whole(cached),
        reason=cast(Reason, reason),
        forced_drafted_tokens=_whole(forced[0]) if len(forced) > 1 else None,
        forced_accepted_tokens=_whole(forced[1]) if len(forced) > 1 else None,
    )


def _parse_alternatives(texts: list[str]) -> Iterator[Alternative]:
    for text in texts:
        token_id, _, logprob = text.partition(":")
        yield Alternative(_whole(token_id), _logprob(logprob))


def _whole(text: str) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"not a whole number: {text[:40]!r}")
    return int(text)


def _logprob(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError("a logprob that is not a number")
    return value


def _up_to(limit: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _whole(text)
        if value > limit:
            raise ValueError(f"{value} is more than {limit}")
        return value

    return read


def _flag(text: str) -> bool:
    if text not in {"0", "1"}:
        raise ValueError(f"not a flag: {text!r}")
    return text == "1"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"none of {words}: {text!r}")
        return text

    return read


_OPTION_READERS: dict[str, Callable[[str], Value]] = {
    "detail": _flag,
    "logprobs": _up_to(MAX_LOGPROBS),
    "seed": _up_to(MAX_SEED),
    "depth": _up_to(MAX_DEPTH),
    "payload": _one_of(*get_args(Payload)),
    "constrain": _flag,
    "constrain_after": _one_of(*get_args(ConstrainAfter)),
    "ignore_eos": _flag,
}
