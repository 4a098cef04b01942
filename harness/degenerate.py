"""Finds answers whose speed means nothing: loops, which any head guesses, and recitation of the prompt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from harness.identity import show_bytes
from harness.plan import Arm, CellSpec, Plan
from harness.transcript import CellRecord

# A loop is a piece that comes so often in a row, over so many bytes, and over this share of the answer. Lists
# and tables repeat their frame but not their words, so they stay below it.
MIN_REPEATS = 4
MIN_LOOP_BYTES = 64
MIN_LOOP_SHARE = 0.4
# An answer recites when this share of it stands in the prompt, in pieces of at least so many bytes.
MIN_PIECE_BYTES = 32
MIN_RECITED_BYTES = 128
MIN_RECITED_SHARE = 0.8
# A class of conversations that asks for a copy of the prompt is not marked for giving it.
COPY_CLASS = "copy"

# Shown of the piece that repeats.
SHOWN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DegenerateAnswer:
    """One answer that loops or recites. ``evidence`` says so in words and numbers."""

    arm: Arm
    scenario: str
    conversation: str
    turn: int
    kind: Literal["loop", "recitation"]
    evidence: str


def find_degenerate_answers(
    plan: Plan, latest: Mapping[CellSpec, CellRecord]
) -> tuple[DegenerateAnswer, ...]:
    """Return the marked answers, each once for an arm however often it was repeated."""
    found: dict[DegenerateAnswer, None] = {}
    for spec, record in latest.items():
        categories = {c.id: c.category for c in plan.scenario(spec.scenario).conversations}
        for turn in record.turns:
            kind: Literal["loop", "recitation"] = "loop"
            evidence = find_loop(turn.text)
            if evidence is None and categories[turn.conversation] != COPY_CLASS:
                kind, evidence = "recitation", find_recitation(turn.text, turn.prompt)
            if evidence is not None:
                answer = DegenerateAnswer(
                    arm=spec.arm,
                    scenario=spec.scenario,
                    conversation=turn.conversation,
                    turn=turn.turn,
                    kind=kind,
                    evidence=evidence,
                )
                found[answer] = None
    return tuple(found)


def find_loop(text: bytes) -> str | None:
    """Say which piece the end of ``text`` repeats, or None when it does not loop."""
    size, period = _longest_loop(text[::-1])
    if size < MIN_LOOP_BYTES or size < MIN_LOOP_SHARE * len(text):
        return None
    piece = show_bytes(text[len(text) - period :][:SHOWN_BYTES])
    return f"its last {size} of {len(text)} bytes repeat {piece} {size // period} times"


def find_recitation(text: bytes, prompt: bytes) -> str | None:
    """Say how much of ``text`` stands in ``prompt`` word for word, or None when it is no recitation."""
    if len(text) < MIN_RECITED_BYTES:
        return None
    pieces = {prompt[i : i + MIN_PIECE_BYTES] for i in range(len(prompt) - MIN_PIECE_BYTES + 1)}
    recited = covered = 0
    for start in range(len(text) - MIN_PIECE_BYTES + 1):
        if text[start : start + MIN_PIECE_BYTES] in pieces:
            recited += start + MIN_PIECE_BYTES - max(start, covered)
            covered = start + MIN_PIECE_BYTES
    if recited < MIN_RECITED_SHARE * len(text):
        return None
    return f"{recited} of its {len(text)} bytes stand in the prompt word for word"


def _longest_loop(text: bytes) -> tuple[int, int]:
    """Return length and period of the longest prefix of ``text`` that repeats a piece often enough.

    A prefix of length n has the shortest period n - border(n), where border is the prefix function of Knuth,
    Morris and Pratt.
    """
    border = [0] * (len(text) + 1)
    best = (0, 1)
    k = 0
    for i in range(1, len(text)):
        while k and text[i] != text[k]:
            k = border[k]
        k += text[i] == text[k]
        border[i + 1] = k
        period = i + 1 - k
        if period * MIN_REPEATS <= i + 1:
            best = (i + 1, period)
    return best


IsDegenerate = Callable[[Arm, str, str, int], bool]


def mark_degenerate(answers: tuple[DegenerateAnswer, ...]) -> IsDegenerate:
    """Return a function that says whether an arm's turn is marked."""
    marked = {(a.arm, a.scenario, a.conversation, a.turn) for a in answers}
    return lambda arm, scenario, conversation, turn: (arm, scenario, conversation, turn) in marked
