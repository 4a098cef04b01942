"""The answer that a relation within a cell asks for, as a turn that the given one is held against."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from harness.margins import join_token_margins
from harness.metrics import sum_reported
from harness.relations import Relation
from harness.transcript import Finish, TurnRecord


def expect_answer(relation: Relation, turns: Mapping[tuple[str, int], TurnRecord]) -> TurnRecord | None:
    """Return the turn that must equal the related one in what it answers.

    None when the engine read a joined answer as other tokens than it had given: a prompt that holds other
    tokens may go on in another way, so nothing follows from a difference.

    Args:
        relation: the relation, on turns that are in ``turns``.
        turns: the turns of one cell by conversation and index.
    """
    turn = turns[relation.conversation, relation.turn]
    if not relation.parts:
        return replace(turn, text=b"", finish="refused", emitted_tokens=None, token_lengths=None)
    parts = [turns[relation.conversation, index] for index in relation.parts]
    if not all(_goes_on(a, b) for a, b in pairwise(parts)):
        return None
    return replace(
        parts[-1],
        turn=turn.turn,
        text=b"".join(part.text for part in parts),
        finish=_name_end(relation, parts[-1]),
        emitted_tokens=sum_reported(part.emitted_tokens for part in parts),
        token_lengths=_join_lengths(parts),
        margins=join_token_margins(parts),
    )


def _name_end(relation: Relation, last: TurnRecord) -> Finish:
    # Under one cap both sides were cut at the same place, so what they say of it is compared.
    cut = not relation.same_limits and is_cut(last, relation.last_cap_tokens)
    return "length" if cut else last.finish


def is_cut(turn: TurnRecord, cap_tokens: int | None) -> bool:
    """Say whether the cap ended an answer, or may have: engines are known to call every end a stop."""
    return turn.finish == "length" or (turn.emitted_tokens is not None and turn.emitted_tokens == cap_tokens)


def _goes_on(before: TurnRecord, part: TurnRecord) -> bool:
    """Say whether ``part`` goes on from the very tokens that were given before."""
    if before.prompt_tokens is None or before.emitted_tokens is None or part.prompt_tokens is None:
        return False
    same_text = part.prompt == before.prompt + before.text
    return same_text and part.prompt_tokens == before.prompt_tokens + before.emitted_tokens


def _join_lengths(parts: Sequence[TurnRecord]) -> tuple[int, ...] | None:
    """Return the boundaries of the joined answer, None when a part shows none or was cut at a stop string."""
    shown = [part.token_lengths for part in parts if sum(part.token_lengths or ()) == len(part.text)]
    known = [lengths for lengths in shown if lengths is not None]
    return tuple(length for own in known for length in own) if len(known) == len(parts) else None
