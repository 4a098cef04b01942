"""Links between turns: what is refused with which line, and the prompts that branches give."""

import pytest

from engine_bindings.errors import ScenarioError
from harness.scenario import Scenario, build_turn_prompt, parse_scenario

TEXT = """\
schema = 1
name = "links"
[defaults]
max_tokens = 9
[[conversation]]
id = "c"
system = "S"
[[conversation.turn]]
user = "one"
[[conversation.turn]]
user = "two"
[[conversation.turn]]
user = "three"
after = 1
[[conversation.turn]]
user = "one"
after = 0
same_as = [1]
"""


def parse(text: str) -> Scenario:
    return parse_scenario(text, "s.toml", lambda name: "")


def test_a_turn_builds_on_the_turn_that_it_names():
    talk = parse(TEXT).conversations[0]
    answers = [b"A1", b"A2", b"A3"]
    first = b"[gMASK]<sop><|system|>S<|user|>one<|assistant|><think></think>"
    assert build_turn_prompt(talk, answers[:2], 2) == (first + b"A1<|user|>three<|assistant|><think></think>")
    assert build_turn_prompt(talk, answers, 3) == first


def test_appended_text_goes_on_from_the_turn_that_it_names():
    text = TEXT.replace('system = "S"\n', "").replace('user = "two"', 'append = "+"')
    text = text.replace('user = "three"', 'append = "-"').replace("user", "prompt")
    talk = parse(text.replace("after = 0\n", "")).conversations[0]
    assert build_turn_prompt(talk, [b"A1", b"A2"], 2) == b"oneA1-"


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("after = 1", "after = 3", 14, "turn 3 does not come before this one, which is turn 3"),
        ("same_as = [1]", "same_as = [4]", 18, "turn 4 does not come before"),
        ("same_as = [1]", "same_as = [0]", 18, "must be at least 1"),
        ('user = "one"', 'user = "one"\nmay_refuse = true', 11, "give this turn after = N"),
        ('user = "one"', 'user = "one"\ncancel_after_tokens = 2', 11, "turn 1 is cancelled or refused"),
        ("after = 1", "cancel_after_tokens = 9\nmax_tokens = 9", 14, "is not under max_tokens = 9"),
        ("after = 1", 'cancel_after_tokens = 3\nstop = ["x"]', 14, "stop strings too"),
        ("after = 1", "may_refuse = true\nexpect_refusal = true", 14, "expect_refusal is given too"),
        ("after = 1", "may_refuse = 1", 14, "must be true or false"),
        ("after = 1", 'caps = "grid"\nmax_tokens = 3', 14, "max_tokens is given too"),
        ("after = 1", 'caps = "all"', 14, "must be 'grid' or 'every'"),
        ("after = 1", 'stops = ["a"]\nstop = ["b"]', 14, "stop is given too"),
        ("after = 1", 'caps = "grid"\nstops = ["b"]', 15, "has a sweep already"),
        ("same_as = [1]", "same_as = [1]\nmay_refuse = true", 18, "so its answer may be any"),
        ("after = 1", "draws = 5", 14, "every draw is the same"),
        ("after = 1", "draws = 5", 14, "the text does not hold {draw}"),
        ("[defaults]", "slots = 0\n[defaults]", 3, "must be at least 1"),
        ('id = "c"', 'id = "c"\nslot = 16', 7, "must be less than 16"),
        ("[defaults]", "slot = 1\n[defaults]", 3, "'slot' belongs in"),
        ("[[conversation]]", "context_tokens = 4\n[[conversation]]", 5, "'context_tokens' belongs in"),
    ],
)
def test_a_wrong_link_is_refused_with_the_line_and_the_remedy(before: str, after: str, line: int, words: str):
    with pytest.raises(ScenarioError) as caught:
        parse(TEXT.replace(before, after, 1))
    assert f"s.toml:{line}: " in str(caught.value)
    assert words in str(caught.value)


def test_the_names_of_a_sweep_are_its_own():
    more = '[[conversation]]\nid = "c.cap-1"\n[[conversation.turn]]\nuser = "x"\n'
    with pytest.raises(ScenarioError, match=r"s.toml:6: .*'c.cap-1' may be one"):
        parse(TEXT.replace("after = 1", 'caps = "grid"') + more)


@pytest.mark.parametrize(
    "key",
    ["after = 0", "cancel_after_tokens = 2", "may_refuse = true", 'caps = "grid"', "expect_refusal = true"],
)
def test_a_typed_line_only_goes_on(key: str):
    text = 'schema = 1\nname = "t"\nentry = "line"\n[defaults]\nmax_tokens = 9\n[[conversation]]\nid = "c"\n'
    text += f'[[conversation.turn]]\nuser = "a"\n[[conversation.turn]]\nuser = "b"\n{key}\n'
    with pytest.raises(ScenarioError, match="a typed line only goes on from the line before it"):
        parse(text)


def test_turns_that_run_at_once_end_by_themselves():
    text = TEXT.replace("[defaults]", "slots = 2\n[defaults]")
    assert parse(text).slots == 2
    with pytest.raises(ScenarioError, match=r"s.toml:15: .*end by themselves or at their cap"):
        parse(text.replace("after = 1", 'stop = ["x"]'))


def test_the_contexts_of_a_scenario_are_those_that_its_conversations_name():
    assert parse(TEXT).contexts == 1
    scenario = parse(TEXT.replace('id = "c"', 'id = "c"\nslot = 2'))
    assert (scenario.contexts, scenario.conversations[0].slot) == (3, 2)


def test_a_typed_line_names_no_context():
    text = 'schema = 1\nname = "t"\nentry = "line"\n[defaults]\nmax_tokens = 9\n[[conversation]]\nid = "c"\n'
    text += 'slot = 1\n[[conversation.turn]]\nuser = "a"\n'
    with pytest.raises(ScenarioError, match=r"s.toml:8: .*a typed line always runs in slot 0"):
        parse(text)
