"""What a scenario declares of answers within one cell: equal to earlier ones, or refused."""

from dataclasses import dataclass

from harness.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One turn's answer must be the joined answers of ``parts``, or a refusal where there are none.

    ``turn`` and ``parts`` are indexes of turns in the conversation, from 0.
    """

    conversation: str
    turn: int
    parts: tuple[int, ...]


def list_relations(scenario: Scenario) -> tuple[Relation, ...]:
    """Return the relations of a scenario in the order of its turns."""
    return tuple(
        Relation(conversation=conversation.id, turn=index, parts=tuple(number - 1 for number in turn.same_as))
        for conversation in scenario.conversations
        for index, turn in enumerate(conversation.turns)
        if turn.same_as or turn.refusal == "expected"
    )
