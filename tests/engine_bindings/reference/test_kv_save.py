"""Saved contexts: resumed by the next start, on both paths, and never on another model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_bindings.reference.runtime import PACKAGED_CHECKPOINT
from tests.engine_bindings.reference.engine_sessions import PROMPT, PROMPT_TOKENS, ChatSession, ServeSession

Steps = Iterator[bytes | None]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory that links to the shipped checkpoint's files."""
    for file in PACKAGED_CHECKPOINT.iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def chat(model_dir: Path, *prompts: bytes, **environ: str) -> ChatSession:
    def script(session: ChatSession) -> Steps:
        for prompt in prompts:
            yield session.prompt(prompt)

    return ChatSession(script, SNAP=str(model_dir), **environ)


def serve(model_dir: Path, *prompts: bytes, **environ: str) -> ServeSession:
    def script(session: ServeSession) -> Steps:
        for i, prompt in enumerate(prompts):
            yield session.submit(i + 1, prompt)
            yield from session.wait()

    return ServeSession(script, SNAP=str(model_dir), **environ)


@pytest.mark.parametrize("depth", ["0", "3"])
def test_a_context_saved_by_chat_is_resumed_by_serve(
    model_dir: Path, depth: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first = chat(model_dir, PROMPT, DRAFT=depth)
    history = first.mode.slot.history
    assert (model_dir / ".coli_kv").is_file()
    capfd.readouterr()
    second = serve(model_dir, PROMPT, DRAFT=depth)
    err = capfd.readouterr().err
    assert f"[KV] resumed conversation from disk: {len(history)} tokens in " in err
    assert f"prefix {PROMPT_TOKENS}/{PROMPT_TOKENS} token, prefill 0" in err
    assert second.text(1) == first.replies()[0][0]


def test_a_resumed_line_continues_without_the_opening_tokens(model_dir: Path) -> None:
    chat(model_dir, PROMPT)

    def script(_: ChatSession) -> Steps:
        yield b"And now?\n"

    resumed = ChatSession(script, SNAP=str(model_dir), NGEN="12")
    encode = resumed.mode.runtime.tokenizer.encode
    assert resumed.replies()[0][1].stat.prompt_tokens == len(
        encode(b"<|user|>And now?<|assistant|><think></think>")
    )

    def both(session: ChatSession) -> Steps:
        yield session.prompt()
        yield b"And now?\n"

    assert ChatSession(both, NGEN="12").replies()[1][0] == resumed.replies()[0][0]


def test_every_slot_has_its_file(model_dir: Path) -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, slot=0)
        yield session.submit(2, slot=2)

    ServeSession(script, SNAP=str(model_dir), KV_SLOTS="3")
    assert sorted(path.name for path in model_dir.glob(".coli_*")) == [".coli_kv", ".coli_kv.2"]


def test_reset_is_saved_too(model_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def script(session: ChatSession) -> Steps:
        yield session.prompt()
        yield b"\x02RESET\n"

    ChatSession(script, SNAP=str(model_dir))
    capfd.readouterr()
    chat(model_dir, PROMPT)
    assert f"prefix 0/{PROMPT_TOKENS} token, prefill {PROMPT_TOKENS}" in capfd.readouterr().err


@pytest.mark.parametrize("environ", [{"KVSAVE": "0"}], ids=["off"])
def test_nothing_is_saved_when_it_is_off(model_dir: Path, environ: dict[str, str]) -> None:
    chat(model_dir, PROMPT, **environ)
    assert not list(model_dir.glob(".coli_*"))


def test_the_packaged_checkpoint_is_never_written_to() -> None:
    def script(session: ChatSession) -> Steps:
        yield session.prompt()

    ChatSession(script, KVSAVE="1")
    assert not list(PACKAGED_CHECKPOINT.glob(".coli_*"))


def test_a_file_that_cannot_be_used_is_named_and_replaced(
    model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (model_dir / ".coli_kv").write_bytes(b"COLIKV1\0 of another engine")
    chat(model_dir, PROMPT)
    assert "[KV] ignoring .coli_kv: " in capfd.readouterr().err
    chat(model_dir, PROMPT)
    assert f"[KV] resumed conversation from disk: {PROMPT_TOKENS + 12} tokens" in capfd.readouterr().err


def test_a_saved_context_too_long_for_this_one_is_left(
    model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chat(model_dir, PROMPT * 2)
    chat(model_dir, PROMPT, CTX="24")
    assert "[KV] ignoring .coli_kv: " in capfd.readouterr().err


def test_a_directory_that_cannot_be_written_ends_the_saving(
    model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (model_dir / ".coli_kv").mkdir()
    session = chat(model_dir, PROMPT, PROMPT + b"1")
    assert len(session.replies()) == 2
    assert capfd.readouterr().err.count("[KV] saving is off: ") == 1
