"""Copying: repeat a text, quote from it, and remember what was said turns ago."""

from __future__ import annotations

import random

from . import words as w
from .dialogue import Dialogue, Turn
from .talk import arithmetic, counting, question, spelling

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _nonsense(rng: random.Random) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randrange(2, 7)))


def _code(rng: random.Random) -> str:
    digits = w.number_text(rng, rng.choice((3, 4, 4, 5)))
    return digits if rng.random() < 0.7 else f"{rng.choice('ABCDEFGHKMPRSTX')}{digits}"


def random_sentence(rng: random.Random) -> str:
    """Make a sentence whose words do not predict one another."""
    name, noun, place = rng.choice(w.NAMES), rng.choice(w.NOUNS), rng.choice(w.PLACES)
    return rng.choice(
        (
            f"{name} has {rng.randrange(2, 99)} {rng.choice(w.COLOURS)} boxes in the {place}.",
            f"The {rng.choice(w.ADJECTIVES)} {noun} of {name} is near the {place}.",
            f"{name} lives in {rng.choice(w.CITIES)} and likes {rng.choice(w.DRINKS)} "
            f"and {rng.choice(w.HOBBIES)}.",
            f"On {rng.choice(w.DAYS)} the code is {_code(rng)} and the word is {_nonsense(rng)}.",
            f"{rng.choice(w.FOREIGN_NAMES)} paid {w.number_text(rng, 3)} "
            f"for a {rng.choice(w.COLOURS)} {noun}.",
        )
    )


def _mixed(rng: random.Random, count: int) -> str:
    makers = (_nonsense, _code, lambda r: r.choice(w.NOUNS), lambda r: r.choice(w.NAMES))
    return " ".join(rng.choice(makers)(rng) for _ in range(count))


def repeat(rng: random.Random, sentences: int | None = None) -> Dialogue:
    """Say a given text again, word by word."""
    if sentences is None and rng.random() < 0.5:
        text = _mixed(rng, rng.randrange(2, 14))
    else:
        text = " ".join(random_sentence(rng) for _ in range(sentences or rng.randrange(1, 4)))
    ask = rng.choice((f"Repeat this text: {text}", f"Say this again: {text}", f"Copy: {text}"))
    turns = [Turn(user=ask, answer=text)]
    if sentences is None and rng.random() < 0.3:
        turns.append(Turn(user="Again, please.", answer=text))
    return Dialogue(kind="copy", turns=tuple(turns))


def drill(rng: random.Random) -> Dialogue:
    """Copy a text without meaning, several times over: nothing but looking back helps."""
    text = _mixed(rng, rng.randrange(3, 22))
    turns = [Turn(user=f"Copy: {text}", answer=text)]
    turns += [Turn(user="Again, please.", answer=text)] * rng.randrange(1, 5)
    return Dialogue(kind="copy", turns=tuple(turns))


def word_drill(rng: random.Random) -> Dialogue:
    """Copy different words several times over: the word before tells which word comes next."""
    text = " ".join(rng.sample(w.ALL_WORDS, rng.randrange(4, 20)))
    turns = [Turn(user=f"Copy: {text}", answer=text)]
    turns += [Turn(user="Again, please.", answer=text)] * rng.randrange(1, 5)
    return Dialogue(kind="copy", turns=tuple(turns))


def _introduction(rng: random.Random) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Make a text with facts, a reply to it, and questions with answers about the facts."""
    name, code, city = rng.choice(w.NAMES + w.FOREIGN_NAMES), _code(rng), rng.choice(w.CITIES)
    colour, noun, day = rng.choice(w.COLOURS), rng.choice(w.NOUNS), rng.choice(w.DAYS)
    return rng.choice(
        (
            (
                f"Remember: the code is {code}.",
                f"I will remember that the code is {code}.",
                (("What is the code?", f"The code is {code}."),),
            ),
            (
                f"My name is {name} and I live in {city}.",
                f"Hello {name}! How is life in {city}?",
                (
                    ("What is my name?", f"Your name is {name}."),
                    ("Where do I live?", f"You live in {city}."),
                ),
            ),
            (
                f"Please note that {name} has a {colour} {noun}.",
                f"I have noted that {name} has a {colour} {noun}.",
                (
                    (f"What does {name} have?", f"{name} has a {colour} {noun}."),
                    (f"Which colour is the {noun}?", f"The {noun} is {colour}."),
                    (f"Who has the {noun}?", f"The {noun} belongs to {name}."),
                ),
            ),
            (
                f"The meeting with {name} is on {day} in room {code}.",
                f"I have noted the meeting with {name} on {day} in room {code}.",
                (
                    (f"When is the meeting with {name}?", f"The meeting with {name} is on {day}."),
                    ("Which room is it?", f"It is room {code}."),
                ),
            ),
        )
    )


def _small_talk(rng: random.Random) -> Turn:
    return rng.choice((question, arithmetic, spelling, lambda r: counting(r, 10), _greeting))(rng)


def _greeting(rng: random.Random) -> Turn:
    drink, hobby = rng.choice(w.DRINKS), rng.choice(w.HOBBIES)
    return rng.choice(
        (
            Turn(user="How are you?", answer="I am fine, thank you. How can I help you today?"),
            Turn(
                user=f"I like {hobby}.",
                answer=f"That is nice. Many people like {hobby}. How often do you do it?",
            ),
            Turn(
                user=f"Do you like {drink}?",
                answer=f"I cannot drink, but many people like {drink} in the morning.",
            ),
            Turn(user="Thank you!", answer="You are welcome. Is there anything else I can do for you?"),
            Turn(user="Hello!", answer="Hello! How can I help you today?"),
        )
    )


def remember(rng: random.Random, between: int | None = None) -> Dialogue:
    """Facts given early and asked for later, with other talk in between."""
    facts = [_introduction(rng) for _ in range(rng.choice((1, 1, 2)))]
    turns = [Turn(user=fact[0], answer=fact[1]) for fact in facts]
    count = rng.choice((0, 1, 2, 3)) if between is None else between
    turns += [_small_talk(rng) for _ in range(count)]
    for fact in facts:
        questions = list(fact[2])
        rng.shuffle(questions)
        turns += [Turn(user=ask, answer=answer) for ask, answer in questions]
        if rng.random() < 0.4:
            turns.append(_small_talk(rng))
    return Dialogue(kind="recall", turns=tuple(turns))


def talk(rng: random.Random, count: int | None = None) -> Dialogue:
    """Make a friendly talk of several turns."""
    turns = [_greeting(rng)] + [_small_talk(rng) for _ in range(count or rng.randrange(1, 6))]
    return Dialogue(kind="talk", turns=tuple(turns))


def quote(rng: random.Random) -> Dialogue:
    """Find a value in a small table of the request."""
    keys = rng.sample(w.NOUNS + w.NAMES, rng.randrange(2, 9))
    values = [_code(rng) if rng.random() < 0.6 else rng.choice(w.COLOURS) for _ in keys]
    table = "\n".join(f"{key} = {value}" for key, value in zip(keys, values, strict=True))
    turns = []
    for index, at in enumerate(rng.sample(range(len(keys)), rng.randrange(1, min(4, len(keys)) + 1))):
        ask = f"What is the value of {keys[at]}?"
        turns.append(
            Turn(
                user=f"{table}\n{ask}" if index == 0 else ask,
                answer=f"The value of {keys[at]} is {values[at]}.",
            )
        )
    return Dialogue(kind="recall", turns=tuple(turns))
