"""Text of an engine that would steer a terminal is shown as escapes."""

import pytest

from engine_bindings.printable import escape_control


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\rb\x07\t", r"a\rb\x07\t"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202etxt", r"\u202etxt"),
        ("one\u2028two", r"one\u2028two"),
        ("\udc80", r"\udc80"),
        ("plain\nlines: é 山 🦊\u3000\ufffd", "plain\nlines: é 山 🦊\u3000\ufffd"),
    ],
)
def test_what_is_not_shown_as_itself_is_escaped(text: str, shown: str) -> None:
    assert escape_control(text) == shown
