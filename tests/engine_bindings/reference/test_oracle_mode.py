"""Oracle mode in this process: generation and teacher forcing against a reference file, and bad files."""

import json
from pathlib import Path

import pytest

from engine_bindings.errors import UsageError
from engine_bindings.reference.oracle_mode import OracleMode, read_oracle
from engine_bindings.reference.runtime import build_runtime
from engine_bindings.reference.settings import read_settings
from tests.engine_bindings.reference.engine_sessions import (
    NEVER_STOPS,
    PROMPT,
    PROMPT_TOKENS,
    cached_checkpoint,
)

NEW_TOKENS = 20


def run(path: Path, **environ: str) -> str:
    environ = {"REF": str(path), "COLI_MTP_GUARD_PCT": "0", **environ}
    runtime = build_runtime(cached_checkpoint("invariant"), read_settings(environ), NEVER_STOPS)
    pieces: list[bytes] = []
    assert OracleMode(runtime, pieces.append).run() == 0
    return b"".join(pieces).decode()


def write(path: Path, *, full: list[int], predicted: list[int]) -> Path:
    prompt = cached_checkpoint("invariant").tokenizer.encode(PROMPT)
    data = {"prompt_ids": prompt, "full_ids": [*prompt, *full], "tf_pred": predicted}
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """What the engine itself generates, as its reference."""
    path = write(tmp_path / "ref.json", full=[0] * NEW_TOKENS, predicted=[])
    line = next(line for line in run(path, DRAFT="0").splitlines() if line.startswith("GLM C engine"))
    full = [int(i) for i in line.partition(": ")[2].split()]
    return write(path, full=full, predicted=[0] * (PROMPT_TOKENS - 1) + full + [0])


@pytest.mark.parametrize("depth", ["0", "1", "4", "8"])
def test_generation_matches_itself_at_every_depth(reference: Path, depth: str) -> None:
    output = run(reference, DRAFT=depth)
    assert f"\nMatching tokens: {NEW_TOKENS}/{NEW_TOKENS}\n" in output
    assert f"(DRAFT={depth})" in output
    assert f" forwards per {NEW_TOKENS} tokens)" in output


def test_one_wrong_token_is_counted(reference: Path) -> None:
    data = json.loads(reference.read_text())
    data["full_ids"][-1] = (data["full_ids"][-1] + 1) % 256
    reference.write_text(json.dumps(data))
    assert f"Matching tokens: {NEW_TOKENS - 1}/{NEW_TOKENS}" in run(reference)


def test_teacher_forcing_compares_every_position(reference: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = run(reference, TF="1")
    misses = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[ORACLE] mismatch")]
    total = PROMPT_TOKENS + NEW_TOKENS
    assert f"PREFILL (teacher-forcing) C vs oracle: {total - len(misses)}/{total} positions" in output
    positions = {int(line.split("pos=")[1].split()[0]) for line in misses}
    assert positions <= {*range(PROMPT_TOKENS - 1), total - 1}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"prompt_ids": [], "full_ids": [1]}', '{"prompt_ids": [1, 2], "full_ids": [1]}',
     '{"prompt_ids": [640], "full_ids": [640]}', '{"prompt_ids": ["a"], "full_ids": [1]}'],
)  # fmt: skip
def test_a_bad_reference_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ref.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"ref\.json"):
        read_oracle(path, 640)


def test_a_missing_reference_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_oracle(tmp_path / "none.json", 640)
    assert "PROMPT" in caught.value.hint
