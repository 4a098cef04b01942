"""Relations within a cell: what is asked of an answer, and when nothing follows from it."""

from dataclasses import replace

from harness.expectations import expect_answer
from harness.identity import compare_turns
from harness.relations import Relation, list_relations
from harness.scenario import parse_scenario
from harness.transcript import TurnRecord
from tests.harness.run_builders import make_turn

WHOLE = make_turn(turn=2, text=b"one two", emitted_tokens=3, token_lengths=(3, 2, 2), finish="stop")
FIRST = make_turn(turn=0, text=b"one t", emitted_tokens=2, prompt_tokens=10, token_lengths=(3, 2))
SECOND = make_turn(
    turn=1, text=b"wo", emitted_tokens=1, token_lengths=(2,), prompt_tokens=12, finish="stop",
    prompt=FIRST.prompt + FIRST.text,
)  # fmt: skip
PARTS = Relation(conversation="copy-1", turn=2, parts=(0, 1))


def by_place(*turns: TurnRecord) -> dict[tuple[str, int], TurnRecord]:
    return {(turn.conversation, turn.turn): turn for turn in turns}


def fields(whole: TurnRecord, *parts: TurnRecord) -> list[str]:
    expected = expect_answer(PARTS, by_place(*parts, whole))
    assert expected is not None
    return [d.field for d in compare_turns(whole, expected, answers_only=True).differences]


def test_joined_parts_equal_the_whole():
    expected = expect_answer(PARTS, by_place(FIRST, SECOND, WHOLE))
    assert expected is not None
    assert (expected.text, expected.emitted_tokens, expected.token_lengths) == (b"one two", 3, (3, 2, 2))
    assert fields(WHOLE, FIRST, SECOND) == []


def test_another_word_another_count_and_another_end_are_differences():
    assert "tokens" in fields(WHOLE, FIRST, replace(SECOND, text=b"wX"))
    assert fields(replace(WHOLE, emitted_tokens=4), FIRST, SECOND) == ["token_count"]
    assert fields(replace(WHOLE, finish="stop-string"), FIRST, SECOND) == ["finish_reason"]


def test_an_answer_that_ended_at_its_cap_need_only_be_the_beginning_of_the_other():
    longer = replace(WHOLE, text=b"one two three", emitted_tokens=5, token_lengths=None)
    capped = replace(SECOND, finish="length")
    assert fields(longer, FIRST, capped) == []
    assert fields(longer, FIRST, SECOND) == ["tokens"]
    assert fields(replace(longer, text=b"one tzo"), FIRST, capped) == ["tokens"]


def test_nothing_follows_when_the_parts_were_read_as_other_tokens():
    retokenised = replace(SECOND, prompt_tokens=11)
    assert expect_answer(PARTS, by_place(FIRST, retokenised, WHOLE)) is None
    assert expect_answer(PARTS, by_place(FIRST, replace(SECOND, prompt_tokens=None), WHOLE)) is None


def test_a_refusal_is_asked_for_where_there_are_no_parts():
    relation = Relation(conversation="copy-1", turn=0, parts=())
    refused = make_turn(text=b"", finish="refused", emitted_tokens=None, prompt_tokens=None)
    expected = expect_answer(relation, by_place(refused))
    assert expected is not None
    assert compare_turns(refused, expected, answers_only=True).differences == ()
    for text in (b"an answer", b""):
        answered = compare_turns(make_turn(text=text), expected, answers_only=True).differences
        assert (answered[-1].field, answered[-1].b) == ("finish_reason", "refused")


def test_relations_are_listed_in_the_order_of_the_turns():
    text = (
        'schema = 1\nname = "s"\n[defaults]\nmax_tokens = 5\n[[conversation]]\nid = "c"\n'
        '[[conversation.turn]]\nuser = "a"\n[[conversation.turn]]\nuser = "a"\nafter = 0\nsame_as = [1]\n'
        '[[conversation.turn]]\nuser = "x"\nexpect_refusal = true\n[[conversation.turn]]\nuser = "y"\n'
        "after = 0\nmay_refuse = true\n"
    )
    relations = list_relations(parse_scenario(text, "s.toml", lambda name: ""))
    assert [(r.turn, r.parts, r.same_limits) for r in relations] == [(1, (0,), True), (2, (), False)]
