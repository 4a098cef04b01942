"""What a client sees does not depend on how the tokens cut the answer."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from server.answer_text import AnswerText, ContentText, Delta, ReasoningText
from server.chat_format import merge_deltas
from server.reasoning import ReasoningSplitter
from server.tool_calls import ToolCallReader

SCHEMA = {"city": {"type": "string"}, "n": {"type": "integer"}}
ANSWER = (
    "Thinking of <b>, </thin, é</think>\n世界 text <tool_cal "
    "<tool_call>f<arg_key>city</arg_key><arg_value>12 é</arg_value>"
    "<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>\n<tool_call>g</tool_call>"
)


def read_all(pieces: list[bytes], *, stops: tuple[str, ...] = (), opened: bool = True) -> list[Delta]:
    text = AnswerText(
        stops=stops,
        reasoning=ReasoningSplitter(open=opened),
        tools=ToolCallReader(
            parameters=lambda name: SCHEMA if name == "f" else None, new_id=lambda n: f"id{n}"
        ),
    )
    deltas = [delta for piece in pieces for delta in text.feed(piece)]
    return deltas + text.finish()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(ends)]


WHOLE = {
    "reasoning_content": "Thinking of <b>, </thin, é",
    "content": "\n世界 text <tool_cal ",
    "tool_calls": [
        {"index": 0, "id": "id0", "type": "function",
         "function": {"name": "f", "arguments": '{"city": "12 é", "n": 3}'}},
        {"index": 1, "id": "id1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ],
}  # fmt: skip


@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_an_answer_reads_the_same_however_it_is_cut(places: list[int]) -> None:
    assert merge_deltas(read_all(cut(ANSWER.encode(), places))) == WHOLE


def test_byte_by_byte() -> None:
    assert merge_deltas(read_all([bytes([byte]) for byte in ANSWER.encode()])) == WHOLE


@given(st.text(alphabet="ab<>/x", max_size=30), st.lists(st.integers(0, 100), max_size=20))
def test_a_stop_string_cuts_at_its_first_place(text: str, places: list[int]) -> None:
    stops = ("ab", "x<", "b/")
    cuts = [text.find(stop) for stop in stops if stop in text]
    wanted = text[: min(cuts)] if cuts else text
    got = read_all(cut(text.encode(), places), stops=stops, opened=False)
    assert "".join(delta.text for delta in got if isinstance(delta, ContentText)) == wanted


def test_half_a_character_at_the_end_is_replaced() -> None:
    assert read_all(["aé".encode()[:2]], opened=False) == [ContentText("a"), ContentText("�")]


def test_reasoning_that_never_ends() -> None:
    assert merge_deltas(read_all([b"on and on </th"])) == {"reasoning_content": "on and on </th"}


def test_reasoning_that_the_answer_opens_itself() -> None:
    assert read_all([b"<thi", b"nk>a</think>b"], opened=False) == [ReasoningText("a"), ContentText("b")]
    assert read_all([b"a <think>"], opened=False) == [ContentText("a <think>")]


def test_a_call_that_breaks_off() -> None:
    assert merge_deltas(read_all([b"<tool_call>get_wea"], opened=False)) == {"content": "<tool_call>get_wea"}
    merged = merge_deltas(read_all([b"<tool_call>f<arg_key>city</arg_key><arg_value>Par"], opened=False))
    assert merged["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
