"""Lines of logs as agents and tools write them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.request_log import LoggedMessage, LoggedRequest, UnsupportedRequestError, parse_logged_request

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
HI = (LoggedMessage(role="user", text="Hi"),)
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "Yes"}}]}


def parse(value: Any) -> LoggedRequest:
    return parse_logged_request(value if isinstance(value, str) else json.dumps(value), "line 1")


@pytest.mark.parametrize(
    "line",
    [
        BODY,
        {"request": BODY},
        {"body": BODY, "custom_id": "x", "method": "POST", "url": "/v1/chat/completions"},
        {"request": {"url": "/v1", "body": BODY}},
        {"request": json.dumps(BODY)},
        {"request_body": BODY, "id": 7},
    ],
)
def test_a_body_is_found_bare_and_in_wrappers(line: Any) -> None:
    assert parse(line) == LoggedRequest(place="line 1", messages=HI)


@pytest.mark.parametrize(
    "more",
    [
        {"response": ANSWER},
        {"response": {"status_code": 200, "body": ANSWER}},
        {"response": json.dumps(ANSWER)},
        {"response_body": ANSWER},
        {"response": {"choices": [{"text": "Yes"}]}},
    ],
)
def test_the_answer_is_found_beside_it(more: Any) -> None:
    assert parse({"request": BODY, **more}).answer == "Yes"


@pytest.mark.parametrize("response", [None, "text", {"error": "x"}, {"choices": []}, [1], {"choices": [{"message": {"content": None}}]}])  # fmt: skip  # noqa: E501
def test_an_answer_that_cannot_be_read_is_none(response: Any) -> None:
    assert parse({"request": BODY, "response": response}).answer is None


def test_parameters_and_messages() -> None:
    request = parse(
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
                {"role": "tool", "content": "42", "tool_call_id": "1"},
            ],
            "max_completion_tokens": 9,
            "temperature": 0.7,
            "stop": "END",
            "stream": True,
            "tools": [{"type": "function"}],
            "n": 1,
            "frequency_penalty": 0.5,
            "unheard_of": None,
        }
    )
    assert request.messages == (
        LoggedMessage(role="system", text="Be brief."),
        LoggedMessage(role="user", text="ab"),
        LoggedMessage(role="assistant", text="", calls=True),
        LoggedMessage(role="tool", text="42"),
    )
    assert (request.max_tokens, request.temperature, request.stop) == (9, 0.7, ("END",))
    assert request.left_out == ("frequency_penalty", "tools")


def test_a_completion() -> None:
    request = parse({"prompt": ["Once"], "max_tokens": 4, "stop": ["a", "b"]})

    assert (request.prompt, request.messages, request.stop) == ("Once", (), ("a", "b"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no JSON object"),
        ({"input": "x", "model": "m"}, "neither messages nor prompt; its keys: input, model"),
        ({"messages": [], "prompt": "x"}, "neither messages nor prompt"),
        ({"request": [1]}, "no JSON object where the body"),
        ({"messages": []}, "messages is no list, or an empty one"),
        ({"messages": ["x"]}, "message 1 has no role"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "message 1 has no role that is known"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "message 1 holds a part that is no text: image_url",
        ),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "message 1 holds a NUL character"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "half a character"),
        ({"prompt": [1, 2]}, "the prompt is no text"),
        ({"prompt": ""}, "the prompt is no text"),
    ],
)
def test_what_cannot_be_imported_is_named(line: Any, message: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=message):
        parse(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(("messages", "prompt", "request", "body", "response", "stop", "max_tokens", "tools")),
        json_values | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": json_values})),
        max_size=5,
    )
)
def test_any_line_is_a_request_or_is_refused(line: dict[str, Any]) -> None:
    try:
        assert parse(line).place == "line 1"
    except UnsupportedRequestError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
