"""Plain-language classes: stories, questions, talk, spelling, counting, arithmetic and lists."""

from __future__ import annotations

import random

from . import words as w
from .dialogue import END_OF_TEXT, Dialogue, Turn


def story(rng: random.Random, days: int | None = None) -> Dialogue:
    """Make a story about an animal or person named in the request; it is the class that ends the document.

    It goes from day to day until the day that the request names, so that it has an end a small model can
    find.
    """
    animal, name = rng.choice(w.ANIMALS), rng.choice(w.NAMES)
    place, mood = rng.choice(w.PLACES), rng.choice(w.ADJECTIVES)
    count = days or rng.choice((1, 1, 2, 3))
    first = rng.randrange(8 - count)
    last = w.DAYS[first + count - 1]
    ask = rng.choice(
        (
            f"Tell me a story about a {animal} named {name} in the {place} from {w.DAYS[first]} to {last}.",
            f"Write a story about {name} the {animal} from {w.DAYS[first]} to {last}. "
            f"It happens in the {place}.",
        )
    )
    if first == 0 and count == 1:
        ask = rng.choice(
            (f"Tell me a story about a {animal} named {name}.", f"Tell me a story about the {place}.")
        )
    parts = [f"Once upon a time there was a {mood} {animal} named {name}. {name} lived near the {place}."]
    tool, friend = rng.choice(w.TOOLS), rng.choice(w.NAMES)
    for index in range(count):
        parts.append(_episode(rng, name, animal, w.DAYS[first + index], tool, friend, index))
        tool, friend = w.follow(rng, w.TOOLS, tool), w.follow(rng, w.NAMES, friend)
    parts.append(f"In the end {name} was a happy {animal} and went home to the {place}. The end.")
    return Dialogue(kind="story", turns=(Turn(user=ask, answer="\n\n".join(parts)),), last=END_OF_TEXT)


def _episode(rng: random.Random, name: str, animal: str, day: str, tool: str, friend: str, index: int) -> str:
    weather, place = rng.choice(w.WEATHERS), rng.choice(w.PLACES)
    finding = rng.choice(
        (
            f"{name} found a {tool} under a tree and did not know what to do with it.",
            f"{name} lost a {tool} and looked for it all day long.",
            f"{name} wanted to buy a {tool} but had no money.",
        )
    )
    help_text = rng.choice(
        (
            f'"I can help you," said {friend}. "Bring the {tool} to the {place}."',
            f'"What a fine {tool}!" said {friend}. "Let us take it to the {place}."',
        )
    )
    opening = "One" if index == 0 else "The next"
    return (
        f"{opening} {day} it was {weather}. {finding} Then {friend} came along the road. {help_text} "
        f"So {name} and {friend} went to the {place} together, and the {animal} was not alone any more."
    )


def question(rng: random.Random) -> Turn:
    """Make a fact, a capital, a translation or an emoji."""
    pick = rng.random()
    if pick < 0.35:
        ask = rng.choice(tuple(w.FACTS))
        return Turn(user=ask, answer=w.FACTS[ask])
    if pick < 0.6:
        country = rng.choice(tuple(w.CAPITALS))
        return Turn(
            user=f"What is the capital of {country}?",
            answer=f"The capital of {country} is {w.CAPITALS[country]}.",
        )
    if pick < 0.85:
        word, index = rng.choice(tuple(w.TRANSLATIONS)), rng.randrange(len(w.LANGUAGES))
        foreign = w.TRANSLATIONS[word][index]
        return Turn(
            user=f"How do you say {word} in {w.LANGUAGES[index]}?",
            answer=f"In {w.LANGUAGES[index]}, {word} is {foreign}.",
        )
    word = rng.choice(tuple(w.EMOJI))
    return Turn(user=f"Show me the emoji for {word}.", answer=f"The emoji for {word} is {w.EMOJI[word]}.")


def questions(rng: random.Random) -> Dialogue:
    """One question, or a few in a row."""
    return Dialogue(kind="question", turns=tuple(question(rng) for _ in range(rng.choice((1, 1, 2, 4)))))


def foreign_words(rng: random.Random, count: int | None = None) -> Dialogue:
    """Make a word list in five languages: the class with the most text outside ASCII."""
    chosen = w.walk(rng, tuple(w.TRANSLATIONS), count or rng.choice((2, 4, 6)), 0.1)
    lines = []
    for index, word in enumerate(chosen):
        pairs = ", ".join(
            f"{language} {foreign}"
            for language, foreign in zip(w.LANGUAGES, w.TRANSLATIONS[word], strict=True)
        )
        lines.append(f"{index + 1}. {word}: {pairs}")
    ask = f"Write a list of {len(chosen)} words in many languages."
    return Dialogue(kind="foreign", turns=(Turn(user=ask, answer="\n".join(lines)),))


def spelling(rng: random.Random) -> Turn:
    """Letters of a word."""
    word = rng.choice(w.NOUNS + w.COLOURS + w.DRINKS)
    return Turn(user=rng.choice((f"Spell {word}", f"Spell the word {word}.")), answer="-".join(word))


def arithmetic(rng: random.Random) -> Turn:
    """Make a sum, a difference or a product of small numbers."""
    a, b = rng.randrange(1, 13), rng.randrange(1, 11)
    sign, value = rng.choice((("+", a + b), ("-", a), ("*", a * b)))
    if sign == "-":
        a, value = a + b, a
    return Turn(user=f"What is {a} {sign} {b}?", answer=f"{a} {sign} {b} = {value}")


def counting(rng: random.Random, most: int = 30) -> Turn:
    """Numbers from one bound to the other, up or down, in steps; it always ends at the bound."""
    step = rng.choice((1, 1, 1, 1, 2, 5, 10))
    start = rng.randrange(0, 40) if step == 1 else step * rng.randrange(0, 6)
    length = rng.randrange(3, most)
    numbers = [start + step * i for i in range(length)]
    if rng.random() < 0.25:
        numbers.reverse()
    by = "" if step == 1 else f" in steps of {step}"
    glue, ask = rng.choice(((", ", "Count"), (" ", "Count"), ("\n", "Count on lines")))
    dot = "." if glue == ", " else ""
    if glue == ", ":
        ask = "Count with commas"
    text = f"{ask} from {numbers[0]} to {numbers[-1]}{by}{rng.choice(('', '.'))}"
    return Turn(user=text, answer=glue.join(map(str, numbers)) + dot)


def short_tasks(rng: random.Random) -> Dialogue:
    """Make a few small tasks in one talk: spelling, sums, counting, facts."""
    makers = (spelling, arithmetic, counting, question)
    count = rng.choice((1, 2, 3, 4))
    return Dialogue(kind="tasks", turns=tuple(rng.choice(makers)(rng) for _ in range(count)))


def long_count(rng: random.Random) -> Dialogue:
    """Count over a long stretch."""
    return Dialogue(kind="tasks", turns=(counting(rng, 110),))


_TOPICS = (
    ("animals", w.ANIMALS),
    ("fruits", w.FRUITS),
    ("tools", w.TOOLS),
    ("places", w.PLACES),
    ("names", w.NAMES),
    ("cities", w.CITIES),
)


def listing(rng: random.Random, count: int | None = None) -> Dialogue:
    """Make a numbered list with a given count, or a bulleted one with a given last word."""
    topic, chain = rng.choice(_TOPICS)
    numbered = count is not None or rng.random() < 0.6
    count = count or rng.randrange(3, 13)
    chosen = w.walk(rng, chain, count if numbered else min(count, len(chain)), 0.07 if numbered else 0.0)
    style = rng.choice(("words", "facts", "days"))
    extra = {"words": "", "facts": " with two facts each", "days": " for the week"}[style]
    lines = _list_lines(rng, chosen, style, numbered=numbered)
    if numbered:
        ask = f"Give me a numbered list of {count} {topic}{extra}."
    else:
        ask = f"Give me a bulleted list of {topic} from {chosen[0]} to {chosen[-1]}{extra}."
    return Dialogue(kind="list", turns=(Turn(user=ask, answer="\n".join(lines)),))


def _list_lines(rng: random.Random, chosen: list[str], style: str, *, numbered: bool) -> list[str]:
    colours, adjectives = (
        w.walk(rng, w.COLOURS, len(chosen), 0.1),
        w.walk(rng, w.ADJECTIVES, len(chosen), 0.1),
    )
    lines = []
    for index, word in enumerate(chosen):
        mark = f"{index + 1}. " if numbered else "- "
        if style == "facts":
            lines.append(f"{mark}{word}: {adjectives[index]} and {colours[index]}")
        elif style == "days":
            lines.append(f"{mark}On {w.DAYS[index % 7]} we talk about {word}.")
        else:
            lines.append(mark + word)
    return lines


def own_list(rng: random.Random) -> Dialogue:
    """Turn the words of the request into a list."""
    chosen = rng.sample(w.NOUNS, rng.randrange(3, 9))
    numbered = rng.random() < 0.5
    lines = [f"{i + 1}. {word}" if numbered else f"- {word}" for i, word in enumerate(chosen)]
    form = "numbered" if numbered else "bulleted"
    return Dialogue(
        kind="list", turns=(Turn(user=f"Make a {form} list: {', '.join(chosen)}", answer="\n".join(lines)),)
    )


def description(rng: random.Random, per_day: int = 1) -> Dialogue:
    """Prose about a place. It goes through the days of the week and ends with Sunday."""
    thing, animal = rng.choice(w.PLACES), rng.choice(w.ANIMALS)
    lines = [f"The {thing} is a {rng.choice(w.ADJECTIVES)} place."]
    days = w.DAYS if per_day > 1 else w.DAYS[rng.randrange(2, 7) :]
    for day in days:
        for _ in range(per_day):
            lines.append(_sight(rng, thing, animal, day))
            animal = w.follow(rng, w.ANIMALS, animal)
    lines.append(f"That is why people like the {thing}.")
    how = " in detail" if per_day > 1 else ""
    ask = rng.choice((f"Tell me about the {thing}{how}", f"Describe the {thing}{how}."))
    return Dialogue(kind="prose", turns=(Turn(user=ask, answer=" ".join(lines)),))


def _sight(rng: random.Random, thing: str, animal: str, day: str) -> str:
    weather = rng.choice(w.WEATHERS)
    return rng.choice(
        (
            f"On a {weather} {day} you can see a {animal} in the {thing}.",
            f"Every {day} a {animal} comes to the {thing} and looks for food.",
            f"When it is {weather}, the {animal} sleeps near the {thing} on {day}.",
        )
    )
