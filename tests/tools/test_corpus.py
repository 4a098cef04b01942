"""The generated training text: seeded, well formed, and with answers a small model can finish."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import pytest

from tools.train_reference.corpus import (
    DRILL_MIX,
    LONG_MIX,
    SHORT_MIX,
    THOUGHTS,
    Dialogue,
    Segment,
    agent,
    document,
    drill,
    long_document,
    recall,
    render,
    session,
    structured,
    talk,
    word_drill,
    words,
)
from tools.train_reference.corpus.dialogue import END_OF_CALL, END_OF_TEXT, END_OF_TURN, Call, call_text

Maker = Callable[[random.Random], Dialogue]
MAKERS: list[Maker] = [document, long_document, session, drill, word_drill]
STOPS = (END_OF_TURN, END_OF_TEXT, END_OF_CALL, "</think>")


def _rng(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - test text, not cryptography


def _dialogues(maker: Maker, count: int = 60) -> list[Dialogue]:
    return [maker(_rng(seed)) for seed in range(count)]


def _text(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def _last(dialogue: Dialogue) -> tuple[str, str]:
    turn = dialogue.turns[-1]
    return turn.user, turn.answer


@pytest.mark.parametrize("maker", MAKERS)
def test_same_seed_gives_the_same_text(maker: Maker) -> None:
    assert _dialogues(maker, 5) == _dialogues(maker, 5)


@pytest.mark.parametrize("mix", [SHORT_MIX, LONG_MIX, DRILL_MIX])
def test_weights_of_a_mix_add_up_to_one(mix: tuple[tuple[float, Maker], ...]) -> None:
    assert sum(weight for weight, _ in mix) == pytest.approx(1.0)


@pytest.mark.parametrize("maker", MAKERS)
def test_documents_open_and_close_with_the_markers_of_the_format(maker: Maker) -> None:
    for dialogue in _dialogues(maker):
        segments = render(dialogue)
        assert segments[0].text.startswith("[gMASK]<sop><|")
        assert segments[-1].answer
        assert segments[-1].text.endswith(dialogue.last)


@pytest.mark.parametrize("maker", MAKERS)
def test_every_answer_ends_with_one_stop_marker(maker: Maker) -> None:
    for dialogue in _dialogues(maker):
        for segment in render(dialogue):
            if segment.answer:
                assert segment.text.endswith(STOPS)
                assert sum(segment.text.count(stop) for stop in STOPS) == 1


@pytest.mark.parametrize("maker", MAKERS)
def test_role_markers_are_not_followed_by_a_line_break(maker: Maker) -> None:
    for dialogue in _dialogues(maker):
        assert not re.search(r"<\|(user|assistant|system|observation)\|>\n", _text(render(dialogue)))


def test_a_turn_with_thought_is_produced_inside_the_think_marks() -> None:
    dialogue = Dialogue(kind="talk", turns=(talk.spelling(_rng(1)),))
    thinking = Dialogue(
        kind="talk",
        turns=tuple(type(turn)(user=turn.user, answer=turn.answer, thought="Hm.") for turn in dialogue.turns),
    )
    assert "<|assistant|><think>Hm.</think>" in _text(render(thinking))
    assert "<|assistant|><think></think>" in _text(render(dialogue))


def test_a_call_is_written_in_the_tool_format() -> None:
    call = Call(name="get_price", arguments=(("item", "lamp"), ("day", "Monday")), response="{}")
    assert call_text(call) == (
        "<tool_call>get_price<arg_key>item</arg_key><arg_value>lamp</arg_value>"
        "<arg_key>day</arg_key><arg_value>Monday</arg_value></tool_call>"
    )


def test_arguments_of_a_call_come_from_earlier_text() -> None:
    for dialogue in _dialogues(agent.tool_use):
        seen = ""
        for turn in dialogue.turns:
            seen += turn.user
            for call in turn.calls:
                assert all(value in seen for _, value in call.arguments)
                seen += str(json.loads(call.response))


def test_every_called_tool_is_declared() -> None:
    for dialogue in _dialogues(session):
        declared = {tool["name"] for tool in dialogue.tools}
        assert all(call.name in declared for turn in dialogue.turns for call in turn.calls)


def test_a_story_ends_the_document_on_the_day_asked_for() -> None:
    for seed in range(60):
        dialogue = talk.story(_rng(seed), 3)
        ask, answer = _last(dialogue)
        days = re.findall(r"[A-Z]\w+day", answer)
        wanted = re.findall(r"from (\w+) to (\w+)", ask)
        assert (days[0], days[-1]) == wanted[0]
        assert answer.endswith("The end.")
        assert dialogue.last == END_OF_TEXT


def test_counting_reaches_its_bound() -> None:
    for seed in range(100):
        turn = talk.counting(_rng(seed))
        bounds = re.search(r"from (\d+) to (\d+)", turn.user)
        numbers = re.findall(r"\d+", turn.answer)
        assert bounds is not None
        assert (numbers[0], numbers[-1]) == bounds.groups()


def test_numbered_lists_have_as_many_lines_as_asked_for() -> None:
    for seed in range(60):
        ask, answer = _last(talk.listing(_rng(seed), 20))
        assert "list of 20 " in ask
        assert len(answer.splitlines()) == 20


def test_bulleted_lists_end_with_the_word_asked_for() -> None:
    for seed in range(60):
        ask, answer = _last(talk.listing(_rng(seed)))
        wanted = re.search(r"from (\w+) to (\w+)", ask)
        if wanted:
            assert wanted[1] in answer.splitlines()[0]
            assert wanted[2] in answer.splitlines()[-1]


def test_copies_are_exact() -> None:
    for seed in range(60):
        dialogue = recall.repeat(_rng(seed))
        assert dialogue.turns[0].user.endswith(": " + dialogue.turns[0].answer)


def test_a_word_drill_repeats_words_that_all_differ() -> None:
    for seed in range(60):
        turns = recall.word_drill(_rng(seed)).turns
        copied = turns[0].answer.split()
        assert len(set(copied)) == len(copied)
        assert {turn.answer for turn in turns} == {turns[0].answer}


def test_json_answers_parse() -> None:
    for seed in range(60):
        records = json.loads(_last(structured.records(_rng(seed), 9))[1])
        assert [record["id"] for record in records] == list(range(1, 10))
        assert isinstance(json.loads(_last(structured.to_json(_rng(seed)))[1]), dict)


def test_code_answers_compile() -> None:
    for seed in range(60):
        for maker in (structured.functions, structured.record_class):
            _, answer = _last(maker(_rng(seed), 4))
            code = answer.removeprefix("```python\n").removesuffix("\n```")
            compile(code, "answer", "exec")


def test_some_answers_leave_ascii() -> None:
    answers = [_last(dialogue)[1] for dialogue in _dialogues(talk.foreign_words)]
    assert all(not answer.isascii() for answer in answers)


def test_every_class_has_a_thought() -> None:
    kinds = {dialogue.kind for maker in MAKERS for dialogue in _dialogues(maker, 300)}
    assert kinds == set(THOUGHTS)


def test_following_a_chain_steps_to_the_next_word_unless_it_jumps() -> None:
    rng = _rng(3)
    assert words.follow(rng, words.DAYS, "Sunday", 0.0) == "Monday"
    assert words.walk(rng, words.DAYS, 7, 0.0) != words.walk(rng, words.DAYS, 7, 1.0)


def test_a_number_has_the_digits_asked_for() -> None:
    assert all(len(words.number_text(_rng(seed), 4)) == 4 for seed in range(50))


@pytest.mark.parametrize(
    ("given", "expected"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_joined_as_in_english(given: list[str], expected: str) -> None:
    assert words.joined(given) == expected
