"""One-shot mode in this process: the text, the ids, and the line about speculation."""

import re

import pytest

from engine_bindings.reference.one_shot import OneShot
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.runtime import build_runtime
from engine_bindings.reference.settings import read_settings
from tests.engine_bindings.reference.engine_sessions import (
    NEVER_STOPS,
    PROMPT,
    PROMPT_TOKENS,
    StopsAt,
    cached_checkpoint,
)

TEXT = "<|user|>Count from 3 to 9<|assistant|><think></think>"


def run(rules: Rules = NEVER_STOPS, **environ: str) -> str:
    environ = {"PROMPT": TEXT, "COLI_TEMP": "0", "COLI_MTP_GUARD_PCT": "0", **environ}
    runtime = build_runtime(cached_checkpoint("invariant"), read_settings(environ), rules)
    pieces: list[bytes] = []
    assert OneShot(runtime, pieces.append).run() == 0
    return b"".join(pieces).decode("utf-8", "replace")


def answer_of(output: str) -> str:
    return output.split("output projection 0.000s\n", 1)[1].split("\n---\n", 1)[0]


def speculation_of(output: str) -> tuple[int, ...]:
    line = re.search(r"\((\d+) forwards per (\d+) tokens\) \| MTP acceptance \d+% \((\d+)/(\d+)\)", output)
    assert line
    return tuple(map(int, line.groups()))


@pytest.mark.parametrize("depth", range(9))
def test_the_text_is_the_same_at_every_depth_and_counts_add_up(depth: int) -> None:
    output = run(DRAFT=str(depth), NGEN="30")
    assert answer_of(output) == answer_of(run(DRAFT="0", NGEN="30"))
    forwards, tokens, accepted, drafted = speculation_of(output)
    assert tokens == 30
    assert forwards == 30 - accepted
    assert accepted <= drafted
    assert (drafted == 0) == (depth == 0)


def test_the_frame_around_the_text() -> None:
    lines = run(NGEN="4").split("\n")
    head = rf"prompt: {PROMPT_TOKENS} tokens \| generating up to 4 \(EOS stop=\d+\) \| n-gram draft=1"
    assert re.fullmatch(head, lines[0])
    assert lines[1].startswith(TEXT + "PROFILO PREFILL (")
    assert lines[2].startswith("PROFILE: ")
    assert lines[3].startswith("ATTENTION: ")
    assert f"\n---\nprefill {PROMPT_TOKENS} tokens in " in "\n".join(lines)
    assert " | decode 4 tokens in " in "\n".join(lines)


def test_tokens_are_printed_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    output = run(TOKENS="1", NGEN="5")
    tokenizer = cached_checkpoint("invariant").tokenizer
    lines = capfd.readouterr().err.splitlines()
    prompt = next(line for line in lines if line.startswith(f"[PROMPT_TOKENS] {PROMPT_TOKENS}: "))
    emitted = next(line for line in lines if line.startswith("[TOKENS] 5 generated: "))
    assert [int(i) for i in prompt.split(": ")[1].split()] == tokenizer.encode(PROMPT)
    ids = [int(i) for i in emitted.split(": ")[1].split()]
    assert b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace") == answer_of(output)


def test_the_opening_tokens_are_added_once_and_can_be_switched_off() -> None:
    assert run(PROMPT=PROMPT.decode(), NGEN="1").startswith(f"prompt: {PROMPT_TOKENS} tokens")
    assert run(CHAT_TEMPLATE="0", NGEN="1").startswith(f"prompt: {PROMPT_TOKENS - 2} tokens")


def test_a_stop_ends_the_answer() -> None:
    tokenizer = cached_checkpoint("invariant").tokenizer
    whole = answer_of(run(NGEN="12"))
    stop = tokenizer.encode(whole.encode())[0]
    output = run(StopsAt(stop), NGEN="12")
    assert speculation_of(output)[1] < 12


def test_an_empty_prompt_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(PROMPT="") == ""
    assert "prompt is empty after tokenization" in capfd.readouterr().err


def test_a_context_too_long_for_the_checkpoint_is_refused() -> None:
    from engine_bindings.errors import UsageError

    with pytest.raises(UsageError):
        run(NGEN="100000")


def test_n_gram_drafts_without_a_head() -> None:
    output = run(MTP="0", DRAFT="3", NGEN="40")
    assert answer_of(output) == answer_of(run(DRAFT="0", NGEN="40"))
