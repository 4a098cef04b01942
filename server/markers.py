"""Finding strings in text that arrives in pieces: what to hold back because a match may still complete."""

from collections.abc import Iterable


def held_length(text: str, markers: Iterable[str]) -> int:
    """Return how many characters at the end of ``text`` could be the start of a marker.

    >>> held_length("abc <to", ["<tool_call>"])
    3
    """
    return max((_overlap(text, marker) for marker in markers), default=0)


def find_first(text: str, markers: Iterable[str]) -> tuple[int, str] | None:
    """Return where the first marker starts and which it is; of two at one place, the longer one."""
    found = ((text.find(marker), -len(marker), marker) for marker in markers)
    hits = sorted(hit for hit in found if hit[0] >= 0)
    return (hits[0][0], hits[0][2]) if hits else None


def _overlap(text: str, marker: str) -> int:
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
