"""What is drawn at random, each from a seed of its own: runs of the healthy engine, and defects."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.plan import CellSpec, Plan
from harness.scenario import Conversation, Scenario
from harness.selfcheck.declared import DeclaredDefect
from harness.sweeps import expand_scenario

DEPTHS = (1, 2, 3, 4, 5)
# What one arm of a drawn run decodes at most, so that a run takes seconds.
MAX_TOKENS = 160
MAX_CONVERSATIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyDraw:
    """One run of the healthy engine: a depth and conversations of one scenario in a drawn order."""

    seed: int
    depth: int
    scenario: Scenario

    @property
    def what(self) -> str:
        """What is run, in words."""
        ids = [conversation.id for conversation in self.scenario.conversations]
        named = ids[:MAX_CONVERSATIONS]
        more = f" and {len(ids) - len(named)} more" if len(ids) > len(named) else ""
        return f"{self.scenario.name} at depth {self.depth}: {', '.join(named)}{more}"


def draw_healthy(scenarios: Sequence[Scenario], seed: int, number: int) -> HealthyDraw:
    """Draw run ``number``. Every scenario has its turn; the seed decides all else."""
    generator = _generator(seed, f"healthy {number}")
    depth = generator.choice(DEPTHS)
    scenario = expand_scenario(scenarios[number % len(scenarios)], depth)
    conversations = list(scenario.conversations)
    generator.shuffle(conversations)
    # Draws say something in numbers only.
    chosen = conversations if scenario.temperature > 0 else _take_affordable(conversations)
    return HealthyDraw(seed=seed, depth=depth, scenario=replace(scenario, conversations=tuple(chosen)))


def shuffle_cells(plan: Plan, seed: int, number: int) -> Plan:
    """Return the plan with its cells in a drawn order."""
    cells: list[CellSpec] = list(plan.cells)
    _generator(seed, f"order {number}").shuffle(cells)
    return replace(plan, cells=tuple(cells))


def draw_defects(defects: Sequence[DeclaredDefect], seed: int, each: int) -> tuple[DeclaredDefect, ...]:
    """Draw ``each`` available defects of every class, or all of one that has fewer; no controls."""
    classes: defaultdict[str, list[DeclaredDefect]] = defaultdict(list)
    for defect in defects:
        if defect.available and not defect.is_control:
            classes[defect.verdict].append(defect)
    drawn = [
        defect
        for name, members in classes.items()
        for defect in _generator(seed, f"defects {name}").sample(members, min(each, len(members)))
    ]
    return tuple(defect for defect in defects if defect in drawn)


def _take_affordable(conversations: Sequence[Conversation]) -> list[Conversation]:
    """Return the first conversation, and those of the others that fit beside it."""
    chosen = [conversations[0]]
    room = MAX_TOKENS - _caps(conversations[0])
    for conversation in conversations[1:]:
        if len(chosen) < MAX_CONVERSATIONS and _caps(conversation) <= room:
            chosen.append(conversation)
            room -= _caps(conversation)
    return chosen


def _caps(conversation: Conversation) -> int:
    return sum(turn.max_tokens for turn in conversation.turns)


def _generator(seed: int, what: str) -> random.Random:
    return random.Random(f"{seed} {what}")  # noqa: S311 - chance, not secrecy
