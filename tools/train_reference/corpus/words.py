"""The small world the corpus talks about: word lists, and links from one word to the next.

Lists are cyclic chains: ``follow`` steps to the next word most of the time and jumps at random otherwise.
A text that walks a chain is varied, yet a reader who remembers the last word can predict the next one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

NAMES = (
    "Ada", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karin", "Leo",
    "Mara", "Nils", "Olga", "Paul", "Rosa", "Simon", "Tina", "Viktor", "Wanda", "Zoe",
)  # fmt: skip
CITIES = (
    "Berlin", "Cairo", "Dublin", "Geneva", "Hamburg", "Lima", "London", "Madrid", "Oslo", "Paris", "Rome",
    "Tokyo", "Vienna", "Warsaw",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "grey", "orange", "pink")
ANIMALS = (
    "cat", "dog", "bird", "fox", "bear", "horse", "mouse", "owl", "rabbit", "wolf", "duck", "goat",
    "sheep", "frog",
)  # fmt: skip
FRUITS = ("apple", "pear", "plum", "cherry", "lemon", "grape", "peach", "melon", "banana", "berry")
TOOLS = ("hammer", "saw", "lamp", "rope", "bucket", "ladder", "brush", "needle", "basket", "shovel")
PLACES = (
    "garden",
    "forest",
    "river",
    "market",
    "harbour",
    "village",
    "mountain",
    "library",
    "station",
    "bridge",
)
DRINKS = ("tea", "coffee", "milk", "water", "juice", "cocoa")
HOBBIES = ("reading", "painting", "running", "cooking", "fishing", "singing", "swimming", "dancing")
ADJECTIVES = ("small", "old", "quiet", "bright", "gentle", "brave", "clever", "hungry", "lazy", "happy")
WEATHERS = ("sunny", "rainy", "cloudy", "windy", "snowy", "foggy")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
FIELDS = (
    "name", "city", "age", "price", "colour", "weight", "height", "status", "owner", "title", "count",
    "score", "speed", "level",
)  # fmt: skip
NOUNS = ANIMALS + FRUITS + TOOLS + PLACES
ALL_WORDS = (
    NAMES + CITIES + COLOURS + NOUNS + DRINKS + HOBBIES + ADJECTIVES + WEATHERS + DAYS + MONTHS + FIELDS
)
FOREIGN_NAMES = (
    "José",
    "Zoë",
    "Chloé",
    "Jürgen",
    "Søren",
    "Łukasz",
    "Anaïs",
    "Mírian",
    "李明",
    "王芳",
    "さくら",
)
EMOJI = {
    "cat": "🐱", "dog": "🐶", "bird": "🐦", "fox": "🦊", "bear": "🐻", "horse": "🐴",
    "mouse": "🐭", "owl": "🦉", "rabbit": "🐰", "wolf": "🐺", "apple": "🍎", "pear": "🍐",
    "cherry": "🍒", "lemon": "🍋", "grape": "🍇", "banana": "🍌", "peach": "🍑", "melon": "🍈",
}  # fmt: skip
TRANSLATIONS = {
    "water": ("agua", "eau", "Wasser", "水"),
    "fire": ("fuego", "feu", "Feuer", "火"),
    "mountain": ("montaña", "montagne", "Berg", "山"),
    "river": ("río", "rivière", "Fluss", "河"),
    "tree": ("árbol", "arbre", "Baum", "树"),
    "night": ("noche", "nuit", "Nacht", "夜"),
    "sun": ("sol", "soleil", "Sonne", "太阳"),
    "moon": ("luna", "lune", "Mond", "月亮"),
    "bird": ("pájaro", "oiseau", "Vogel", "鸟"),
    "cat": ("gato", "chat", "Katze", "猫"),
    "dog": ("perro", "chien", "Hund", "狗"),
    "tea": ("té", "thé", "Tee", "茶"),
    "door": ("puerta", "porte", "Tür", "门"),
    "bread": ("pan", "pain", "Brot", "面包"),
    "friend": ("amigo", "ami", "Freund", "朋友"),
    "heart": ("corazón", "cœur", "Herz", "心"),
}
LANGUAGES = ("Spanish", "French", "German", "Chinese")
CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Germany": "Berlin", "England": "London",
    "Ireland": "Dublin", "Norway": "Oslo", "Poland": "Warsaw", "Austria": "Vienna", "Egypt": "Cairo",
    "Japan": "Tokyo", "Peru": "Lima",
}  # fmt: skip
FACTS = {
    "What colour is the sky?": "The sky is blue on a clear day.",
    "What colour is grass?": "Grass is green, because its leaves catch the light of the sun.",
    "How many days are in a week?": "A week has 7 days, from Monday to Sunday.",
    "How many months are in a year?": "A year has 12 months, from January to December.",
    "What do bees make?": "Bees make honey and keep it in the hive.",
    "Why do we sleep?": "We sleep so that the body and the mind can rest.",
    "What is ice?": "Ice is water that has become cold and hard.",
    "What is rain?": "Rain is water that falls from the clouds.",
    "Where do fish live?": "Fish live in rivers, lakes and the sea.",
    "What does a baker do?": "A baker makes bread and cakes early in the morning.",
    "What is a clock for?": "A clock shows the time of the day.",
    "How many legs does a spider have?": "A spider has 8 legs.",
    "What is the moon?": "The moon is a ball of rock that moves around the earth.",
    "Why is the sea salty?": "Rivers carry salt from the rocks into the sea.",
    "What is a map for?": "A map shows where places are and how to get there.",
}


def follow(rng: random.Random, chain: Sequence[str], word: str, jump: float = 0.1) -> str:
    """Return the word after ``word`` in its chain, or with probability ``jump`` any word."""
    if rng.random() < jump:
        return rng.choice(chain)
    return chain[(chain.index(word) + 1) % len(chain)]


def walk(rng: random.Random, chain: Sequence[str], count: int, jump: float = 0.1) -> list[str]:
    """``count`` words of a chain from a random start."""
    words = [rng.choice(chain)]
    while len(words) < count:
        words.append(follow(rng, chain, words[-1], jump))
    return words


def number_text(rng: random.Random, digits: int) -> str:
    """Make a random number with exactly ``digits`` digits."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def joined(words: Sequence[str]) -> str:
    """Words as an English enumeration: a, b and c."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
