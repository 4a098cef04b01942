"""JSON records and Python code."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from . import words as w
from .dialogue import Dialogue, Turn

_TOPICS = {
    "people": (("name", w.NAMES), ("city", w.CITIES), ("drink", w.DRINKS), ("age", None)),
    "animals": (("name", w.NAMES), ("kind", w.ANIMALS), ("colour", w.COLOURS), ("weight", None)),
    "orders": (("item", w.FRUITS), ("day", w.DAYS), ("city", w.CITIES), ("price", None)),
    "parts": (("tool", w.TOOLS), ("colour", w.COLOURS), ("place", w.PLACES), ("count", None)),
    "events": (("title", w.HOBBIES), ("month", w.MONTHS), ("city", w.CITIES), ("open", ("true", "false"))),
}


def _values(rng: random.Random, chain: Sequence[str] | None, count: int) -> list[Any]:
    if chain is None:
        start, step = rng.randrange(10, 60), rng.choice((1, 2, 5))
        return [start + step * i if rng.random() < 0.9 else rng.randrange(10, 99) for i in range(count)]
    if "true" in chain:
        return [rng.random() < 0.5 for _ in range(count)]
    return list(w.walk(rng, chain, count, 0.1))


def records(rng: random.Random, count: int | None = None) -> Dialogue:
    """Make a JSON array of records about a topic; the words walk along their chains."""
    topic = rng.choice(tuple(_TOPICS))
    fields = list(_TOPICS[topic])
    count = count or rng.choice((1, 2, 3, 4))
    chosen = fields[: rng.choice((2, 3, 4))] if rng.random() < 0.5 else fields
    columns = {key: _values(rng, chain, count) for key, chain in chosen}
    rows: list[dict[str, Any]] = [
        {"id": i + 1} | {key: column[i] for key, column in columns.items()} for i in range(count)
    ]
    names = w.joined([key for key, _ in chosen])
    ask = f"Write {count} JSON records of {topic} with {names}."
    body = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    return Dialogue(kind="json", turns=(Turn(user=ask, answer=f"[\n{body}\n]"),))


def to_json(rng: random.Random) -> Dialogue:
    """Put the facts of a sentence into one JSON object."""
    name, city, age = rng.choice(w.NAMES + w.FOREIGN_NAMES), rng.choice(w.CITIES), rng.randrange(10, 99)
    colour, noun = rng.choice(w.COLOURS), rng.choice(w.NOUNS)
    text, value = rng.choice(
        (
            (f"{name} is {age} years old and lives in {city}.", {"name": name, "age": age, "city": city}),
            (f"{name} bought a {colour} {noun}.", {"name": name, "item": noun, "colour": colour}),
            (f"{age} boxes of {noun} go to {city}.", {"count": age, "item": noun, "city": city}),
        )
    )
    answer = json.dumps(value, ensure_ascii=False, indent=2 if rng.random() < 0.5 else None)
    form = " on several lines" if "\n" in answer else ""
    return Dialogue(kind="json", turns=(Turn(user=f"Write this as JSON{form}: {text}", answer=answer),))


_FUNCTIONS = {
    "add": ("a, b", "Add two numbers.", ("return a + b",)),
    "subtract": ("a, b", "Take the second number from the first.", ("return a - b",)),
    "multiply": ("a, b", "Multiply two numbers.", ("return a * b",)),
    "divide": (
        "a, b",
        "Divide the first number by the second.",
        ("if b == 0:", '    raise ValueError("division by zero")', "return a / b"),
    ),
    "mean": ("values", "Return the mean of the values.", ("return sum(values) / len(values)",)),
    "largest": (
        "values",
        "Return the largest value.",
        (
            "best = values[0]",
            "for value in values:",
            "    if value > best:",
            "        best = value",
            "return best",
        ),
    ),
    "smallest": (
        "values",
        "Return the smallest value.",
        (
            "best = values[0]",
            "for value in values:",
            "    if value < best:",
            "        best = value",
            "return best",
        ),
    ),
    "total": (
        "values",
        "Add up all values.",
        ("result = 0", "for value in values:", "    result += value", "return result"),
    ),
    "factorial": ("n", "Return n factorial.", ("if n <= 1:", "    return 1", "return n * factorial(n - 1)")),
    "is_even": ("n", "Tell whether n is even.", ("return n % 2 == 0",)),
    "reverse": ("text", "Return the text in reverse.", ("return text[::-1]",)),
    "count_words": ("text", "Count the words of a text.", ("return len(text.split())",)),
    "area": ("width, height", "Return the area of a rectangle.", ("return width * height",)),
    "clamp": ("value, low, high", "Keep a value between two bounds.", ("return max(low, min(value, high))",)),
}


def _function_text(name: str) -> str:
    arguments, summary, body = _FUNCTIONS[name]
    lines = "\n".join(f"    {line}" for line in body)
    return f'def {name}({arguments}):\n    """{summary}"""\n{lines}'


def functions(rng: random.Random, count: int | None = None) -> Dialogue:
    """One function, or a module with the functions that the request names."""
    count = count or rng.choice((1, 1, 2, 3))
    chosen = rng.sample(tuple(_FUNCTIONS), count)
    code = "\n\n\n".join(_function_text(name) for name in chosen)
    if count == 1:
        ask = f"Write a Python function {chosen[0]}."
    else:
        ask = f"Write a Python module with the functions {w.joined(chosen)}."
    return Dialogue(kind="code", turns=(Turn(user=ask, answer=f"```python\n{code}\n```"),))


def _method_texts(field: str, style: int) -> list[str]:
    getter = f'    def get_{field}(self):\n        """Return the {field}."""\n        return self.{field}'
    setter = (
        f'    def set_{field}(self, value):\n        """Change the {field}."""\n        self.{field} = value'
    )
    clear = f'    def clear_{field}(self):\n        """Forget the {field}."""\n        self.{field} = None'
    return [[getter], [getter, setter], [getter, setter, clear]][style]


def record_class(rng: random.Random, count: int | None = None) -> Dialogue:
    """Make a class with methods for every field; the fields are given, or walk along their chain."""
    count = count or rng.choice((1, 2, 2, 3))
    given = rng.random() < 0.5
    fields = rng.sample(w.FIELDS, count) if given else list(dict.fromkeys(w.walk(rng, w.FIELDS, count, 0.05)))
    noun, style = rng.choice(w.ANIMALS + w.TOOLS).capitalize(), rng.randrange(3)
    wanted = f"the fields {w.joined(fields)}" if given else f"{len(fields)} fields"
    depth = ("getters", "getters and setters", "get, set and clear methods")[style]
    lines = [f"class {noun}:", f'    """A {noun.lower()} with {len(fields)} fields."""', ""]
    lines.append(f"    def __init__(self, {', '.join(fields)}):")
    lines += [f"        self.{field} = {field}" for field in fields]
    methods = [text for field in fields for text in _method_texts(field, style)]
    code = "\n".join(lines) + "\n\n" + "\n\n".join(methods)
    ask = f"Write a Python class {noun} with {wanted} and {depth}."
    return Dialogue(kind="code", turns=(Turn(user=ask, answer=f"```python\n{code}\n```"),))
