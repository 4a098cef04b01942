"""Scenario files: what is read, what is refused and with which line, and the prompts built from them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.chat_template import render_messages
from engine_bindings.errors import ScenarioError
from harness.scenario import (
    Conversation,
    Scenario,
    Turn,
    build_turn_line,
    build_turn_messages,
    build_turn_prompt,
    cut_at_stop,
    parse_scenario,
)
from tests.harness.run_builders import make_scenario

WHOLE = """\
schema = 1
name = "quick"
title = "Quick"
entry = "prompt"

[defaults]
max_tokens = 24

[[conversation]]
id = "copy-1"
class = "copy"
system = "Be short."

[[conversation.turn]]
user = "Hi"
expect = ["hello"]
expect_prompt_tokens = 9
expect_cached_tokens = 0

[[conversation.turn]]
tool_file = "result.txt"
max_tokens = 8
stop = ["\\n", "END"]

[[conversation]]
id = "raw"

[[conversation.turn]]
prompt = "Once"

[[conversation.turn]]
append = " and then"
"""

LINES = """\
schema = 1
name = "typed"
entry = "line"
[defaults]
max_tokens = 24
[[conversation]]
id = "a"
[[conversation.turn]]
user = "Hi"
[[conversation.turn]]
user = "More"
"""


def parse(text: str) -> Scenario:
    return parse_scenario(text, "s.toml", {"result.txt": "42\n"}.__getitem__)


def complaint(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text)
    return str(caught.value)


def test_a_whole_file_is_read_with_defaults_and_files_filled_in():
    scenario = parse(WHOLE)
    copy, raw = scenario.conversations
    assert (scenario.name, scenario.temperature, scenario.top_p) == ("quick", 0.0, 1.0)
    assert (copy.category, copy.system, raw.category) == ("copy", "Be short.", "general")
    assert copy.turns[0] == Turn(
        kind="user",
        text="Hi",
        max_tokens=24,
        expect=("hello",),
        expect_prompt_tokens=9,
        expect_cached_tokens=0,
    )
    assert copy.turns[1] == Turn(kind="tool", text="42\n", max_tokens=8, stop=("\n", "END"))
    assert [turn.kind for turn in raw.turns] == ["prompt", "append"]
    assert (scenario.cap_tokens, scenario.worst_case_tokens, scenario.turn_count) == (24, 80, 4)


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("max_tokens = 8", "max_token = 8", 22, "did you mean 'max_tokens'"),
        ("tool_file", "tool_fil", 21, "did you mean 'tool_file'"),
        ("[defaults]", "[default]", 6, "did you mean 'defaults'"),
        ('class = "copy"', "temperature = 1", 11, "'temperature' belongs in [defaults]"),
        ('id = "raw"', 'colour = "red"', 26, "the keys here are id, class, system, slot, turn"),
        ("schema = 1", "schema = 2", 1, "must be 1"),
        ("schema = 1", "schema = true", 1, "schema = True: must be the whole number 1"),
        ("schema = 1", "schema = 1.0", 1, "schema = 1.0: must be the whole number 1"),
        ('name = "quick"', "", 1, "name is missing"),
        ("max_tokens = 24", 'max_tokens = "24"', 7, "must be a whole number"),
        ("max_tokens = 24", "max_tokens = true", 7, "must be a whole number"),
        ("max_tokens = 24", "max_tokens = 0", 7, "must be at least 1"),
        ("max_tokens = 24", "max_tokens = 24\ntemperature = 3", 8, "must be at most 2"),
        ("max_tokens = 24", "max_tokens = 24\ntop_p = 0", 8, "must be more than 0"),
        ("max_tokens = 24", "max_tokens = 24\ntemperature = nan", 8, "finite"),
        ('user = "Hi"', "user = 7", 15, "must be text in quotes"),
        ('user = "Hi"', 'user = ""', 15, "is empty"),
        ('user = "Hi"', 'user = "a\\u0000"', 15, "NUL"),
        ('user = "Hi"', 'tool = "Hi"', 15, "the first turn has no answer before it"),
        ('user = "Hi"', 'append = "Hi"', 15, "the first turn has no answer before it"),
        ('user = "Hi"', 'user = "Hi"\nprompt = "Hi"', 16, "has user and prompt"),
        ('user = "Hi"', "", 14, "has no text"),
        ('"END"]', '""]', 23, "must not be empty"),
        ('"END"]', "3]", 23, "must be text in quotes"),
        ('stop = ["\\n", "END"]', 'stop = "END"', 23, "must be a list"),
        ("expect_prompt_tokens = 9", "", 18, "stands alone"),
        (
            "expect_cached_tokens = 0",
            "expect_cached_tokens = 10",
            18,
            "is more than expect_prompt_tokens = 9",
        ),
        ('id = "raw"', 'id = "copy-1"', 26, "is also the id of conversation 1"),
        ('id = "raw"', 'id = "a b"', 26, "must match"),
        ('id = "raw"', 'id = "raw"\nsystem = "no"', 27, "has no system message"),
        ('append = " and then"', 'user = "and then"', 32, "mixes messages with raw prompts"),
        ('entry = "prompt"', 'entry = "typed"', 4, "must be 'prompt' or 'line'"),
        ("max_tokens = 24", "", 14, "has no max_tokens"),
        ('tool_file = "result.txt"', 'tool_file = "result.txt"\ntool = "x"', 21, "both tool and tool_file"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line_and_the_remedy(before: str, after: str, line: int, words: str):
    assert WHOLE.count(before) >= 1
    message = complaint(WHOLE.replace(before, after, 1))
    assert f"s.toml:{line}: " in message
    assert words in message


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ('user = "More"', 'user = "More"\nmax_tokens = 8', 12, "differs from the cap of the first turn"),
        ('id = "a"', 'id = "a"\nsystem = "x"', 8, "carries no system message"),
        ('user = "More"', 'tool = "x"', 11, "only user turns can be typed"),
        ('user = "More"', 'user = "a\\nb"', 11, "no line break"),
        ('user = "More"', 'user = "\\u0002RESET"', 11, "reads as a command"),
        ('user = "Hi"', 'user = "Hi"\nstop = ["x"]', 10, "only the last turn may have stop strings"),
    ],
)
def test_typed_lines_have_their_own_limits(before: str, after: str, line: int, words: str):
    assert words in (message := complaint(LINES.replace(before, after)))
    assert f"s.toml:{line}: " in message


def test_a_typed_line_is_as_long_as_the_buffer_allows_and_no_longer():
    parse(LINES.replace("Hi", "x" * 60_000))
    assert "longer than 60,000 bytes" in complaint(LINES.replace("Hi", "x" * 60_001))


def test_an_empty_list_of_conversations_is_refused():
    text = 'schema = 1\nname = "x"\nconversation = []\n[defaults]\nmax_tokens = 1\n'
    assert "s.toml:3: conversation = []: must not be empty" in complaint(text)


def test_a_conversation_without_turns_is_refused_at_its_line():
    assert "s.toml:34: conversation 3: turn is missing" in complaint(WHOLE + '\n[[conversation]]\nid = "c"\n')


def test_broken_toml_keeps_the_line_that_the_toml_reader_gives():
    assert "line 3" in complaint('schema = 1\nname = "x"\ntitle = oops\n')


def test_all_problems_are_listed_in_the_order_of_their_lines():
    message = complaint(
        WHOLE.replace("max_tokens = 24", "max_tokens = 0").replace('id = "raw"', 'idd = "raw"')
    )
    lines = [int(part.split(":")[1]) for part in message.splitlines()]
    assert lines == sorted(lines)
    assert len(lines) == 3


def test_a_file_that_cannot_be_read_is_named_with_its_line():
    def read_text(name: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", name)

    with pytest.raises(
        ScenarioError, match=r"s.toml:21: .*tool_file: cannot read 'result.txt'.*No such file"
    ):
        parse_scenario(WHOLE, "s.toml", read_text)


def test_a_prompt_holds_the_answers_that_were_really_given():
    (copy, raw) = parse(WHOLE).conversations
    opening = b"[gMASK]<sop><|system|>Be short.<|user|>Hi<|assistant|><think></think>"
    assert build_turn_prompt(copy, [], 0) == opening
    second = build_turn_prompt(copy, [b"yo"], 1)
    assert second.startswith(opening + b"yo<|observation|>")
    assert second.endswith(b"<|assistant|><think></think>")
    assert build_turn_prompt(raw, ["x"], 1) == b"Oncex and then"
    assert build_turn_line(copy, 0) == b"Hi"


def test_a_prompt_without_its_answers_is_an_error():
    with pytest.raises(ValueError, match="needs 1 answers, got 0"):
        build_turn_prompt(parse(WHOLE).conversations[0], [], 1)


@given(answers=st.lists(st.binary(max_size=12), min_size=2, max_size=2))
def test_answers_go_into_the_next_prompt_to_the_byte(answers: list[bytes]):
    turns = tuple(Turn(kind="user", text=f"u{i}", max_tokens=1) for i in range(3))
    talk = Conversation(id="c", category="chat", system=None, turns=turns)
    prompts = [build_turn_prompt(talk, answers[:i], i) for i in range(3)]
    for before, answer, after in zip(prompts, answers, prompts[1:], strict=False):
        assert after.startswith(before + answer)


def test_an_empty_append_goes_on_with_the_last_answer():
    raw = parse(WHOLE.replace('append = " and then"', 'append = ""')).conversations[1]
    assert build_turn_prompt(raw, [b" upon"], 1) == b"Once upon"


def test_a_later_exact_prompt_replaces_the_one_before():
    turns = (Turn(kind="prompt", text="A", max_tokens=1), Turn(kind="prompt", text="B", max_tokens=1))
    talk = Conversation(id="c", category="chat", system=None, turns=turns)
    assert build_turn_prompt(talk, [b"x"], 1) == b"B"


def test_a_stop_string_cuts_at_its_first_occurrence():
    assert cut_at_stop(b"one END two \n", ["\n", "END"]) == b"one "
    assert cut_at_stop(b"one", ["END"]) is None


def test_messages_of_a_turn_hold_the_answers_that_were_given() -> None:
    scenario = make_scenario(turns=2)
    conversation = replace(scenario.conversations[0], system="Be brief.")
    messages = build_turn_messages(conversation, [b"one\xff"], 1)
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[2].text == b"one\xff"
    assert render_messages(messages) == build_turn_prompt(conversation, [b"one\xff"], 1)


def test_raw_text_cannot_be_asked_as_messages() -> None:
    conversation = make_scenario().conversations[0]
    raw = replace(conversation, turns=(replace(conversation.turns[0], kind="prompt"),))
    with pytest.raises(ValueError, match="raw text"):
        build_turn_messages(raw, [], 0)
