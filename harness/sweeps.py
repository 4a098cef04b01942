"""Turns a swept turn into one conversation for each of its values, once the draft depth is known."""

from collections.abc import Iterator
from dataclasses import replace

from engine_bindings.errors import ScenarioError
from harness.scenario import Conversation, Scenario, Sweep, Turn
from harness.scenario_format import DRAW_MARK

# The set "every" reaches this many blocks of depth + 1 tokens: an answer that ends by itself within the first
# three of them is met by every cap from its end - depth to its end + depth.
EVERY_BLOCKS = 4
# All of a scenario is in the plan and in the memory of every stage; a cell with more would run for days.
MAX_CONVERSATIONS = 20_000
MAX_TEXT_BYTES = 256 << 20


def expand_scenario(scenario: Scenario, depth: int) -> Scenario:
    """Return the scenario with its sweeps written out for a draft depth; without sweeps it is unchanged.

    Raises:
        ScenarioError: it would have more conversations or text than a run can hold.
    """
    _check_size(scenario, depth)
    conversations = [
        expanded
        for conversation in scenario.conversations
        for expanded in _expand_conversation(conversation, depth)
    ]
    return replace(scenario, conversations=tuple(conversations))


def _check_size(scenario: Scenario, depth: int) -> None:
    conversations = size_bytes = 0
    for conversation in scenario.conversations:
        swept = next((turn for turn in conversation.turns if turn.sweep is not None), None)
        sweep = swept.sweep if swept else None
        number = _count_values(sweep, depth) if sweep else 1
        conversations += number
        size_bytes += number * sum(len(turn.text) for turn in conversation.turns)
        if swept and sweep and sweep.kind == "repeat":
            size_bytes += len(swept.text) * sum(int(times) - 1 for times in sweep.values)
    if conversations > MAX_CONVERSATIONS or size_bytes > MAX_TEXT_BYTES:
        raise ScenarioError(
            f"scenario {scenario.name!r}: its sweeps are {conversations:,} conversations with {size_bytes:,}"
            f" bytes of text; the most are {MAX_CONVERSATIONS:,} and {MAX_TEXT_BYTES:,}",
            hint="sweep over fewer values, or make several scenarios of it",
        )


def _count_values(sweep: Sweep, depth: int) -> int:
    if sweep.kind == "cap":
        return len(list_caps(str(sweep.values[0]), depth))
    return int(sweep.values[0]) if sweep.kind == "draw" else len(sweep.values)


def list_caps(name: str, depth: int) -> tuple[int, ...]:
    """Return the caps of a set in rising order.

    ``grid``: 1, 2, depth, depth + 1 and 2 x depth + 1, the ends of blocks and one token past them.
    ``every``: each cap from 1 to the end of the fourth block.

    >>> list_caps("grid", 3)
    (1, 2, 3, 4, 7)
    """
    if name == "grid":
        return tuple(sorted({1, 2, depth, depth + 1, 2 * depth + 1} - {0}))
    return tuple(range(1, EVERY_BLOCKS * (depth + 1) + 1))


def _expand_conversation(conversation: Conversation, depth: int) -> Iterator[Conversation]:
    for index, turn in enumerate(conversation.turns):
        if turn.sweep is not None:
            for suffix, run in _expand_turn(turn, turn.sweep, depth):
                turns = (*conversation.turns[:index], run, *conversation.turns[index + 1 :])
                yield replace(conversation, id=f"{conversation.id}.{suffix}", turns=turns)
            return
    yield conversation


def _expand_turn(turn: Turn, sweep: Sweep, depth: int) -> Iterator[tuple[str, Turn]]:
    """Yield what the conversation's id gets, and the turn, for each value of the sweep."""
    bare = replace(turn, sweep=None)
    match sweep.kind:
        case "cap":
            for cap in list_caps(str(sweep.values[0]), depth):
                yield f"cap-{cap}", replace(bare, max_tokens=cap)
        case "stop":
            for number, word in enumerate(sweep.values, start=1):
                yield f"stop-{number}", replace(bare, stop=(str(word),))
        case "draw":
            for number in range(1, int(sweep.values[0]) + 1):
                yield f"draw-{number}", replace(bare, text=turn.text.replace(DRAW_MARK, str(number)))
        case "repeat":
            for times in sweep.values:
                yield f"times-{times}", replace(bare, text=turn.text * int(times))
