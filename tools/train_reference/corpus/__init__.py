"""Our own generated training text: seeded, with no outside source.

``document`` makes one dialogue of one class. The classes mix fixed templates, which a draft head learns
to predict, with words chosen at random or copied from far back, which it sometimes cannot.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from . import agent, recall, structured, talk, words
from .dialogue import Dialogue, Segment, render

__all__ = [
    "DRILL_MIX",
    "LONG_MIX",
    "SHORT_MIX",
    "THOUGHTS",
    "Dialogue",
    "Segment",
    "agent",
    "document",
    "drill",
    "long_document",
    "recall",
    "render",
    "session",
    "structured",
    "talk",
    "word_drill",
    "words",
]

Maker = Callable[[random.Random], Dialogue]

SHORT_MIX: tuple[tuple[float, Maker], ...] = (
    (0.16, recall.repeat),
    (0.11, recall.remember),
    (0.06, recall.quote),
    (0.11, talk.short_tasks),
    (0.03, recall.talk),
    (0.05, talk.questions),
    (0.02, talk.foreign_words),
    (0.07, talk.story),
    (0.05, talk.description),
    (0.06, talk.listing),
    (0.03, talk.own_list),
    (0.05, structured.records),
    (0.03, structured.to_json),
    (0.05, structured.functions),
    (0.04, structured.record_class),
    (0.08, agent.tool_use),
)
DRILL_MIX: tuple[tuple[float, Maker], ...] = (
    (0.7, recall.drill),
    (0.15, recall.quote),
    (0.15, talk.own_list),
)
LONG_MIX: tuple[tuple[float, Maker], ...] = (
    (0.14, lambda rng: structured.records(rng, rng.randrange(7, 15))),
    (0.07, lambda rng: structured.functions(rng, rng.randrange(5, 10))),
    (0.08, lambda rng: structured.record_class(rng, rng.randrange(4, 9))),
    (0.12, lambda rng: talk.listing(rng, rng.randrange(18, 41))),
    (0.05, talk.long_count),
    (0.12, lambda rng: talk.story(rng, rng.randrange(3, 8))),
    (0.08, lambda rng: talk.description(rng, 2)),
    (0.14, lambda rng: recall.repeat(rng, rng.randrange(7, 14))),
    (0.08, lambda rng: recall.remember(rng, rng.randrange(5, 12))),
    (0.03, lambda rng: talk.foreign_words(rng, rng.randrange(7, 13))),
    (0.09, lambda rng: agent.agent_loop(rng, rng.randrange(2, 5), rng.choice((0, 5)))),
)
SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "You are a small and friendly helper. Answer in few words.",
    "Answer the questions of the user.",
)
THOUGHTS = {
    "copy": "The user wants the same text again.",
    "recall": "I should look at what the user said before.",
    "tasks": "This is a small task.",
    "talk": "The user wants to talk.",
    "question": "The user asks for a fact.",
    "foreign": "The user wants words in many languages.",
    "story": "The user wants a story.",
    "prose": "The user wants a description.",
    "list": "The user wants a list.",
    "json": "The user wants JSON.",
    "code": "The user wants Python code.",
    "tools": "I should use a tool.",
    "agent": "I should use a tool.",
}


def _pick(rng: random.Random, mix: tuple[tuple[float, Maker], ...]) -> Dialogue:
    return rng.choices([maker for _, maker in mix], [weight for weight, _ in mix])[0](rng)


def _dress(rng: random.Random, dialogue: Dialogue) -> Dialogue:
    """Add a system text to some dialogues, and short reasoning to a few."""
    if not dialogue.system and rng.random() < 0.2:
        dialogue = replace(dialogue, system=rng.choice(SYSTEM_TEXTS))
    if rng.random() < 0.06:
        thought = THOUGHTS[dialogue.kind]
        dialogue = replace(dialogue, turns=tuple(replace(turn, thought=thought) for turn in dialogue.turns))
    return dialogue


def document(rng: random.Random) -> Dialogue:
    """Make a dialogue whose answers are mostly under a hundred tokens."""
    return _dress(rng, _pick(rng, SHORT_MIX))


def drill(rng: random.Random) -> Dialogue:
    """Make a dialogue about copying only; a model that starts with these learns to look back early."""
    return _pick(rng, DRILL_MIX)


def word_drill(rng: random.Random) -> Dialogue:
    """Make an easier drill: most of its copies are of words that all differ."""
    return recall.word_drill(rng) if rng.random() < 0.8 else drill(rng)


def long_document(rng: random.Random) -> Dialogue:
    """Make a dialogue with an answer of a few hundred tokens, or with many turns."""
    return _dress(rng, _pick(rng, LONG_MIX))


def session(rng: random.Random) -> Dialogue:
    """Make an agent's session, or a long talk, of one to three thousand tokens."""
    if rng.random() < 0.75:
        return _dress(rng, agent.agent_loop(rng, rng.randrange(4, 16), rng.randrange(5, 45)))
    return _dress(rng, recall.remember(rng, rng.randrange(25, 45)))
