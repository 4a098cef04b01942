"""Opens the session of one cell: the engine's process in a private model directory, and who speaks to it."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.binding import Launch
from engine_bindings.model_directory import private_model_directory
from harness.drivers.base import EngineSession
from harness.drivers.chat_session import ChatSession
from harness.drivers.guard import ProcessGuard
from harness.drivers.left_files import LeftCallback, list_left_files, read_files
from harness.drivers.process import EngineProcess
from harness.drivers.serve_session import ServeSession
from harness.drivers.slots_session import SlotsSession
from harness.drivers.stderr_log import StderrLog
from harness.drivers.stdio import OutputCallback
from harness.drivers.terminal_process import TerminalProcess
from harness.drivers.terminal_session import TerminalSession
from harness.grammar import Grammar
from harness.plan import Timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """All that is needed to open a session.

    Attributes:
        launch: how the engine is started.
        slots: requests that it answers at once.
        grammar: of the arm in this scenario, None without one.
        model_dir: the model; the engine sees links to its files in a directory of its own. None where a
            server is reached that has its model.
        timeouts: the limits on waiting.
        inherited: the environment that the engine's is made from.
        guard: ends the engine should the harness be killed.
        log: takes what the engine writes to stderr.
        reported: the counts that the engine's stderr brings for every turn.
        on_output: hears of each piece of an answer.
        on_left: hears of the files that the engine left in its directory, once it has ended.
    """

    launch: Launch
    slots: int
    grammar: Grammar | None
    model_dir: Path | None
    timeouts: Timeouts
    inherited: Mapping[str, str]
    guard: ProcessGuard
    log: StderrLog
    reported: frozenset[str]
    on_output: OutputCallback
    on_left: LeftCallback


@contextlib.contextmanager
def open_chat(opening: Opening) -> Iterator[EngineSession]:
    """Open a session of the chat protocol over pipes."""
    with start_process(opening) as process:
        yield ChatSession(
            process, opening.log, opening.timeouts, on_output=opening.on_output, reported=opening.reported
        )


@contextlib.contextmanager
def open_serve(opening: Opening) -> Iterator[EngineSession]:
    """Open a session of the serve protocol over pipes."""
    session = SlotsSession if opening.slots > 1 else ServeSession
    with start_process(opening) as process:
        yield session(
            process,
            opening.log,
            opening.timeouts,
            on_output=opening.on_output,
            reported=opening.reported,
            grammar=opening.grammar,
        )


@contextlib.contextmanager
def open_terminal(opening: Opening) -> Iterator[EngineSession]:
    """Open a session with a command line on a pseudo-terminal."""
    with start_process(opening, TerminalProcess) as process:
        yield TerminalSession(
            process, opening.log, opening.timeouts, on_output=opening.on_output, reported=opening.reported
        )


@contextlib.contextmanager
def start_process(opening: Opening, kind: type[EngineProcess] = EngineProcess) -> Iterator[EngineProcess]:
    """Start the engine in a directory of its own; leaving the block kills what still runs of it.

    Raises:
        EngineStartError: the system cannot run the program.
    """
    with open_directory(opening) as private:
        kind.prepare(private)
        before = read_files(private)
        process = kind.start(
            opening.launch,
            inherited=opening.inherited,
            model_dir=private,
            log=opening.log,
            guard=opening.guard,
        )
        try:
            yield process
        finally:
            process.kill()
            opening.on_left(list_left_files(before, read_files(private)))


@contextlib.contextmanager
def open_directory(opening: Opening) -> Iterator[Path]:
    """Yield a directory with links to the model, the grammar and the scripts of one process."""
    assert opening.model_dir is not None, "an engine is started on a model"  # noqa: S101
    with private_model_directory(opening.model_dir, opening.guard) as private:
        if opening.grammar is not None:
            _write_grammar(opening.grammar, opening.launch, private)
        names = {pin.name: pin.value for pin in opening.launch.pins}
        for script in opening.launch.scripts:
            path = private / names[script.variable]
            path.write_text(script.text, encoding="utf-8")
            path.chmod(0o700)
        yield private


def _write_grammar(grammar: Grammar, launch: Launch, private: Path) -> None:
    for pin in launch.pins:
        if pin.name in launch.grammar_variables:
            (private / pin.value).write_bytes(grammar.text.encode("utf-8"))
