"""Chat mode in this process on the shipped checkpoint, and that it says what serve mode says."""

from collections.abc import Iterator

import pytest

from engine_bindings.chat_template import Message, render_messages
from engine_bindings.reference.rules import Rules
from tests.engine_bindings.reference.engine_sessions import (
    NEVER_STOPS,
    PROMPT,
    PROMPT_TOKENS,
    ChatSession,
    ServeSession,
    StopsAt,
)

Steps = Iterator[bytes | None]
DEPTHS = ["0", "1", "3", "8"]


def run_prompts(
    *prompts: bytes, max_tokens: int = 12, rules: Rules = NEVER_STOPS, **environ: str
) -> ChatSession:
    def script(session: ChatSession) -> Steps:
        for prompt in prompts:
            yield session.prompt(prompt, max_tokens=max_tokens)

    return ChatSession(script, rules=rules, **environ)


def run_bytes(*commands: bytes, **environ: str) -> ChatSession:
    return ChatSession(lambda _: iter(commands), **environ)


def serve(*prompts: bytes, max_tokens: int = 12, rules: Rules = NEVER_STOPS, **environ: str) -> ServeSession:
    def script(session: ServeSession) -> Steps:
        for i, prompt in enumerate(prompts):
            yield session.submit(i + 1, prompt, max_tokens=max_tokens)
            yield from session.wait()

    return ServeSession(script, rules=rules, **environ)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 40])
def test_a_prompt_is_answered_as_serve_mode_answers_it(depth: str, max_tokens: int) -> None:
    chat = run_prompts(PROMPT, max_tokens=max_tokens, DRAFT=depth)
    served = serve(PROMPT, max_tokens=max_tokens, DRAFT=depth)
    ((text, end),) = chat.replies()
    stat = served.done(1).stat
    assert text == served.text(1)
    assert not end.newline
    assert (end.stat.emitted_tokens, end.stat.prompt_tokens) == (stat.emitted_tokens, stat.prompt_tokens)
    assert end.stat.length_limited == stat.length_limited
    for session in (chat, served):
        session.assert_history(PROMPT, text, max_tokens)


@pytest.mark.parametrize("depth", DEPTHS)
def test_both_modes_run_the_same_forwards(depth: str, capfd: pytest.CaptureFixture[str]) -> None:
    prompts = [PROMPT, PROMPT + b"1 2", PROMPT]
    counts = []
    for run in (run_prompts, serve):
        run(*prompts, max_tokens=25, DRAFT=depth, PROF="1")
        lines = capfd.readouterr().err.splitlines()
        counts.append([line for line in lines if line.startswith(("[SPEC]", "[API]"))])
    assert counts[0] == counts[1]
    assert len(counts[0]) == 6


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_stop_ends_both_modes_alike_and_stays_out_of_the_context(depth: str) -> None:
    text = run_prompts(PROMPT, max_tokens=30).mode.slot.history[PROMPT_TOKENS:]
    at = max(i for i, token in enumerate(text) if token not in text[:i])
    rules = StopsAt(text[at])
    chat = run_prompts(PROMPT, max_tokens=30, rules=rules, DRAFT=depth)
    served = serve(PROMPT, max_tokens=30, rules=rules, DRAFT=depth)
    ((answer, end),) = chat.replies()
    assert answer == served.text(1)
    assert (end.stat.emitted_tokens, end.stat.length_limited) == (at, False)
    assert served.done(1).stat.length_limited is False
    for session in (chat, served):
        session.assert_history(PROMPT, answer, at)


def test_a_line_equals_the_rendered_prompt() -> None:
    line = run_bytes(b"Count from 3 to 9\n", NGEN="12")
    prompt = run_prompts(render_messages([Message(role="user", text=b"Count from 3 to 9")]))
    assert line.replies()[0][0] == prompt.replies()[0][0]
    assert line.replies()[0][1].newline
    assert line.replies()[0][1].stat.prompt_tokens == PROMPT_TOKENS


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_second_line_continues_the_context(depth: str) -> None:
    lines = run_bytes(b"Count from 3 to 9\n", b"And now?\n", NGEN="12", DRAFT=depth)
    first, second = lines.replies()
    history = lines.mode.engine.slots[0].history
    encode = lines.mode.runtime.tokenizer.encode
    opening = encode(b"<|user|>And now?<|assistant|><think></think>")
    start = PROMPT_TOKENS + first[1].stat.emitted_tokens
    assert history[start : start + len(opening)] == opening
    assert second[1].stat.prompt_tokens == len(opening)
    assert len(history) == start + len(opening) + second[1].stat.emitted_tokens
    lines.assert_kv_is_cold()


@pytest.mark.parametrize("depth", DEPTHS)
def test_more_goes_on_where_the_cap_cut(depth: str) -> None:
    cut = run_bytes(b"Count from 3 to 9\n", b"\x02MORE\n", b"\x02MORE\n", NGEN="5", DRAFT=depth)
    whole = run_bytes(b"Count from 3 to 9\n", NGEN="15", DRAFT="0")
    assert b"".join(text for text, _ in cut.replies()) == whole.replies()[0][0]
    assert [end.stat.prompt_tokens for _, end in cut.replies()] == [PROMPT_TOKENS, None, None]
    assert all(end.newline for _, end in cut.replies())
    cut.assert_kv_is_cold()


def test_reset_forgets_and_empty_commands_get_empty_replies() -> None:
    session = run_bytes(b"\x02MORE\n", b"Hello\n", b"\x02RESET\n", b"\x02MORE\n", b"\n", b"Hello\n", NGEN="6")
    replies = session.replies()
    assert replies[1][0] == replies[5][0] != b""
    for text, end in (replies[0], replies[2], replies[3], replies[4]):
        assert (text, end.newline, end.stat.prompt_tokens, end.stat.emitted_tokens) == (b"", False, None, 0)
    assert replies[5][1].stat.prompt_tokens == replies[1][1].stat.prompt_tokens


def test_a_prompt_in_pieces_is_one_prompt() -> None:
    def script(session: ChatSession) -> Steps:
        frame = session.prompt()
        yield frame[:3]
        yield frame[3:40]
        yield frame[40:]

    assert ChatSession(script).replies()[0][0] == run_prompts(PROMPT).replies()[0][0]


@pytest.mark.parametrize(
    "frame", [b"\x02PROMPT 0 8 0 1\n\n", b"\x02PROMPT 3 8 0 1\na\0b\n"], ids=["empty", "nul"]
)
def test_a_refused_prompt_gets_zeros_and_leaves_the_context(frame: bytes) -> None:
    def script(session: ChatSession) -> Steps:
        yield session.prompt()
        yield frame

    session = ChatSession(script)
    first, (text, end) = session.replies()
    assert (text, end.stat.emitted_tokens, end.stat.prompt_tokens) == (b"", 0, 0)
    assert end.stat.length_limited is False
    assert session.mode.slot.length == PROMPT_TOKENS + first[1].stat.emitted_tokens


def test_the_payload_behind_a_bad_header_is_a_line() -> None:
    session = run_bytes(b"\x02PROMPT 5 0 0 1\nhello\n", NGEN="4")
    refused, line = session.replies()
    assert refused[1].stat.prompt_tokens == 0
    assert line[1].newline


def test_a_prompt_too_long_is_refused_not_cut(capfd: pytest.CaptureFixture[str]) -> None:
    session = run_prompts(b"<|user|>" * 62, b"<|user|>" * 63, CTX="64")
    fits, refused = session.replies()
    assert (fits[1].stat.emitted_tokens, fits[1].stat.length_limited) == (1, True)
    assert (refused[0], refused[1].stat.emitted_tokens, refused[1].stat.prompt_tokens) == (b"", 0, 0)
    assert "[API] prompt does not fit: >=63 token, context is 62 (CTX=64)" in capfd.readouterr().err


def test_a_full_context_starts_over(capfd: pytest.CaptureFixture[str]) -> None:
    session = run_bytes(*[b"Hello\n"] * 6, CTX="64", NGEN="16")
    assert "[KV] context of 64 tokens is full: starting over" in capfd.readouterr().err
    assert len(session.replies()) == 6
    assert len({end.stat.prompt_tokens for _, end in session.replies()}) == 2


def test_ngen_clamps_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    session = run_prompts(PROMPT, max_tokens=9, NGEN="5")
    assert session.replies()[0][1].stat.emitted_tokens == 5
    assert session.replies()[0][1].stat.length_limited is True
    assert "max_tokens 9 is more than NGEN=5: clamped" in capfd.readouterr().err


def test_an_interrupt_ends_the_turn_softly_and_more_goes_on() -> None:
    def script(session: ChatSession) -> Steps:
        yield b"Count from 3 to 9\n"
        yield b"\x02MORE\n"

    class Interrupting(ChatSession):
        def write(self, data: bytes) -> None:
            super().write(data)
            self.flags.interrupted = not self.replies() and len(self.output) > 90

    session = Interrupting(script, NGEN="200", DRAFT="0", CTX="1024")
    first, second = session.replies()
    whole = run_bytes(b"Count from 3 to 9\n", NGEN="200", DRAFT="0", CTX="1024").replies()[0][0]
    assert first[1].stat.length_limited is False
    assert 0 < first[1].stat.emitted_tokens < 200
    assert (first[0] + second[0]).startswith(whole)


def test_termination_ends_the_process() -> None:
    def script(session: ChatSession) -> Steps:
        yield b"Hello\n"
        session.flags.terminated = True
        yield b"Hello\n"

    session = ChatSession(script, NGEN="4")
    assert session.status == 0


def test_slots_are_independent_contexts(capfd: pytest.CaptureFixture[str]) -> None:
    def script(session: ChatSession) -> Steps:
        yield session.prompt(slot=0)
        yield session.prompt(slot=2)
        yield session.prompt(slot=0)

    session = ChatSession(script, KV_SLOTS="3")
    assert len({text for text, _ in session.replies()}) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[API] KV")]
    assert [line.split("prefill")[1] for line in lines] == [f" {PROMPT_TOKENS}"] * 2 + [" 0"]


@pytest.mark.parametrize(("think", "opening"), [("0", b"<think></think>"), ("1", b"<think>")])
def test_think_and_raw_lines(think: str, opening: bytes) -> None:
    session = run_bytes(b"Hi\n", NGEN="1", THINK=think)
    encode = session.mode.runtime.tokenizer.encode
    expected = encode(b"[gMASK]<sop><|user|>Hi<|assistant|>" + opening)
    assert session.mode.slot.history[: len(expected)] == expected
    raw = run_bytes(b"Hi\n", NGEN="1", CHAT_TEMPLATE="0")
    assert raw.mode.slot.history[: len(encode(b"Hi"))] == encode(b"Hi")


def test_sampled_lines_and_prompts_agree_under_a_seed() -> None:
    def script(session: ChatSession) -> Steps:
        yield session.prompt(temperature=0.8, top_p=0.9)

    line = run_bytes(b"Count from 3 to 9\n", NGEN="12", SEED="5", COLI_TEMP="0.8", NUCLEUS="0.9")
    assert ChatSession(script, SEED="5").replies()[0][0] == line.replies()[0][0]


@pytest.mark.parametrize("depth", DEPTHS)
def test_logit_gaps_are_one_a_token_at_every_depth(depth: str, capfd: pytest.CaptureFixture[str]) -> None:
    end = run_prompts(PROMPT, max_tokens=9, DRAFT=depth, COLI_LOGIT_GAP="1").replies()[0][1]
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("LOGITGAP")]
    assert end.stat.emitted_tokens == 9
    assert [line.split()[1] for line in lines] == [f"pos={i}" for i in range(9)]
    run_prompts(PROMPT, max_tokens=9, DRAFT="0", COLI_LOGIT_GAP="1")
    assert [line for line in capfd.readouterr().err.splitlines() if line.startswith("LOGITGAP")] == lines


def test_shape_dependent_kernels_run_through_the_same_loop() -> None:
    replies = run_prompts(PROMPT, DRAFT="3", REF_KERNELS="int8-batch").replies()
    assert replies[0][1].stat.emitted_tokens > 0
