"""Every branch of a session over HTTP against a server that plays a script, with the script's own clock."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine_bindings.chat_template import Message
from engine_bindings.errors import (
    EngineDiedError,
    EngineError,
    EngineGarbageError,
    EngineRefusedError,
    EngineStartError,
    EngineTimeoutError,
)
from harness.drivers.base import TurnRequest
from harness.drivers.http_api import ChatApi, CompletionsApi, HttpApi
from harness.drivers.http_session import HttpSession
from harness.drivers.http_transport import HttpCall
from harness.drivers.scripted_http import Answer, ScriptedServer
from harness.drivers.stderr_log import StderrLog
from harness.plan import Timeouts
from harness.transcript import Delivery, Margin, TurnRecord

JSON = "application/json"
MS = 1_000_000
LIMITS = Timeouts(
    start_timeout_s=10, first_output_timeout_s=5, progress_timeout_s=2, turn_timeout_s=8, exit_timeout_s=1
)
MODELS = Answer(content_type=JSON, body=(b'{"object": "list", "data": [{"id": "m"}]}',))
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(completion: int, **more: Any) -> bytes:
    counts = {"prompt_tokens": 5, "completion_tokens": completion, **more}
    return event({"choices": [], "usage": counts})


def ask(**changes: Any) -> TurnRequest:
    plain: dict[str, Any] = {
        "conversation": "c",
        "turn": 0,
        "prompt": b"<|user|>Hi",
        "line": None,
        "messages": (Message(role="user", text=b"Hi"),),
        "max_tokens": 16,
        "temperature": 0.0,
        "top_p": 1.0,
        "stop": (),
    }
    return TurnRequest(**{**plain, **changes})


OPENED: list[HttpSession] = []


@pytest.fixture(autouse=True)
def close_sessions() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().kill()


class Played:
    """A session on a script, with what it wrote to its log."""

    def __init__(self, *answers: Answer, api: HttpApi | None = None, **options: Any) -> None:
        fixed = options.pop("fixed", {})
        self.server = ScriptedServer(answers, fixed=fixed)
        self.file = io.BytesIO()
        self.log = StderrLog(self.file)
        self.session = HttpSession(
            self.server,
            api or ChatApi({"model": "m"}),
            self.log,
            LIMITS,
            **options,
        )
        OPENED.append(self.session)

    def turn(self, **changes: Any) -> TurnRecord:
        return self.session.run_turn(ask(**changes))

    def noted(self) -> str:
        return self.file.getvalue().decode()


def stream(*body: bytes, **options: Any) -> Answer:
    return Answer(body=body, **options)


def whole(value: Any) -> Answer:
    return Answer(content_type=JSON, body=(json.dumps(value).encode(),))


def test_a_chat_turn_is_timed_by_our_own_clock() -> None:
    answer = stream(
        delta(role="assistant", content=""),
        delta(content="Hel"),
        delta(content="lo"),
        delta("stop"),
        usage(2, prompt_tokens_details={"cached_tokens": 3}),
        DONE,
        wait_ns=10 * MS,
        gap_ns=5 * MS,
    )
    played = Played(answer)

    record = played.turn()
    assert record.text == b"Hello"
    assert record.entry == "messages"
    assert record.deliveries == (
        Delivery(at_ns=20 * MS, size_bytes=3),
        Delivery(at_ns=25 * MS, size_bytes=2),
    )
    assert (record.sent_ns, record.done_ns) == (0, 40 * MS)
    assert (record.emitted_tokens, record.prompt_tokens, record.cached_tokens) == (2, 5, 3)
    assert record.finish == "stop"
    assert record.forwards is record.drafted_tokens is record.token_lengths is None


def test_the_request_holds_what_was_asked_for() -> None:
    played = Played(stream(delta("stop"), DONE), api=ChatApi({"model": "m", "top_k": 1}))

    played.turn(stop=("x", "y"), max_tokens=7)
    assert played.server.calls == [
        HttpCall(
            method="POST",
            path="/chat/completions",
            streams=True,
            body={
                "model": "m",
                "top_k": 1,
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 7,
                "temperature": 0.0,
                "top_p": 1.0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "stop": ["x", "y"],
            },
        )
    ]


def test_a_whole_answer_is_one_delivery() -> None:
    message = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}
    value = {
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": {"completion_tokens": 4},
    }
    played = Played(whole(value), api=ChatApi({"model": "m"}, streams=False))

    record = played.turn()
    assert record.text == b"<think>Hm</think>Yes"
    assert record.finish == "length"
    assert record.emitted_tokens == 4
    assert [d.tokens for d in record.deliveries] == [None]
    body = played.server.calls[0].body
    assert body["stream"] is False
    assert "stream_options" not in body


def test_a_completion_gets_the_exact_prompt() -> None:
    chunk = event({"choices": [{"index": 0, "text": "ab", "finish_reason": "stop", "token_ids": [1, 2]}]})
    played = Played(stream(chunk, DONE), api=CompletionsApi({"model": "m"}))

    record = played.turn()
    assert played.server.calls[0].body["prompt"] == "<|user|>Hi"
    assert played.server.calls[0].path == "/completions"
    assert record.entry == "prompt"
    assert record.deliveries[0].tokens == 2


def test_reasoning_and_calls_have_one_text_in_whatever_order_they_came() -> None:
    call = {"index": 0, "id": "call_9", "function": {"name": "f", "arguments": '{"a":1}'}}
    played = Played(
        stream(
            delta(content="So"),
            delta(tool_calls=[call]),
            delta(reasoning_content="Hm"),
            delta(content="."),
            delta("tool_calls"),
            DONE,
        )
    )

    record = played.turn()
    assert record.text == b'<think>Hm</think>So.<tool_call>f\n{"a":1}</tool_call>'
    assert record.finish == "tool-calls"


def test_an_answer_goes_back_as_it_was_received() -> None:
    call = {"index": 0, "id": "call_9", "function": {"name": "f", "arguments": "{}"}}
    played = Played(stream(delta(tool_calls=[call]), delta("tool_calls"), DONE), stream(delta("stop"), DONE))
    played.session.begin_conversation()

    first = played.turn()
    later = (
        Message(role="user", text=b"Hi"),
        Message(role="assistant", text=first.text),
        Message(role="observation", text=b"42"),
        Message(role="observation", text=b"no call is left"),
    )
    played.turn(turn=1, messages=later)
    function = {"name": "f", "arguments": "{}"}
    assert played.server.calls[1].body["messages"] == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_9", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "call_9"},
        {"role": "tool", "content": "no call is left"},
    ]


def test_without_usage_the_count_is_not_reported() -> None:
    played = Played(stream(delta(content="a"), delta(content="b"), delta("stop"), DONE))

    assert played.turn().emitted_tokens is None


def test_margins_and_boundaries_from_logprobs() -> None:
    def entry(text: str, gap: float) -> dict[str, Any]:
        tops = [{"token": text, "logprob": -0.5, "bytes": list(text.encode())}]
        tops.append({"token": "z", "logprob": -0.5 - gap, "bytes": [122]})
        return {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": tops}

    content = [entry("a", 1.5), entry("é", 0.25)]
    choice = {
        "index": 0,
        "delta": {"content": "aé"},
        "finish_reason": "stop",
        "logprobs": {"content": content},
    }
    played = Played(stream(event({"choices": [choice]}), DONE))

    record = played.turn()
    assert record.token_lengths == (1, 2)
    assert record.deliveries[0].tokens == 2
    assert record.margins is not None
    assert [margin.gap for margin in record.margins] == [1.5, 0.25]
    assert record.margins[0] == Margin(best=record.margins[0].best, second=record.margins[1].second, gap=1.5)


def test_a_gap_that_no_number_holds_is_no_margin() -> None:
    tops = [{"token": "a", "logprob": 1e308}, {"token": "b", "logprob": -1e308}]
    content = [{"token": "a", "logprob": -0.5, "top_logprobs": tops}]
    choice = {
        "index": 0,
        "delta": {"content": "a"},
        "logprobs": {"content": content},
        "finish_reason": "stop",
    }

    assert Played(stream(event({"choices": [choice]}), DONE)).turn().margins is None


def test_logprobs_are_asked_for_and_kept() -> None:
    entry = {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": []}
    choice = {
        "index": 0,
        "delta": {"content": "a"},
        "finish_reason": "stop",
        "logprobs": {"content": [entry]},
    }
    played = Played(stream(event({"choices": [choice]}), DONE))

    assert played.turn(logprobs=True).logprobs == (-0.25,)
    body = played.server.calls[0].body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)


def test_logprobs_of_a_completion_are_asked_for_in_its_words() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -2}]}
    chunk = event({"choices": [{"index": 0, "text": "a", "finish_reason": "stop", "logprobs": logprobs}]})
    played = Played(stream(chunk, DONE), api=CompletionsApi({}))

    record = played.turn(logprobs=True)
    assert record.logprobs == (-0.5,)
    assert record.margins is not None
    assert played.server.calls[0].body["logprobs"] == 2


def test_tokens_without_text_are_counted_and_are_no_first_output() -> None:
    held = event({"choices": [{"index": 0, "text": "", "token_ids": [7]}]})
    shown = event({"choices": [{"index": 0, "text": "é", "token_ids": [8], "finish_reason": "stop"}]})
    played = Played(stream(held, shown, DONE, gap_ns=MS), api=CompletionsApi({}))

    assert played.turn().deliveries == (
        Delivery(at_ns=1 * MS, size_bytes=0, tokens=1),
        Delivery(at_ns=2 * MS, size_bytes=2, tokens=1),
    )


def test_a_stop_string_that_the_server_left_is_cut() -> None:
    played = Played(stream(delta(content="one EN"), delta(content="D two"), delta("stop"), DONE))

    record = played.turn(stop=("END",))
    assert (record.text, record.finish) == (b"one ", "stop-string")


@pytest.mark.parametrize(
    ("told", "finish"),
    [({}, "stop-string"), ({"stop_reason": "END"}, "stop-string"), ({"stop_reason": None}, "stop")],
)
def test_a_stop_may_be_one_of_the_strings_that_were_asked_for(told: dict[str, Any], finish: str) -> None:
    def answer() -> Answer:
        choice = {"index": 0, "delta": {"content": "one "}, "finish_reason": "stop", **told}
        return stream(event({"choices": [choice]}), DONE)

    assert Played(answer()).turn(stop=("END",)).finish == finish
    if not told:
        assert Played(answer()).turn().finish == "stop"


def test_a_missing_mark_and_an_unknown_reason_are_noted() -> None:
    played = Played(stream(delta(content="a"), delta("because")))

    assert played.turn().finish == "unreported"
    assert "the stream ended without [DONE]" in played.noted()


def test_a_turn_is_cancelled_by_closing_it() -> None:
    played = Played(stream(*[delta(content="x")] * 5, delta("stop"), DONE))

    record = played.turn(cancel_after_tokens=2)
    assert (record.text, record.finish, record.emitted_tokens) == (b"xx", "cancelled", None)
    assert played.server.closed_early == 1


def test_a_whole_answer_cannot_be_cancelled_in_the_middle() -> None:
    value = {"choices": [{"message": {"content": "all of it"}, "finish_reason": "stop"}]}
    played = Played(whole(value), api=ChatApi({}, streams=False))

    record = played.turn(cancel_after_tokens=1)
    assert (record.text, record.finish) == (b"all of it", "cancelled")


TOO_LONG = {"error": {"message": "too long", "code": "context_length_exceeded"}}


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=400, content_type=JSON, body=(json.dumps(TOO_LONG).encode(),)),
        stream(event(TOO_LONG)),
    ],
)
def test_a_prompt_may_be_refused(answer: Answer) -> None:
    record = Played(answer).turn(may_refuse=True)

    assert (record.finish, record.text) == ("refused", b"")
    with pytest.raises(EngineError, match="too long"):
        Played(answer).turn()


def test_another_error_is_no_refusal_of_the_prompt() -> None:
    body = b'{"error": {"message": "bad parameter"}}'
    with pytest.raises(EngineRefusedError, match="answered 400: bad parameter"):
        Played(Answer(status=400, content_type=JSON, body=(body,))).turn(may_refuse=True)


BEGUN = delta(content="a")
HTML = Answer(content_type="text/html", body=(b"<html>",))


def fault(status: int, body: bytes) -> Answer:
    return Answer(status=status, content_type=JSON, body=(body,))


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (fault(401, b'{"error": "no key"}'), EngineRefusedError, "401: no key.*OPENAI_API_KEY"),
        (fault(404, b"<h1>Not  Found</h1>"), EngineRefusedError, "404: <h1>Not Found</h1>"),
        (fault(404, b'{"detail": "no"}'), EngineRefusedError, '404: {"detail": "no"}'),
        (fault(429, b""), EngineRefusedError, "429: an empty body"),
        (fault(500, b"oops"), EngineDiedError, "500: oops"),
        (Answer(status=307, headers={"location": "/v2"}), EngineRefusedError, "redirects .307. to /v2"),
        (HTML, EngineGarbageError, "asked for text/event-stream, got text/html"),
        (whole({"choices": []}), EngineGarbageError, "asked for text/event-stream, got application/json"),
        (Answer(content_type=""), EngineGarbageError, "no content type"),
        (stream(event({"id": 1})), EngineGarbageError, "no list of choices"),
        (stream(b"data: <html>\n\n"), EngineGarbageError, "not JSON"),
        (stream(BEGUN, event({"error": "boom"})), EngineDiedError, "inside its answer: boom"),
        (stream(BEGUN, b'data: {"cho'), EngineDiedError, "was cut.*ended inside an event"),
        (stream(BEGUN), EngineDiedError, "was cut.*without a finish_reason"),
        (stream(BEGUN, breaks="reset by peer"), EngineDiedError, "broke: reset by peer"),
        (Answer(refused="connection refused"), EngineDiedError, "connection refused"),
        (stream(*[delta(content="x" * 200_000)] * 2), EngineGarbageError, "no end of the turn after 2"),
    ],
)
def test_what_goes_wrong_is_named(answer: Answer, kind: type[EngineError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        Played(answer).turn()
    assert "turn 1 of conversation 'c'" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "limit"),
    [
        (stream(wait_ns=60_000 * MS), "first-output-timeout"),
        (stream(delta(role="assistant"), hangs=True), "first-output-timeout"),
        (stream(*[b": alive\n\n"] * 20, gap_ns=1000 * MS), "first-output-timeout"),
        (stream(delta(content="a"), hangs=True), "progress-timeout"),
        (stream(*[delta(content="a")] * 20, gap_ns=1000 * MS), "turn-timeout"),
        (Answer(status=500, hangs=True), "first-output-timeout"),
    ],
)
def test_every_wait_has_its_limit(answer: Answer, limit: str) -> None:
    with pytest.raises(EngineTimeoutError) as caught:
        Played(answer).turn()
    assert caught.value.limit_name == limit


def test_the_start_proves_the_api() -> None:
    played = Played(Answer(content_type=JSON, headers={"server": "uvicorn"}, body=(b'{"data": []}',)))

    start = played.session.start()
    assert (start.protocol, start.banner, start.kv_resumed_tokens) == ("http", ("server: uvicorn",), None)
    assert "GET /models 200" in played.noted()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(refused="connection refused"), "cannot reach the server: connection refused"),
        (Answer(status=401, body=(b"{}",)), "answered 401"),
        (Answer(status=503, body=(b"loading",)), "answered 503: loading"),
        (Answer(content_type="text/html", body=(b"<html>",)), "text/html where JSON belongs"),
    ],
)
def test_a_start_that_fails(answer: Answer, message: str) -> None:
    with pytest.raises(EngineStartError, match=message):
        Played(answer).session.start()


def test_a_long_list_of_models_is_read_to_its_end() -> None:
    models = json.dumps({"data": [{"id": "m", "description": "x" * 300_000}]}).encode()
    played = Played(Answer(content_type=JSON, body=(models[:1000], models[1000:])))

    assert played.session.start().protocol == "http"


@pytest.mark.parametrize("broken", [b"[" * 100_000, b'{"data": ['])
def test_a_start_with_json_that_is_none(broken: bytes) -> None:
    with pytest.raises(EngineStartError, match="where JSON belongs"):
        Played(Answer(content_type=JSON, body=(broken,))).session.start()


KEY = "sk-0123456789abcdef"
ECHO = b'{"error": {"message": "' + b"x" * 280 + b" wrong key: " + KEY.encode() + b'"}}'


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=401, content_type=JSON, body=(ECHO,)),
        Answer(status=401, content_type=JSON, body=(ECHO.replace(b"x" * 280, b""),)),
        Answer(status=307, headers={"location": f"/?key={KEY}"}),
        Answer(content_type="text/plain", body=(KEY.encode(),)),
        stream(event({"error": f"wrong key: {KEY}"})),
        Answer(refused=f"no tunnel for {KEY}"),
    ],
)
def test_a_key_that_the_server_repeats_is_not_shown(answer: Answer) -> None:
    played = Played(answer, secret=KEY)
    with pytest.raises(EngineError) as caught:
        played.turn()

    assert "sk-0" not in f"{caught.value.message}{caught.value.hint}{played.noted()}"


STAND_IN = "none"


def test_a_stand_in_for_a_key_hides_nothing() -> None:
    played = Played(Answer(status=500, content_type=JSON, body=(b"none is free",)), secret=STAND_IN)
    with pytest.raises(EngineDiedError, match="none is free"):
        played.turn()


def test_a_start_that_hangs() -> None:
    with pytest.raises(EngineTimeoutError, match="start-timeout"):
        Played(Answer(hangs=True)).session.start()


class Host:
    """A server's process that ends as told."""

    def __init__(self, status: int | None = None, *, ends: int | None = 0) -> None:
        self.status, self.ends, self.killed = status, ends, False
        self.written: Callable[[], None] = lambda: None

    def exit_status(self) -> int | None:
        return self.status

    def drain(self) -> None:
        self.written()

    def end(self, timeout_s: float) -> int | None:
        return self.ends

    def kill(self) -> int | None:
        self.killed = True
        return -9


def test_a_server_of_ours_is_waited_for() -> None:
    played = Played(Answer(refused="refused"), Answer(status=503), MODELS, host=Host())

    played.session.start()
    assert played.server.pauses == 2


def test_a_server_of_ours_that_dies_or_never_comes() -> None:
    with pytest.raises(EngineStartError, match="ended with exit status 3 before it was ready"):
        Played(Answer(refused="refused"), host=Host(3)).session.start()
    with pytest.raises(EngineTimeoutError, match="start-timeout"):
        Played(fixed={"/models": Answer(refused="refused")}, host=Host()).session.start()


def test_what_a_server_of_ours_wrote_before_it_died_may_have_a_remedy() -> None:
    host = Host(1)
    played = Played(Answer(refused="refused"), host=host, start_hints={"no head": "name another kind"})
    host.written = lambda: played.log.feed(b"E no head in it\nE exiting\n")
    with pytest.raises(EngineStartError) as caught:
        played.session.start()

    assert caught.value.hint == "name another kind"


def test_a_server_of_ours_is_ended_or_killed() -> None:
    assert Played(host=Host()).session.end() == 0
    host = Host(ends=None)
    with pytest.raises(EngineTimeoutError, match="exit-timeout"):
        Played(host=host).session.end()
    assert host.killed
    assert Played(host=Host()).session.kill() == -9


def test_what_a_server_of_ours_wrote_counts_for_its_turn() -> None:
    host = Host()
    played = Played(stream(delta("stop"), usage(6), DONE), host=host)
    line = b"[SPEC] turn: drafted 4, accepted 3, forwards 3\n"
    written = iter([b"[SPEC] turn: drafted 9, accepted 9, forwards 9\n", line])
    host.written = lambda: played.log.feed(next(written))

    record = played.turn()
    assert (record.drafted_tokens, record.accepted_tokens) == (4, 3)


def test_another_server_is_left_alone_at_the_end() -> None:
    played = Played()

    assert played.session.end() == 0
    assert played.session.kill() is None
    assert played.server.closed


def test_preparations_are_sent_before_the_first_turn_and_may_be_unknown() -> None:
    flush = HttpCall(method="POST", path="/completions", body={"prompt": "x"})
    played = Played(MODELS, Answer(status=404), preparations=(flush,))

    played.session.start()
    assert [call.path for call in played.server.calls] == ["/models", "/completions"]


def test_several_turns_at_once() -> None:
    played = Played(
        stream(delta(content="a"), delta("stop"), DONE), stream(delta(content="b"), delta("stop"), DONE)
    )

    one, two = played.session.run_together([ask(), ask(conversation="d", slot=1)])
    assert (one.text, two.text) == (b"a", b"b")


def test_an_error_of_one_of_several_turns_is_raised_when_all_have_ended() -> None:
    played = Played(Answer(status=500), stream(delta("stop"), DONE))

    with pytest.raises(EngineDiedError):
        played.session.run_together([ask(), ask(conversation="d")])
    assert len(played.server.calls) == 2


def totals(generated: int, drafted: int, accepted: int) -> Answer:
    text = (
        f"vllm:generation_tokens_total {generated}\n"
        f"vllm:spec_decode_num_draft_tokens_total {drafted}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
    )
    return Answer(content_type="text/plain", body=(text.encode(),))


def test_the_servers_own_counts_are_read_around_a_turn() -> None:
    answer = stream(delta("stop"), usage(6), DONE)
    played = Played(totals(100, 10, 5), answer, totals(100, 10, 5), totals(106, 17, 9), counted=True)

    record = played.turn()
    assert (record.drafted_tokens, record.accepted_tokens) == (7, 4)
    assert played.server.pauses == 1
    assert played.server.calls[0].path == "//metrics"


def test_the_answers_own_counts_win() -> None:
    details = {"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 1}
    answer = stream(delta("stop"), usage(6, completion_tokens_details=details), DONE)
    played = Played(totals(100, 10, 5), answer, totals(106, 19, 9), counted=True)

    record = played.turn()
    assert (record.drafted_tokens, record.accepted_tokens) == (2, 1)


def test_counts_that_hold_other_requests_are_not_used() -> None:
    played = Played(
        stream(delta("stop"), usage(6), DONE), fixed={"//metrics": totals(100, 10, 5)}, counted=True
    )

    assert played.turn().drafted_tokens is None
    assert "/metrics counted 0 tokens where the answer has 6" in played.noted()


def test_a_server_without_metrics_is_asked_once() -> None:
    turns = [stream(delta("stop"), usage(6), DONE)] * 2
    played = Played(Answer(status=404), *turns, counted=True)

    assert played.turn().drafted_tokens is None
    assert played.turn().emitted_tokens == 6
    assert [call.path for call in played.server.calls].count("//metrics") == 1


def test_a_cancelled_turn_has_no_counts_beside_it() -> None:
    played = Played(totals(1, 0, 0), stream(*[delta(content="x")] * 9), counted=True)

    assert played.turn(cancel_after_tokens=1).drafted_tokens is None
