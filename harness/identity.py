"""Compares two turns that must be the same, and says exactly where they first are not."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from harness.transcript import TurnRecord

Field = Literal[
    "tokens",
    "finish_reason",
    "token_count",
    "prompt_tokens",
    "prefill_tokens",
    "cached_tokens",
    "forwards",
    "drafted_tokens",
    "accepted_tokens",
]

DRAFT_FIELDS = frozenset({"forwards", "drafted_tokens", "accepted_tokens"})
# Chat mode has one flag for all of these.
CUT_BY_THE_ENGINE = {"length", "broken-grammar"}
CONTEXT_BYTES = 40
NEXT_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which two turns differ.

    Attributes:
        field: which.
        byte_offset: for ``tokens``, the first byte of the answer that differs; where only the token
            boundaries differ, the start of the first token that does.
        token_index: for ``tokens``, the first token that differs, None when neither side shows boundaries.
        context: for ``tokens``, the bytes before, printable; empty for other fields.
        a, b: the values, or what each side goes on with, printable.
    """

    field: Field
    byte_offset: int | None = None
    token_index: int | None = None
    context: str = ""
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnComparison:
    """What comparing two turns showed. ``not_compared`` names the fields that one side does not report."""

    differences: tuple[Difference, ...]
    not_compared: tuple[Field, ...]


def compare_turns(
    a: TurnRecord,
    b: TurnRecord,
    *,
    prefix_uncertain: bool = False,
    prefix_moved: bool = False,
    answers_only: bool = False,
    same_request: bool = False,
    may_be_cut: bool = False,
    counters: bool = False,
) -> TurnComparison:
    """Compare two turns field by field.

    Behind a stop string the engine may have gone on for as many tokens as it took to hear of it, so the
    token count of such a turn is not compared, nor is the prefix that the next turn finds in the cache. A
    cancelled answer may end anywhere: it must be the beginning of the other one, and that is all. The same
    holds of an answer that ended at its cap where only the answers are compared, since the caps may differ;
    unless both are one request: then the ends, and what was drafted, are compared too, whatever was found in
    the cache.

    Args:
        a: one turn.
        b: the turn that must be the same.
        prefix_uncertain: the turn before was cut at a stop string on at least one side.
        prefix_moved: the sides run in different contexts, so only the prefix is not compared.
        answers_only: the prompts are not the same ones, so their counts are not compared.
        same_request: with ``answers_only``: prompt, cap and stop strings are the same.
        may_be_cut: with ``answers_only``: the cap ended the first side, or may have, whatever it says.
        counters: both sides must also draft and verify alike: their depth is the same, and the engine's
            counts depend on nothing but the prompt.
    """
    found: list[Difference] = []
    skipped: list[Field] = []
    beginning = _may_end_early(a, b, caps_differ=answers_only and not same_request, may_be_cut=may_be_cut)
    if difference := _compare_beginnings(a, b, beginning) if beginning else _compare_tokens(a, b):
        found.append(difference)
    if a.finish != b.finish and not beginning and not {a.finish, b.finish} <= CUT_BY_THE_ENGINE:
        found.append(Difference(field="finish_reason", a=a.finish, b=b.finish))
    counts = _counts(a, b, prefix_uncertain=prefix_uncertain or prefix_moved, answers_only=answers_only)
    counted = same_request if answers_only else not prefix_uncertain
    if counters and counted and "stop-string" not in (a.finish, b.finish) and not beginning:
        counts += _draft_counts(a, b)
    if a.finish == b.finish == "refused":
        counts = []
    for field, left, right in counts:
        if left is None or right is None:
            skipped.append(field)
        elif left != right:
            found.append(Difference(field=field, a=str(left), b=str(right)))
    return TurnComparison(differences=tuple(found), not_compared=tuple(skipped))


def show_bytes(data: bytes) -> str:
    """Return ``data`` as one printable line in quotes; bytes that are not UTF-8 are shown in hexadecimal."""
    parts = []
    while data:
        try:
            parts.append(repr(data.decode("utf-8"))[1:-1])
            break
        except UnicodeDecodeError as error:
            parts.append(repr(data[: error.start].decode("utf-8"))[1:-1])
            parts += [f"\\x{byte:02x}" for byte in data[error.start : error.end]]
            data = data[error.end :]
    return f"'{''.join(parts)}'"


def _counts(
    a: TurnRecord, b: TurnRecord, *, prefix_uncertain: bool, answers_only: bool
) -> list[tuple[Field, int | None, int | None]]:
    fields: list[tuple[Field, int | None, int | None]] = []
    counted = not {"stop-string", "cancelled"} & {a.finish, b.finish}
    if counted and (a.text == b.text or not answers_only):
        fields.append(("token_count", a.emitted_tokens, b.emitted_tokens))
    if answers_only:
        return fields
    fields.append(("prompt_tokens", a.prompt_tokens, b.prompt_tokens))
    if not prefix_uncertain:
        fields.append(("prefill_tokens", a.prefill_tokens, b.prefill_tokens))
        fields.append(("cached_tokens", a.cached_tokens, b.cached_tokens))
    return fields


def _draft_counts(a: TurnRecord, b: TurnRecord) -> list[tuple[Field, int | None, int | None]]:
    """Return the values of ``DRAFT_FIELDS``."""
    return [
        ("forwards", a.forwards, b.forwards),
        ("drafted_tokens", a.drafted_tokens, b.drafted_tokens),
        ("accepted_tokens", a.accepted_tokens, b.accepted_tokens),
    ]


def _compare_tokens(a: TurnRecord, b: TurnRecord) -> Difference | None:
    ends_a, ends_b = _visible_ends(a), _visible_ends(b)
    if a.text != b.text:
        return _describe_text(a.text, b.text, first_token_index(a, b, ends_a, ends_b))
    if ends_a is None or ends_b is None or ends_a == ends_b:
        return None
    return _describe_boundary(a.text, ends_a, ends_b)


def _may_end_early(
    a: TurnRecord, b: TurnRecord, *, caps_differ: bool, may_be_cut: bool
) -> tuple[TurnRecord, ...]:
    """Return the sides that need only be the beginning of the other: cancelled, or at a cap of their own."""
    if "refused" in (a.finish, b.finish):
        return ()
    early = ("cancelled", "length") if caps_differ else ("cancelled",)
    cut = (caps_differ and may_be_cut, False)
    return tuple(turn for turn, ends in zip((a, b), cut, strict=True) if ends or turn.finish in early)


def _compare_beginnings(a: TurnRecord, b: TurnRecord, early: Sequence[TurnRecord]) -> Difference | None:
    if _common_prefix(a.text, b.text) == min(len(turn.text) for turn in early):
        return None
    return _describe_text(a.text, b.text, first_token_index(a, b, _visible_ends(a), _visible_ends(b)))


def _visible_ends(turn: TurnRecord) -> tuple[int, ...] | None:
    """Return where each token ends in the visible text; a token that a stop string cuts ends with the
    text.
    """
    if turn.token_lengths is None:
        return None
    size = len(turn.text)
    ends = tuple(accumulate(turn.token_lengths))
    whole = bisect_right(ends, size)
    if whole < len(ends) and (ends[whole - 1] if whole else 0) < size:
        return (*ends[:whole], size)
    return ends[:whole]


def first_token_index(
    a: TurnRecord, b: TurnRecord, ends_a: Sequence[int] | None, ends_b: Sequence[int] | None
) -> int | None:
    """Return the index of the first token that differs, from both sides' boundaries or from one side's."""
    offset = _common_prefix(a.text, b.text)
    if ends_a is not None and ends_b is not None:
        # Equal ends up to the first differing byte are equal tokens.
        return min(_common_prefix(ends_a, ends_b), bisect_right(ends_a, offset), bisect_right(ends_b, offset))
    ends = ends_a if ends_a is not None else ends_b
    return bisect_right(ends, offset) if ends is not None else None


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def _describe_text(a: bytes, b: bytes, token_index: int | None) -> Difference:
    offset = _common_prefix(a, b)
    # Shown from the start of the character, so that half of one is not printed as raw bytes.
    start = _character_start(a, offset)
    return Difference(
        field="tokens",
        byte_offset=offset,
        token_index=token_index,
        context=_show_before(a, start),
        a=_show_next(a, start),
        b=_show_next(b, start),
    )


def _describe_boundary(text: bytes, ends_a: Sequence[int], ends_b: Sequence[int]) -> Difference:
    index = _common_prefix(ends_a, ends_b)
    start = ends_a[index - 1] if index else 0
    return Difference(
        field="tokens",
        byte_offset=start,
        token_index=index,
        context=_show_before(text, start),
        a=_show_token(text, ends_a, index, start),
        b=_show_token(text, ends_b, index, start),
    )


def _show_token(text: bytes, ends: Sequence[int], index: int, start: int) -> str:
    return f"the token {show_bytes(text[start : ends[index]])}" if index < len(ends) else END_OF_ANSWER


END_OF_ANSWER = "the end of the answer"


def _show_next(text: bytes, start: int) -> str:
    if start >= len(text):
        return END_OF_ANSWER
    end = _character_start(text, start + NEXT_BYTES)
    return show_bytes(text[start : end if end > start else start + NEXT_BYTES])


def _show_before(text: bytes, end: int) -> str:
    return show_bytes(text[_character_start(text, max(0, end - CONTEXT_BYTES)) : end])


def _character_start(text: bytes, offset: int) -> int:
    """Return the start of the UTF-8 character that holds ``offset``; ``offset`` itself where it is not
    one.
    """
    if offset >= len(text):
        return offset
    for start in range(offset, max(-1, offset - 4), -1):
        if text[start] & 0xC0 != 0x80:
            return start
    return offset
