"""The grammar of the environment in chat and one-shot mode: drafts, or a constraint as in serve mode."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_bindings.errors import UsageError
from engine_bindings.reference.constraint import STUCK
from engine_bindings.reference.one_shot import OneShot
from engine_bindings.reference.rules import Rules
from engine_bindings.wire.mux_extension import Options, encode_options
from tests.engine_bindings.reference.engine_sessions import ChatSession, ServeSession, make_runtime
from tests.engine_bindings.reference.grammar_samples import (
    CAP,
    GBNF,
    RIGHT,
    SCHEMA_TEXT,
    assert_valid,
    make_prompt,
)

Steps = Iterator[bytes | None]
CONSTRAIN = {"REF_GRAMMAR_CONSTRAIN": "1", "SCHEMA": SCHEMA_TEXT.decode(), "PROF": "1"}
PROMPTS = [make_prompt(number) for number in range(6)]


def run_prompts(*prompts: bytes, rules: Rules = RIGHT, **environ: str) -> ChatSession:
    def script(session: ChatSession) -> Steps:
        for prompt in prompts:
            yield session.prompt(prompt, max_tokens=CAP)

    return ChatSession(script, rules=rules, **environ)


def run_bytes(*commands: bytes, **environ: str) -> ChatSession:
    return ChatSession(lambda _: iter(commands), rules=RIGHT, **environ)


def serve(*prompts: bytes, depth: str) -> ServeSession:
    def script(session: ServeSession) -> Steps:
        for number, prompt in enumerate(prompts, 1):
            options = encode_options(number, Options(constrain=True, constrain_after="think"))
            yield options + session.submit(number, prompt, grammar=SCHEMA_TEXT, max_tokens=CAP)
            yield from session.wait()

    return ServeSession(script, rules=RIGHT, DRAFT=depth, COLI_SERVE_ALL_STOPS="1", PROF="1")


@pytest.mark.parametrize("depth", ["0", "1", "3", "8"])
def test_chat_obeys_as_serve_mode_does(depth: str, capfd: pytest.CaptureFixture[str]) -> None:
    counts = []
    chat = run_prompts(*PROMPTS, DRAFT=depth, **CONSTRAIN)
    counts.append([line for line in capfd.readouterr().err.splitlines() if line.startswith("[SPEC]")])
    served = serve(*PROMPTS, depth=depth)
    counts.append([line for line in capfd.readouterr().err.splitlines() if line.startswith("[SPEC]")])
    assert len(counts[0]) == len(PROMPTS)
    assert counts[0] == counts[1]
    for number, (text, end) in enumerate(chat.replies(), 1):
        assert_valid(text)
        assert text == served.text(number)
        assert end.stat.emitted_tokens == served.done(number).stat.emitted_tokens
        assert end.stat.length_limited is served.done(number).stat.length_limited is False
    chat.assert_kv_is_cold()


@pytest.mark.parametrize("depth", ["0", "3"])
def test_every_line_starts_the_grammar_anew_and_more_goes_on(depth: str) -> None:
    whole = run_bytes(b"Write JSON\n", b"And another\n", NGEN="120", DRAFT=depth, **CONSTRAIN).replies()
    cut = run_bytes(b"Write JSON\n", *[b"\x02MORE\n"] * 12, NGEN="7", DRAFT=depth, **CONSTRAIN).replies()
    assert_valid(whole[0][0])
    assert_valid(whole[1][0])
    assert b"".join(text for text, _ in cut) == whole[0][0]
    assert cut[-1][1].stat.emitted_tokens == 0


@pytest.mark.parametrize("depth", ["0", "3"])
def test_the_constraint_follows_the_reasoning_of_a_line(depth: str) -> None:
    text = run_bytes(b"Write JSON\n", NGEN="200", THINK="1", DRAFT=depth, **CONSTRAIN).replies()[0][0]
    reasoning, closed, answer = text.partition(b"</think>")
    if closed:
        assert_valid(answer)
    assert b"<|" not in reasoning


def test_slots_go_on_with_their_own_grammar() -> None:
    def script(session: ChatSession) -> Steps:
        yield session.prompt(PROMPTS[0], max_tokens=9, slot=1)
        yield session.prompt(PROMPTS[1], max_tokens=CAP, slot=0)
        yield session.prompt(PROMPTS[0], max_tokens=9, slot=1)
        yield b"\x02MORE\n"

    session = ChatSession(script, rules=RIGHT, KV_SLOTS="2", DRAFT="3", **CONSTRAIN)
    replies = [text for text, _ in session.replies()]
    assert_valid(replies[1])
    assert_valid(replies[2] + replies[3])


def read_spec(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("[SPEC]")]


@pytest.mark.parametrize("depth", ["0", "3"])
def test_a_grammar_that_does_not_constrain_never_changes_the_text(
    depth: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = run_prompts(PROMPTS[1], DRAFT=depth, PROF="1").replies()
    before = read_spec(capfd.readouterr().err)
    answer = plain[0][0].decode("utf-8", "ignore")[:40]
    spelled = "".join(c if c.isalnum() and c.isascii() else f"\\x{ord(c):02x}" for c in answer)
    file = tmp_path / "answer.gbnf"
    file.write_text(f'root ::= "{spelled}" [a-z]*', encoding="utf-8")
    guided = run_prompts(PROMPTS[1], DRAFT=depth, GRAMMAR=str(file), PROF="1").replies()
    err = capfd.readouterr().err
    assert [text for text, _ in guided] == [text for text, _ in plain]
    assert guided[0][1].stat.emitted_tokens == plain[0][1].stat.emitted_tokens
    assert f"[GRAMMAR] {file}: 1 rules, forced span capped at 24 tokens/forward" in err
    assert (depth == "0") is ("drafted 0," in before[0])
    assert "drafted 0," not in read_spec(err)[0]


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"GRAMMAR": "root ::= ("}, "[GRAMMAR] text in the environment: Expected ')'"),
        ({"SCHEMA": '{"type": "nonsense"}'}, "[SCHEMA] text in the environment: Invalid type: nonsense"),
        ({"GRAMMAR": "/nowhere/at.all"}, "[GRAMMAR] /nowhere/at.all: cannot open"),
        ({"GRAMMAR": GBNF.decode(), "SCHEMA": "/nowhere"}, "[GRAMMAR] text in the environment: 1 rules"),
    ],
)
def test_a_source_of_drafts_that_cannot_be_used_is_named(
    environ: dict[str, str], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    session = run_prompts(PROMPTS[0], **environ)
    assert line in capfd.readouterr().err
    assert session.replies()[0][0] == run_prompts(PROMPTS[0]).replies()[0][0]


@pytest.mark.parametrize("source", ["root ::= (", '{"type": "nonsense"}', "/nowhere/at.all"])
def test_a_constraint_that_cannot_be_used_stops_the_start(source: str) -> None:
    with pytest.raises(UsageError, match="REF_GRAMMAR_CONSTRAIN"):
        run_prompts(PROMPTS[0], GRAMMAR=source, REF_GRAMMAR_CONSTRAIN="1")


def test_serve_mode_ignores_the_environments_grammar() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, PROMPTS[0])

    plain, other = ServeSession(script), ServeSession(script, **CONSTRAIN)
    assert other.tokens(1) == plain.tokens(1)


def test_a_grammar_larger_than_its_limit_is_not_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "large.gbnf"
    file.write_bytes(b"#" * ((1 << 20) + 1))
    run_prompts(PROMPTS[0], GRAMMAR=str(file))
    assert f"[GRAMMAR] {file}: larger than 1048576 bytes" in capfd.readouterr().err


@pytest.mark.parametrize("depth", ["0", "3"])
def test_one_shot_mode_obeys_too(depth: str) -> None:
    environ = {"PROMPT": PROMPTS[0].decode(), "COLI_TEMP": "0", "NGEN": "120", "DRAFT": depth, **CONSTRAIN}
    written: list[bytes] = []
    runtime = make_runtime(RIGHT, **environ)
    mode = OneShot(runtime, written.append)
    assert mode.run() == 0
    assert_valid(b"".join(map(runtime.tokenizer.token_bytes, mode.tokens)))


@pytest.mark.parametrize("depth", ["0", "3"])
def test_a_grammar_that_breaks_is_no_plain_stop_in_chat_mode(
    depth: str, capfd: pytest.CaptureFixture[str]
) -> None:
    grammar = '%lark\nstart: "a" <|user|> "b"\n'
    session = run_prompts(PROMPTS[0], GRAMMAR=grammar, REF_GRAMMAR_CONSTRAIN="1", DRAFT=depth)
    text, end = session.replies()[0]
    assert (text, end.stat.length_limited) == (b"a", True)
    assert f"[GRAMMAR] turn: {STUCK}" in capfd.readouterr().err
    session.assert_kv_is_cold()
