"""Real processes that misbehave, driven through the launcher as the runner drives them."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_bindings.binding import EnginePath
from engine_bindings.errors import (
    EngineDiedError,
    EngineError,
    EngineGarbageError,
    EngineRefusedError,
    EngineStartError,
    EngineTimeoutError,
    WrongProtocolError,
)
from engine_bindings.reference_engine import ReferenceEngine
from harness.drivers.base import EngineSession, TurnRequest
from harness.drivers.launcher import EngineLauncher
from harness.plan import Arm, Timeouts
from harness.scenario import Conversation, Scenario, Turn
from harness.transcript import LeftFile, TurnRecord
from tests.harness.drivers.fake_engine import write_fake

BOTH = pytest.mark.parametrize("path", ["chat", "serve"])
SCENARIO = Scenario(
    name="s",
    title="",
    description="",
    entry="prompt",
    temperature=0.0,
    top_p=1.0,
    conversations=(
        Conversation(
            id="c", category="chat", system=None, turns=(Turn(kind="user", text="x", max_tokens=8),)
        ),
    ),
)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


class Bench:
    """Opens sessions on fake engines and keeps what they wrote to stderr."""

    def __init__(self, tmp_path: Path, model_dir: Path) -> None:
        self.stderr = io.BytesIO()
        self.left: list[tuple[LeftFile, ...]] = []
        self._tmp_path = tmp_path
        self._model_dir = model_dir

    def run(
        self, behaviour: str, path: EnginePath, *, prompt: bytes = b"Hello", turns: int = 1, **limits: float
    ) -> list[TurnRecord]:
        records: list[TurnRecord] = []
        for session in self.open(behaviour, path, **limits):
            session.start()
            records += [session.run_turn(_request(prompt, turn)) for turn in range(turns)]
            session.end()
        return records

    def open(self, behaviour: str, path: EnginePath, **limits: float) -> Iterator[EngineSession]:
        executable = write_fake(self._tmp_path / behaviour, behaviour)
        launcher = EngineLauncher(
            binding=ReferenceEngine(executable=executable),
            model_dir=self._model_dir,
            timeouts=Timeouts(**{f"{name}_timeout_s": limit for name, limit in limits.items()}),
        )
        with (
            launcher,
            launcher.open(
                Arm(path=path, depth=3),
                SCENARIO,
                stderr_file=self.stderr,
                on_output=lambda tokens: None,
                on_left=self.left.append,
            ) as session,
        ):
            yield session


@pytest.fixture
def bench(tmp_path: Path, model_dir: Path) -> Bench:
    return Bench(tmp_path, model_dir)


def _request(prompt: bytes, turn: int) -> TurnRequest:
    return TurnRequest(
        conversation="c",
        turn=turn,
        prompt=prompt,
        line=None,
        max_tokens=8,
        temperature=0.0,
        top_p=1.0,
        stop=(),
    )


@BOTH
def test_healthy_engine_gives_its_records(bench: Bench, path: EnginePath) -> None:
    first, second = bench.run("healthy", path, turns=2)

    assert first.text == second.text == b"one two three four"
    assert (first.forwards, first.emitted_tokens, first.prefill_tokens) == (1, 4, 5)
    assert first.sent_ns < first.deliveries[0].at_ns <= first.done_ns < second.sent_ns


@BOTH
def test_program_that_cannot_be_run_is_a_start_error(bench: Bench, tmp_path: Path, path: EnginePath) -> None:
    (tmp_path / "not_a_program").write_text("no interpreter line, and not ELF")
    (tmp_path / "not_a_program").chmod(0o755)
    launcher = EngineLauncher(
        binding=ReferenceEngine(executable=tmp_path / "not_a_program"),
        model_dir=tmp_path / "model",
        timeouts=Timeouts(),
    )

    with (
        launcher,
        pytest.raises(EngineStartError, match="Exec format error"),
        launcher.open(
            Arm(path=path, depth=0), SCENARIO, stderr_file=io.BytesIO(), on_output=lambda tokens: None
        ),
    ):
        pass


@BOTH
@pytest.mark.parametrize(
    ("behaviour", "limits", "error", "words"),
    [
        ("exits_at_once", {}, EngineStartError, "exit status 1 before it was ready"),
        ("never_ready", {"start": 0.2}, EngineTimeoutError, "start-timeout"),
        ("hangs_before_output", {"first_output": 0.2}, EngineTimeoutError, "first-output-timeout"),
        ("hangs_mid_turn", {"progress": 0.2}, EngineTimeoutError, "progress-timeout"),
        ("never_stops_talking", {}, EngineGarbageError, "no end of the turn after"),
        ("does_not_exit", {"exit": 0.2}, EngineTimeoutError, "exit-timeout"),
        ("dies_mid_turn", {}, EngineDiedError, "turn 2 of conversation 'c': .*signal SIGKILL"),
        ("writes_garbage", {}, EngineGarbageError, "at byte"),
        ("wrong_mode", {}, WrongProtocolError, "wrong protocol"),
        ("refuses", {}, EngineRefusedError, "turn 1 of conversation 'c'"),
        ("exits_badly", {}, EngineDiedError, "exit status 7"),
        ("talks_on_after_the_end", {}, EngineGarbageError, "after its last turn: 65,536 bytes, 'goodbye "),
    ],
)
def test_misbehaviour_is_named(
    bench: Bench,
    path: EnginePath,
    behaviour: str,
    limits: dict[str, float],
    error: type[EngineError],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        bench.run(behaviour, path, turns=2, **limits)


@BOTH
def test_last_words_are_kept(bench: Bench, path: EnginePath) -> None:
    for session in bench.open("exits_at_once", path):
        with pytest.raises(EngineStartError):
            session.start()

        assert session.stderr_tail()[-1] == "fatal: missing model.norm.weight"

    assert b"fatal: missing model.norm.weight" in bench.stderr.getvalue()


@BOTH
def test_large_prompt_and_flood_of_stderr_do_not_block_each_other(bench: Bench, path: EnginePath) -> None:
    prompt = b"p" * (1 << 20)

    (record,) = bench.run("floods_stderr", path, prompt=prompt)

    assert record.text == b"one two three four"
    assert record.prefill_tokens == len(prompt)
    assert len(bench.stderr.getvalue()) > 10 << 20


def test_nothing_is_sent_to_an_engine_of_the_wrong_mode(bench: Bench) -> None:
    for session in bench.open("wrong_mode", "serve"):
        with pytest.raises(WrongProtocolError):
            session.start()
        # Closing its input makes the engine say all that it had read.
        session.end()

    assert b"received ''" in bench.stderr.getvalue()


def test_child_that_holds_the_pipes_open_is_ended_with_its_engine(bench: Bench) -> None:
    with pytest.raises(EngineStartError, match="exit status 5"):
        bench.run("leaves_child", "chat", exit=5)

    child = int(bench.stderr.getvalue().split()[1])
    assert _is_gone(child)


def test_engine_gets_a_private_directory_without_saved_state(bench: Bench, model_dir: Path) -> None:
    (model_dir / ".coli_kv").write_text("saved")

    bench.run("shows_directory", "chat")

    listing = bench.stderr.getvalue().decode().splitlines()[0]
    assert listing.startswith("directory ")
    assert listing.endswith(" holds ['config.json']")
    private = Path(listing.split()[1])
    assert private != model_dir
    assert not private.exists()
    assert (model_dir / ".coli_kv").read_text() == "saved"
    assert bench.left == [(LeftFile(name=".coli_usage", size_bytes=5),)]


def test_settings_of_the_shell_do_not_reach_the_engine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFT", "1")
    monkeypatch.setenv("GRAMMAR", "x.gbnf")
    monkeypatch.setenv("COLI_LOGIT_GAP", "1")
    monkeypatch.setenv("HARMLESS", "kept")

    bench.run("shows_environment", "chat")

    seen = dict(line.split("=", 1) for line in bench.stderr.getvalue().decode().splitlines() if "=" in line)
    assert seen["DRAFT"] == "3"
    assert seen["HARMLESS"] == "kept"
    assert not {"GRAMMAR", "COLI_LOGIT_GAP"} & set(seen)


def _is_gone(pid: int) -> bool:
    """Say whether a process has ended; one that ended but was not collected by init counts."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return not Path("/proc/self").exists()
    return state in {"Z", "X"}
