"""What a scenario declares of answers within one cell: equal to earlier ones, or refused."""

from dataclasses import dataclass

from harness.scenario import Conversation, Scenario, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One turn's answer must be the joined answers of ``parts``, or a refusal where there are none.

    ``turn`` and ``parts`` are indexes of turns in the conversation, from 0. ``same_limits``: there is one
    part, with the cap and the stop strings of the turn, so that both must end alike too. ``cap_tokens`` and
    ``last_cap_tokens`` are the caps of the turn and of the last part.
    """

    conversation: str
    turn: int
    parts: tuple[int, ...]
    same_limits: bool = False
    cap_tokens: int | None = None
    last_cap_tokens: int | None = None


def list_relations(scenario: Scenario) -> tuple[Relation, ...]:
    """Return the relations of a scenario in the order of its turns."""
    return tuple(
        _build_relation(conversation, index, turn)
        for conversation in scenario.conversations
        for index, turn in enumerate(conversation.turns)
        if turn.same_as or turn.refusal == "expected"
    )


def _build_relation(conversation: Conversation, index: int, turn: Turn) -> Relation:
    parts = tuple(number - 1 for number in turn.same_as)
    limits = [(asked.max_tokens, asked.stop) for asked in (turn, *(conversation.turns[p] for p in parts))]
    return Relation(
        conversation=conversation.id,
        turn=index,
        parts=parts,
        same_limits=len(parts) == 1 and limits[0] == limits[1],
        cap_tokens=turn.max_tokens,
        last_cap_tokens=conversation.turns[parts[-1]].max_tokens if parts else None,
    )
