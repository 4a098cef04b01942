"""Tool calls: single requests, and agent loops with a long system prompt and many calls."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from . import words as w
from .dialogue import Call, Dialogue, Tool, Turn
from .recall import random_sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A request, the calls that serve it, and the final answer."""

    user: str
    calls: tuple[Call, ...]
    answer: str


def _tool(name: str, description: str, *keys: str) -> Tool:
    properties = {key: {"type": "string"} for key in keys}
    return {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": list(keys)},
    }


TOOLS = {
    "get_weather": _tool("get_weather", "Get the weather of a city", "city"),
    "get_price": _tool("get_price", "Get the price of an item", "item"),
    "send_mail": _tool("send_mail", "Send a short mail", "to", "text"),
    "book_room": _tool("book_room", "Book a room for a day", "room", "day"),
    "read_file": _tool("read_file", "Read a file", "path"),
    "write_file": _tool("write_file", "Write a file", "path", "text"),
    "find_person": _tool("find_person", "Find where a person lives", "name"),
}


def _call(name: str, response: dict[str, object], /, **arguments: str) -> Call:
    return Call(
        name=name, arguments=tuple(arguments.items()), response=json.dumps(response, ensure_ascii=False)
    )


def _weather(rng: random.Random) -> Errand:
    city, sky, degrees = rng.choice(w.CITIES), rng.choice(w.WEATHERS), rng.randrange(1, 35)
    return Errand(
        user=rng.choice((f"What is the weather in {city}?", f"How is the weather in {city} today?")),
        calls=(_call("get_weather", {"city": city, "sky": sky, "degrees": degrees}, city=city),),
        answer=f"In {city} it is {sky} with {degrees} degrees.",
    )


def _price(rng: random.Random) -> Errand:
    item, price = rng.choice(w.FRUITS + w.TOOLS), rng.randrange(2, 400)
    return Errand(
        user=rng.choice((f"How much is a {item}?", f"What does a {item} cost?")),
        calls=(_call("get_price", {"item": item, "price": price}, item=item),),
        answer=f"A {item} costs {price} euros.",
    )


def _mail(rng: random.Random) -> Errand:
    name, text = rng.choice(w.NAMES + w.FOREIGN_NAMES), random_sentence(rng)
    number = w.number_text(rng, 3)
    return Errand(
        user=f"Send this mail to {name}: {text}",
        calls=(_call("send_mail", {"ok": True, "number": number}, to=name, text=text),),
        answer=f"I have sent your mail to {name}. Its number is {number}.",
    )


def _room(rng: random.Random) -> Errand:
    room, day, free = w.number_text(rng, rng.choice((2, 3))), rng.choice(w.DAYS), rng.random() < 0.7
    answer = f"Room {room} is booked for {day}." if free else f"Room {room} is not free on {day}."
    return Errand(
        user=rng.choice((f"Book room {room} for {day}.", f"I need room {room} on {day}.")),
        calls=(_call("book_room", {"room": room, "day": day, "free": free}, room=room, day=day),),
        answer=answer,
    )


def _path(rng: random.Random) -> str:
    return f"{rng.choice(w.NOUNS)}/{rng.choice(w.FIELDS)}{rng.choice(('.txt', '.md', '.json'))}"


def read_errand(rng: random.Random) -> Errand:
    """Ask for the content of a file, which takes one call."""
    path, text = _path(rng), random_sentence(rng)
    return Errand(
        user=f"What is in the file {path}?",
        calls=(_call("read_file", {"path": path, "text": text}, path=path),),
        answer=f"The file {path} says: {text}",
    )


def _copy_file(rng: random.Random) -> Errand:
    source, target, text = _path(rng), _path(rng), random_sentence(rng)
    return Errand(
        user=f"Copy the file {source} to {target}.",
        calls=(
            _call("read_file", {"path": source, "text": text}, path=source),
            _call("write_file", {"ok": True}, path=target, text=text),
        ),
        answer=f"I have copied {source} to {target}.",
    )


def _visit(rng: random.Random) -> Errand:
    name, city, sky = rng.choice(w.NAMES), rng.choice(w.CITIES), rng.choice(w.WEATHERS)
    degrees = rng.randrange(1, 35)
    return Errand(
        user=f"How is the weather where {name} lives?",
        calls=(
            _call("find_person", {"name": name, "city": city}, name=name),
            _call("get_weather", {"city": city, "sky": sky, "degrees": degrees}, city=city),
        ),
        answer=f"{name} lives in {city}. There it is {sky} with {degrees} degrees.",
    )


ERRANDS = (_weather, _price, _mail, _room, read_errand, _copy_file, _visit)


def _turn(errand: Errand) -> Turn:
    return Turn(user=errand.user, calls=errand.calls, answer=errand.answer)


def _offer(rng: random.Random, errands: list[Errand], extra: int) -> tuple[Tool, ...]:
    names = list(dict.fromkeys(call.name for errand in errands for call in errand.calls))
    others = [name for name in TOOLS if name not in names]
    names += rng.sample(others, min(extra, len(others)))
    rng.shuffle(names)
    return tuple(TOOLS[name] for name in names)


def tool_use(rng: random.Random) -> Dialogue:
    """One or two requests that need a tool."""
    errands = [rng.choice(ERRANDS)(rng) for _ in range(rng.choice((1, 1, 2)))]
    return Dialogue(
        kind="tools", turns=tuple(map(_turn, errands)), tools=_offer(rng, errands, rng.choice((0, 1, 2)))
    )


def _handbook(rng: random.Random, sentences: int) -> str:
    lines = [f"{i + 1}. {random_sentence(rng)}" for i in range(sentences)]
    return "You are an agent. Use the tools when they help. Here are your notes:\n" + "\n".join(lines)


def agent_loop(rng: random.Random, errand_count: int, notes: int) -> Dialogue:
    """Make an agent's session: every tool declared, notes in the system prompt, many requests."""
    errands = [rng.choice(ERRANDS)(rng) for _ in range(errand_count)]
    return Dialogue(
        kind="agent",
        turns=tuple(map(_turn, errands)),
        tools=_offer(rng, errands, len(TOOLS)),
        system=_handbook(rng, notes) if notes else "",
    )
