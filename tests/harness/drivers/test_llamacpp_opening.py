"""llama-server as a process: started on a free port, waited for, watched, and ended as a group."""

import io
from pathlib import Path

import pytest

from engine_bindings.errors import (
    EngineDiedError,
    EngineError,
    EngineRefusedError,
    EngineStartError,
    EngineTimeoutError,
    UsageError,
)
from engine_bindings.llamacpp import LlamaCpp
from harness.drivers.base import TurnRequest
from harness.drivers.launcher import EngineLauncher
from harness.plan import Arm, Timeouts
from harness.scenario import Conversation, Scenario, Turn
from harness.transcript import TurnRecord
from tests.harness.drivers.fake_llama_server import write_server

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
REQUEST = TurnRequest(
    conversation="c",
    turn=0,
    prompt=b"x",
    line=None,
    max_tokens=8,
    temperature=0.0,
    top_p=1.0,
    stop=(),
    may_refuse=False,
)


class Bench:
    """Runs one turn on a fake server and keeps what the server wrote."""

    def __init__(self, tmp_path: Path) -> None:
        self.stderr = io.BytesIO()
        self._folder = tmp_path
        self._model = tmp_path / "model.gguf"
        self._model.write_bytes(b"GGUF")

    def run(self, behaviour: str, **limits: float) -> TurnRecord:
        launcher = EngineLauncher(
            binding=LlamaCpp(executable=write_server(self._folder / "llama-server", behaviour)),
            model_dir=self._model,
            timeouts=Timeouts(**{f"{name}_timeout_s": limit for name, limit in limits.items()}),
            overrides=self.overrides,
        )
        arm = Arm(path="completion", depth=0)
        opened = launcher.open(arm, SCENARIO, stderr_file=self.stderr, on_output=lambda tokens: None)
        with launcher, opened as session:
            session.start()
            record = session.run_turn(REQUEST)
            assert session.end() == 0
        return record

    overrides: dict[str, str] = {}  # noqa: RUF012 - one test has some


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_turn_is_asked_for_and_the_server_ended(bench: Bench) -> None:
    record = bench.run("answers")
    assert (record.text, record.finish, record.emitted_tokens) == (b"ab", "length", 1)
    assert (record.cached_tokens, record.prefill_tokens, record.prompt_tokens) == (1, 2, 3)
    assert record.forwards is None
    assert b"model b'GGUF'" in bench.stderr.getvalue()


def test_a_server_that_loads_is_waited_for(bench: Bench) -> None:
    assert bench.run("slow start").text == b"ab"


@pytest.mark.parametrize(
    ("behaviour", "limits", "kind", "said"),
    [
        ("cannot load", {}, EngineStartError, "ended"),
        ("loads", {"start": 1.0}, EngineTimeoutError, "start-timeout"),
        ("hangs", {"first_output": 0.5}, EngineTimeoutError, "first-output-timeout"),
        ("crashes", {}, EngineDiedError, "the connection broke"),
        ("too long", {}, EngineRefusedError, "too long"),
        ("will not end", {"exit": 0.5}, EngineTimeoutError, "exit-timeout"),
    ],
)
def test_a_server_that_misbehaves(
    bench: Bench, behaviour: str, limits: dict[str, float], kind: type[EngineError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        bench.run(behaviour, **limits)


def test_a_setting_that_is_no_number_is_refused_before_a_turn(bench: Bench) -> None:
    bench.overrides = {"TOP_K": "many"}
    with pytest.raises(UsageError, match="many"):
        bench.run("answers")
