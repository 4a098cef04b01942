"""The line locator against texts in which keys hide in strings, brackets and comments."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from harness.scenario_lines import line_of, locate_keys

TEXT = '''\
# [[conversation]]
name = "a = 1" # b = 2
text = """
[[conversation]]
key = "x"
""" # end
list = [
  "[[conversation]]",
  "y = 1", # ]
]
literal = \'\'\'
id = 3\'\'\'
[[conversation]]
id = "first"
[[conversation.turn]]
user = "a"
[[conversation.turn]]
user = "b"
[conversation.extra]
x.y = 1
[[conversation]]
id = "second"
[[conversation.turn]]
user_file = "c"
inline = { a = 1 }
'''


def test_every_key_is_found_on_its_line_and_nothing_inside_strings():
    tomllib.loads(TEXT)
    assert locate_keys(TEXT) == {
        ("name",): 2,
        ("text",): 3,
        ("list",): 7,
        ("literal",): 11,
        ("conversation", 0): 13,
        ("conversation", 0, "id"): 14,
        ("conversation", 0, "turn", 0): 15,
        ("conversation", 0, "turn", 0, "user"): 16,
        ("conversation", 0, "turn", 1): 17,
        ("conversation", 0, "turn", 1, "user"): 18,
        ("conversation", 0, "extra"): 19,
        ("conversation", 0, "extra", "x", "y"): 20,
        ("conversation", 1): 21,
        ("conversation", 1, "id"): 22,
        ("conversation", 1, "turn", 0): 23,
        ("conversation", 1, "turn", 0, "user_file"): 24,
        ("conversation", 1, "turn", 0, "inline"): 25,
    }


def test_what_has_no_line_of_its_own_is_placed_at_what_is_around_it():
    lines = locate_keys(TEXT)
    assert line_of(lines, ("conversation", 1, "turn", 0, "user")) == 24
    assert line_of(lines, ("conversation", 1, "turn", 0, "inline", "a")) == 25
    assert line_of(lines, ("conversation", 1, "turn", 0, "max_tokens")) == 23
    assert line_of(lines, ("schema",)) == 1


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20), min_size=1, max_size=6))
def test_strings_of_any_content_do_not_move_the_lines(texts: list[str]):
    quoted = ['"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts]
    toml = "".join(f"k{i} = {value}\n" for i, value in enumerate(quoted))
    tomllib.loads(toml)
    assert locate_keys(toml) == {(f"k{i}",): i + 1 for i in range(len(texts))}
