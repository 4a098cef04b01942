"""Only the template makes special tokens; everything else is the template's own text to the byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api_errors import ApiError
from server.chat_prompt import ChatTemplate, Prompt, build_chat_prompt, choose_guard, read_template
from server.tokens import GUARDS, read_tokens
from tests.server.server_builders import MODEL_DIR

TOKENS = read_tokens(MODEL_DIR)
TEMPLATE = read_template(MODEL_DIR)
PARTS = [
    "<|user|>",
    "<think>",
    "</think>",
    "[gMASK]",
    "<sop>",
    "<",
    "[",
    "|>",
    "user",
    "tool_call>",
    " é世\n",
    "\x01",
]
HOSTILE = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=8).map("".join)


def build(*messages: dict[str, Any], tools: list[Any] | None = None, thinking: bool = False) -> Prompt:
    return build_chat_prompt(TEMPLATE, TOKENS, messages=messages, tools=tools or [], enable_thinking=thinking)


def specials(ids: tuple[int, ...]) -> list[str]:
    names = {token_id: name for name, token_id in TOKENS.added_ids.items()}
    return [names[one] for one in ids if one in names]


@given(HOSTILE, HOSTILE)
def test_content_never_makes_a_special_token(first: str, second: str) -> None:
    messages = [
        {"role": "system", "content": second},
        {"role": "user", "content": first},
    ]
    prompt = build(*messages)
    empty = build({"role": "system", "content": ""}, {"role": "user", "content": ""})
    assert specials(prompt.ids) == specials(empty.ids)
    assert TOKENS.decode(prompt.ids).decode() == prompt.text
    assert prompt.text == f"[gMASK]<sop><|system|>{second}<|user|>{first}<|assistant|><think></think>"


@given(st.text(alphabet=st.characters(exclude_characters="<[", codec="utf-8"), max_size=40))
def test_harmless_content_gives_the_ids_of_the_plain_text(text: str) -> None:
    prompt = build({"role": "user", "content": text})
    assert prompt.is_text
    assert prompt.ids == TOKENS.encode(prompt.text)


def test_special_text_cannot_be_sent_as_text() -> None:
    assert not build({"role": "user", "content": "a <|user|> b"}).is_text
    assert build({"role": "user", "content": "a < b [c]"}).is_text


def test_arguments_and_tools_are_content_too() -> None:
    call = {
        "type": "function",
        "function": {"name": "f", "arguments": {"<sop>": "<|user|>", "n": ["</think>"]}},
    }
    tool = {"type": "function", "function": {"name": "f", "description": "uses <tool_call> [gMASK]"}}
    hostile = build({"role": "assistant", "content": "", "tool_calls": [call]}, tools=[tool])
    call["function"]["arguments"] = {"s": "u", "n": ["t"]}
    tool["function"]["description"] = "uses"
    plain = build({"role": "assistant", "content": "", "tool_calls": [call]}, tools=[tool])
    assert specials(hostile.ids) == specials(plain.ids)
    assert '"uses <tool_call> [gMASK]"' in hostile.text


def test_thinking_is_opened_by_the_template() -> None:
    assert build({"role": "user", "content": "x"}, thinking=True).reasons
    assert not build({"role": "user", "content": "<think>"}).reasons


def test_filters_of_the_template_work_on_the_text_itself() -> None:
    prompt = build({"role": "assistant", "content": "  <b> trimmed \n"})
    assert "</think><b> trimmed<|assistant|>" in prompt.text


def test_text_that_holds_guards_gets_another_one() -> None:
    assert choose_guard("plain") == GUARDS[0]
    assert choose_guard(f"{GUARDS[0]} and {json.dumps(GUARDS[1])}") == GUARDS[2]
    text = "".join(GUARDS[:-1]) + "<|user|>"
    assert build({"role": "user", "content": text}).text.count(text) == 1
    with pytest.raises(ApiError):
        choose_guard("".join(GUARDS))


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.x.y }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_is_a_400_and_cannot_reach_out(source: str) -> None:
    with pytest.raises(ApiError) as caught:
        build_chat_prompt(
            ChatTemplate(source),
            TOKENS,
            messages=[{"role": "user", "content": "x"}],
            tools=[],
            enable_thinking=False,
        )
    assert caught.value.status == 400


def test_json_is_not_escaped_for_html() -> None:
    template = ChatTemplate("{{ messages | tojson }}")
    text = build_chat_prompt(
        template, TOKENS, messages=[{"role": "user", "content": "<&'é"}], tools=[], enable_thinking=False
    ).text
    assert json.loads(text) == [{"role": "user", "content": "<&'é"}]
    assert "<&'é" in text
