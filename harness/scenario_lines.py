"""Finds the line on which a key of a TOML text stands, which the TOML reader does not tell."""

import re
from collections.abc import Iterator, Mapping

Location = tuple[str | int, ...]
"""Path to a value as pydantic gives it: keys, and indexes into arrays of tables."""

_KEY_PART = r"""[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'"""
_DOTTED = rf"(?:{_KEY_PART})(?:\s*\.\s*(?:{_KEY_PART}))*"
_TABLE = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]")
_ARRAY_TABLE = re.compile(rf"\s*\[\[\s*({_DOTTED})\s*\]\]")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")

# One piece of a TOML text. Strings come first, so that no bracket, # or newline inside one is seen.
_PIECE = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*"
    r"|.",
    re.DOTALL,
)


def locate_keys(text: str) -> dict[Location, int]:
    """Return the line, from 1, of every table and key of a valid TOML ``text``.

    Keys inside inline tables are not listed; :func:`line_of` then answers with the line around them.
    """
    lines: dict[Location, int] = {}
    counts: dict[Location, int] = {}
    table: Location = ()
    for line, statement in _split_statements(text):
        if match := _ARRAY_TABLE.match(statement):
            table = _open_array_table(_split_key(match[1]), counts)
            lines[table] = line
        elif match := _TABLE.match(statement):
            table = _resolve(_split_key(match[1]), counts)
            lines[table] = line
        elif match := _ASSIGNMENT.match(statement):
            lines.setdefault(table + _split_key(match[1]), line)
    return lines


def line_of(lines: Mapping[Location, int], location: Location) -> int:
    """Return the line of ``location``, or of the closest thing around it, or 1.

    A key ``x`` that was written as ``x_file`` is found there.
    """
    for length in range(len(location), 0, -1):
        part = location[:length]
        for candidate in (part, (*part[:-1], f"{part[-1]}_file")):
            if candidate in lines:
                return lines[candidate]
    return 1


def _split_statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each statement with the line it starts on; one may span lines inside a string or brackets."""
    line = start = 1
    depth = 0
    pieces: list[str] = []
    for match in _PIECE.finditer(text):
        piece = match[0]
        depth += (piece in "[{") - (piece in "]}")
        if piece == "\n" and depth == 0:
            yield start, "".join(pieces)
            pieces.clear()
            start = line + 1
        elif not piece.startswith("#"):
            pieces.append(piece)
        line += piece.count("\n")
    yield start, "".join(pieces)


def _split_key(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_KEY_PART, dotted))


def _open_array_table(key: tuple[str, ...], counts: dict[Location, int]) -> Location:
    array = (*_resolve(key[:-1], counts), key[-1])
    counts[array] = counts.get(array, -1) + 1
    return (*array, counts[array])


def _resolve(key: tuple[str, ...], counts: Mapping[Location, int]) -> Location:
    """Return ``key`` with the index of the latest element after each part that is an array of tables."""
    path: Location = ()
    for part in key:
        path = (*path, part)
        if path in counts:
            path = (*path, counts[path])
    return path
