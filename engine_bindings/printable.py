"""Text from outside made safe to show: what steers a terminal or hides text is written as an escape."""

import unicodedata

# Control and format characters, separators of lines and paragraphs, and halves of surrogate pairs.
_STEERING = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})


def escape_control(text: str) -> str:
    r"""Return ``text`` with every character that is not shown as itself escaped; newlines stay.

    >>> print(escape_control("\x1b[2J gone"))
    \x1b[2J gone
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _STEERING:
        return character
    return character.encode("unicode_escape").decode("ascii")
