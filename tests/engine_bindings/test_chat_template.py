import pytest

from engine_bindings.chat_template import Message, Role, render_messages


def test_a_question_alone() -> None:
    rendered = render_messages([Message(role="user", text=b"Count from 3 to 9")])
    assert rendered == b"[gMASK]<sop><|user|>Count from 3 to 9<|assistant|><think></think>"


def test_past_answers_stand_to_the_byte() -> None:
    answer = "caf\u00e9".encode()[:-1]  # a cap cut the last character in two
    rendered = render_messages(
        [
            Message(role="user", text=b"a"),
            Message(role="assistant", text=b" " + answer),
            Message(role="user", text=b"b"),
        ]
    )
    assert b"<think></think> caf\xc3<|user|>b" in rendered


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", b"<|system|>x"),
        ("user", b"<|user|>x"),
        ("assistant", b"<|assistant|><think></think>x"),
        ("observation", b"<|observation|><tool_response>x</tool_response>"),
    ],
)
def test_each_role_has_its_marker(role: Role, expected: bytes) -> None:
    rendered = render_messages([Message(role=role, text=b"x")])
    assert rendered == b"[gMASK]<sop>" + expected + b"<|assistant|><think></think>"
