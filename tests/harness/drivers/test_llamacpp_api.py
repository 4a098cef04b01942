"""What llama.cpp's server is asked for, and how a session reads what it answers."""

import io
import json
from typing import Any

import pytest

from engine_bindings.binding import Pin
from engine_bindings.chat_template import Message
from harness.drivers.base import TurnRequest
from harness.drivers.http_api import HttpApi
from harness.drivers.http_session import HttpSession
from harness.drivers.llamacpp_api import LlamaChatApi, LlamaCompletionApi, Parameters
from harness.drivers.scripted_http import Answer, ScriptedServer
from harness.drivers.stderr_log import StderrLog
from harness.grammar import Grammar
from harness.plan import Timeouts
from harness.transcript import Margin, TurnRecord

SCHEMA = Grammar(kind="schema", text='{"type": "object"}')
GBNF = Grammar(kind="gbnf", text='root ::= "a"')


def pins(**values: str) -> list[Pin]:
    return [Pin(name=name, value=value, reason="test") for name, value in values.items()]


def ask(**changes: Any) -> TurnRequest:
    plain: dict[str, Any] = {
        "conversation": "c",
        "turn": 0,
        "prompt": b"<|user|>Hi",
        "line": None,
        "messages": (Message(role="user", text=b"Hi"),),
        "max_tokens": 16,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": (),
    }
    return TurnRequest(**plain | changes)


def body_of(api: HttpApi, **changes: Any) -> dict[str, Any]:
    return dict(api.build_call(ask(**changes), {}).body)


def test_a_completion_carries_the_exact_prompt_and_every_sampling_parameter() -> None:
    api = LlamaCompletionApi(Parameters(pins(SEED="7", TOP_K="0", MIN_P="0")))
    assert body_of(api, slot=1) == {
        "prompt": "<|user|>Hi",
        "n_predict": 16,
        "id_slot": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "seed": 7,
        "cache_prompt": True,
        "stream": True,
    }


def test_a_chat_carries_messages_and_leaves_stop_strings_to_the_harness() -> None:
    body = body_of(LlamaChatApi(Parameters(pins(REASONING_FORMAT="deepseek"))), stop=("x",))
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["reasoning_format"] == "deepseek"
    assert body["stream_options"] == {"include_usage": True}
    assert "stop" not in body


def test_the_server_looks_for_the_stop_strings_of_a_completion() -> None:
    assert body_of(LlamaCompletionApi(Parameters(())), stop=("x", "y"))["stop"] == ["x", "y"]


@pytest.mark.parametrize("kind", [LlamaCompletionApi, LlamaChatApi])
def test_every_request_of_a_cell_has_a_seed_of_its_own(kind: type[LlamaCompletionApi]) -> None:
    api = kind(Parameters(pins(SEED="7")))
    assert [body_of(api)["seed"] for _ in range(3)] == [7, 8, 9]


def test_candidates_are_asked_for_without_drafts_only() -> None:
    off = LlamaCompletionApi(Parameters(pins(N_PROBS="2", LLAMA_ARG_SPEC_TYPE="none")))
    on = LlamaCompletionApi(Parameters(pins(N_PROBS="2", LLAMA_ARG_SPEC_TYPE="draft-mtp")))
    assert body_of(off)["n_probs"] == 2
    assert "n_probs" not in body_of(on)


def test_settings_of_the_user_reach_the_request() -> None:
    body = body_of(LlamaChatApi(Parameters(pins(ENABLE_THINKING="true", LLAMA_ARG_CACHE_PROMPT="0"))))
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert body["cache_prompt"] is False


def test_a_grammar_goes_with_the_request_of_either_way() -> None:
    schema, gbnf = Parameters((), SCHEMA), Parameters((), GBNF)
    assert body_of(LlamaCompletionApi(schema))["json_schema"] == {"type": "object"}
    assert body_of(LlamaCompletionApi(gbnf))["grammar"] == GBNF.text
    assert body_of(LlamaChatApi(schema))["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert body_of(LlamaChatApi(gbnf))["grammar"] == GBNF.text


def test_a_grammar_that_only_drafts_is_none_to_this_server() -> None:
    free = Parameters((), Grammar(kind="gbnf", text='root ::= "a"', binds=False))
    assert "grammar" not in body_of(LlamaCompletionApi(free))


def test_a_setting_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="many"):
        Parameters(pins(TOP_K="many"))


def run_turn(api: HttpApi, body: bytes, **changes: Any) -> TurnRecord:
    health = Answer(content_type="application/json", body=(b'{"status":"ok"}',))
    server = ScriptedServer([health, Answer(body=(body,))])
    session = HttpSession(server, api, StderrLog(io.BytesIO()), Timeouts())
    try:
        session.start()
        return session.run_turn(ask(**changes))
    finally:
        session.kill()


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def candidate(number: int, text: str, logprob: float) -> dict[str, Any]:
    return {"id": number, "token": text, "bytes": list(text.encode()), "logprob": logprob}


def test_a_completion_becomes_a_record_with_margins() -> None:
    tops = [candidate(5, "a", -0.25), candidate(9, "b", -1.5)]
    piece = {"content": "a", "stop": False, "tokens_predicted": 1}
    piece["completion_probabilities"] = [{**tops[0], "top_logprobs": tops}]
    end = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 1, "tokens_evaluated": 4}
    record = run_turn(LlamaCompletionApi(Parameters(())), event(piece) + event(end))

    assert (record.text, record.finish, record.emitted_tokens) == (b"a", "length", 1)
    assert record.margins == (Margin(best=5, second=9, gap=1.25),)
    assert record.token_lengths == (1,)


def test_a_stop_string_that_the_server_found_is_the_reason() -> None:
    piece = {"content": "ab", "stop": False, "tokens_predicted": 1}
    end = {"content": "", "stop": True, "stop_type": "word", "tokens_predicted": 2, "tokens_evaluated": 4}
    record = run_turn(LlamaCompletionApi(Parameters(())), event(piece) + event(end), stop=("c",))

    assert (record.text, record.finish) == (b"ab", "stop-string")


def test_a_stop_string_in_a_chat_is_cut_by_the_harness() -> None:
    chunk = event({"choices": [{"index": 0, "delta": {"content": "abcd"}, "finish_reason": None}]})
    end = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    record = run_turn(LlamaChatApi(Parameters(())), chunk + end + b"data: [DONE]\n\n", stop=("c",))

    assert (record.text, record.finish) == (b"ab", "stop-string")
