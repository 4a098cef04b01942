"""The engine's command line on a real pseudo-terminal and its gateway over a real socket, both scripted."""

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_bindings.chat_template import Message
from engine_bindings.colibri_engine import ColibriEngine, build_colibri_engine
from engine_bindings.errors import (
    EngineDiedError,
    EngineError,
    EngineGarbageError,
    EngineRefusedError,
    EngineStartError,
    EngineTimeoutError,
)
from harness.drivers.base import EngineSession, EngineStart, TurnRequest
from harness.drivers.launcher import EngineLauncher
from harness.plan import Arm, Timeouts
from harness.transcript import LeftFile, TurnRecord
from tests.harness.drivers.fake_coli import write_build
from tests.harness.drivers.test_processes import SCENARIO


class Bench:
    """Opens sessions on scripted builds and keeps what they wrote to stderr, and what they left."""

    def __init__(self, tmp_path: Path) -> None:
        self.stderr = io.BytesIO()
        self.left: tuple[LeftFile, ...] = ()
        self._tmp_path = tmp_path
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text("{}")

    def run(self, behaviour: str, path: str, *requests: TurnRequest, **limits: float) -> list[TurnRecord]:
        records: list[TurnRecord] = []
        for session in self.open(behaviour, path, **limits):
            session.start()
            records += [session.run_turn(request) for request in requests]
            session.end()
        return records

    def start(self, behaviour: str, path: str) -> EngineStart:
        for session in self.open(behaviour, path):
            return session.start()
        raise AssertionError

    def open(self, behaviour: str, path: str, **limits: float) -> Iterator[EngineSession]:
        build = write_build(self._tmp_path / behaviour, behaviour)
        launcher = EngineLauncher(
            binding=build_colibri_engine(str(build)),
            model_dir=self._tmp_path / "model",
            timeouts=Timeouts(**{f"{name}_timeout_s": limit for name, limit in limits.items()}),
        )
        opened = launcher.open(
            Arm(path=path, depth=3),
            SCENARIO,
            stderr_file=self.stderr,
            on_output=lambda tokens: None,
            on_left=self._note_left,
        )
        with launcher, opened as session:
            yield session

    def _note_left(self, files: tuple[LeftFile, ...]) -> None:
        self.left = files

    @property
    def stderr_text(self) -> str:
        return self.stderr.getvalue().decode()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def typed(
    line: str = "Hello", *, turn: int = 0, stop: tuple[str, ...] = (), cancel_after: int | None = None
) -> TurnRequest:
    return TurnRequest(
        conversation="c",
        turn=turn,
        prompt=b"",
        line=line.encode(),
        max_tokens=8,
        temperature=0.0,
        top_p=1.0,
        stop=stop,
        cancel_after_tokens=cancel_after,
    )


def sent(text: str = "Hello") -> TurnRequest:
    return TurnRequest(
        conversation="c",
        turn=0,
        prompt=text.encode(),
        line=None,
        messages=(Message(role="user", text=text.encode()),),
        max_tokens=8,
        temperature=0.0,
        top_p=1.0,
        stop=(),
    )


# The command line.


def test_typed_turns_have_their_text_and_counts(bench: Bench) -> None:
    first, second = bench.run("healthy", "cli", typed("Grüße"), typed("again", turn=1))

    assert first.text == "you said Grüße\nand no more".encode()
    assert second.text == b"you said again\nand no more"
    assert (first.emitted_tokens, first.forwards, first.finish) == (4, 2, "stop")
    assert (first.entry, first.prompt) == ("line", "Grüße".encode())
    assert (first.length_limited, first.prompt_tokens, first.token_lengths) == (False, None, None)
    assert first.sent_ns < first.deliveries[0].at_ns <= first.done_ns < second.sent_ns


def test_engine_behind_the_command_line_gets_the_widths_and_keeps_its_stderr(bench: Bench) -> None:
    bench.run("healthy", "cli", typed())

    assert "engine 0 8 8\n" in bench.stderr_text
    assert "[MTP] active: x (draft=3)" in bench.stderr_text


def test_command_line_is_called_with_the_cap_and_on_a_directory_of_its_own(bench: Bench) -> None:
    start = bench.start("says_how_it_was_called", "cli")

    banner = "\n".join(start.banner)
    assert "called with ['chat', '--no-attach', '--ngen', '8']" in banner
    assert re.search(r"COLI_MODEL is \S*coli-ab-model-", banner)
    for text in ("COLI_RAW is 1", "DRAFT is 3", "SERVE is None", "TERM is dumb", "config.json"):
        assert text in banner


def test_cap_that_was_reached_is_a_length(bench: Bench) -> None:
    (record,) = bench.run("reaches_its_cap", "cli", typed())

    assert (record.finish, record.length_limited) == ("length", True)


def test_stop_string_cuts_the_text_and_lets_the_turn_go_on(bench: Bench) -> None:
    first, second = bench.run("healthy", "cli", typed("a", stop=("and",)), typed("b", turn=1))

    assert (first.text, first.finish) == (b"you said a\n", "stop-string")
    # It was not told to stop, so that it goes on is no fault of it.
    assert first.asked_to_end_ns is None
    assert second.text == b"you said b\nand no more"


def test_typed_context_is_forgotten_between_conversations(bench: Bench) -> None:
    for session in bench.open("healthy", "cli"):
        session.start()
        session.begin_conversation()
        session.run_turn(typed())
        session.begin_conversation()
        assert session.run_turn(typed("next")).text == b"you said next\nand no more"
        assert session.end() == 0


def test_saved_conversation_is_told(bench: Bench) -> None:
    assert bench.start("resumes_a_saved_conversation", "cli").kv_resumed_tokens == 670


def test_cancel_interrupts_and_the_turn_ends_as_cancelled(bench: Bench) -> None:
    (record,) = bench.run("talks_until_it_is_interrupted", "cli", typed(cancel_after=2))

    assert record.finish == "cancelled"
    assert record.text.startswith(b"one ")
    assert "stopping" not in record.text.decode()


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        ("attaches_to_a_server", EngineStartError, r"attached to the server at http://127\.0\.0\.1:8000"),
        ("is_not_built", EngineStartError, "ended with exit status 1 before it was ready"),
        ("is_the_engine_itself", EngineGarbageError, "READY block where the prompt"),
        ("loses_its_engine", EngineDiedError, "turn 1 .*: engine terminated: killed by SIGKILL"),
        ("dies_mid_turn", EngineDiedError, "turn 1 .* ended with signal SIGKILL"),
        ("reads_another_line", EngineGarbageError, "read another line than was typed: 'something else'"),
        ("renders_markdown", EngineGarbageError, "COLI_RAW"),
        ("never_stops_talking", EngineGarbageError, "no end of the turn"),
        ("leaves_with_an_error", EngineDiedError, "exit status 7"),
    ],
)
def test_command_line_that_misbehaves_is_named(
    bench: Bench, behaviour: str, error: type[EngineError], words: str
) -> None:
    with pytest.raises(error, match=words):
        bench.run(behaviour, "cli", typed())


def test_interrupt_at_which_the_command_line_quits_is_named(bench: Bench) -> None:
    with pytest.raises(EngineDiedError, match="gave up: interrupted"):
        bench.run("quits_when_it_is_interrupted", "cli", typed(cancel_after=2))


@pytest.mark.parametrize(
    ("behaviour", "limit"),
    [
        ("never_asks", "start"),
        ("hangs_before_output", "first_output"),
        ("hangs_mid_turn", "progress"),
        ("does_not_leave", "exit"),
    ],
)
def test_each_limit_on_waiting_holds_on_a_terminal(bench: Bench, behaviour: str, limit: str) -> None:
    with pytest.raises(EngineTimeoutError) as caught:
        bench.run(behaviour, "cli", typed(), **{limit: 0.3})

    assert caught.value.limit_name == f"{limit.replace('_', '-')}-timeout"


def test_what_stands_on_the_screen_is_among_the_last_words(bench: Bench) -> None:
    for session in bench.open("is_not_built", "cli"):
        with pytest.raises(EngineStartError):
            session.start()
        assert "colibri engine is not built. Run: make -C c colibri" in session.stderr_tail()


def test_exact_prompt_cannot_be_typed(bench: Bench) -> None:
    with pytest.raises(EngineRefusedError, match="only typed lines"):
        bench.run("healthy", "cli", sent())


def test_whole_group_is_ended(bench: Bench) -> None:
    with pytest.raises(EngineTimeoutError):
        bench.run("starts_a_child", "cli", typed(), progress=0.3)

    found = re.search(r"child (\d+)", bench.stderr_text)
    assert found
    assert not _is_running(int(found[1]))


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return state not in "ZX"


# The gateway.


def test_turn_over_the_gateway_has_its_counts_from_all_three_places(bench: Bench) -> None:
    (record,) = bench.run("serve", "gateway", sent())

    assert (record.text, record.finish, record.entry) == (b"one two", "stop", "messages")
    assert (record.emitted_tokens, record.prompt_tokens) == (2, 12)
    assert (record.cached_tokens, record.prefill_tokens) == (3, 9)
    assert record.forwards == 1


def test_gateway_is_called_with_a_port_and_asked_for_its_model(bench: Bench) -> None:
    bench.run("serve", "gateway", sent())

    called = (
        r"called with \['serve', '--host', '127.0.0.1', '--port', '\d+', '--model-id', 'coli-ab', '--ngen'"
    )
    assert re.search(called, bench.stderr_text)
    assert '"model": "coli-ab"' in bench.stderr_text
    assert "engine 0 8 8\n" in bench.stderr_text
    assert bench.left == (LeftFile(name=".coli_usage", size_bytes=5),)


@pytest.mark.parametrize("behaviour", ["serves_without_a_profile", "profiles_another_turn"])
def test_forwards_without_a_page_that_proves_them_are_those_of_stderr(bench: Bench, behaviour: str) -> None:
    (record,) = bench.run(behaviour, "gateway", sent())

    assert record.forwards == 77
    assert "its forwards are not reported" in bench.stderr_text or "no /profile" in bench.stderr_text


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("gateway_ends_at_once", "the server ended with exit status 3 before it was ready"),
        ("answers_with_a_web_page", "JSON belongs"),
    ],
)
def test_gateway_that_does_not_come_up_is_named(bench: Bench, behaviour: str, words: str) -> None:
    with pytest.raises(EngineStartError, match=words):
        bench.start(behaviour, "gateway")


def test_binding_offers_what_the_build_holds(tmp_path: Path) -> None:
    build = write_build(tmp_path / "build", "healthy")

    assert build_colibri_engine(str(build)).capabilities.paths == ("chat", "serve", "cli", "gateway")
    assert isinstance(build_colibri_engine(str(build / "colibri")), ColibriEngine)
