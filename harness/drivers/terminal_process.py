"""A program on a pseudo-terminal: its screen as one stream of bytes, and its engine's stderr beside it."""

import os
import signal
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ptyprocess import PtyProcess, PtyProcessError

from engine_bindings.binding import STDERR_VARIABLE, Launch
from engine_bindings.errors import EngineStartError
from harness.drivers.guard import ProcessGuard
from harness.drivers.process import EngineProcess, build_process_environment
from harness.drivers.stderr_log import StderrLog

# Wide enough that a prompt is not wrapped; the engine's command line draws its boxes 96 columns wide at most.
ROWS_COLUMNS = (50, 160)
STDERR_PIPE = "coli-ab-stderr"
POLL_S = 0.01


class TerminalProcess(EngineProcess):
    """Speaks to a program on a pseudo-terminal as to one on pipes.

    What it writes arrives as ``stdout``. An engine that it starts through a script of the harness writes its
    stderr to a named pipe in the model directory; the program itself has only the terminal.
    """

    @classmethod
    def prepare(cls, model_dir: Path) -> None:
        """Make the named pipe for the engine's stderr."""
        os.mkfifo(model_dir / STDERR_PIPE)

    @classmethod
    def start(
        cls,
        launch: Launch,
        *,
        inherited: Mapping[str, str],
        model_dir: Path,
        log: StderrLog,
        guard: ProcessGuard,
    ) -> Self:
        """Start the program on a model directory. Raises EngineStartError when the system cannot run it."""
        pipe = model_dir / STDERR_PIPE
        environment = build_process_environment(launch, inherited, model_dir)
        environment[STDERR_VARIABLE] = str(pipe)
        started_ns = time.monotonic_ns()
        try:
            process = PtyProcess.spawn(
                list(launch.argv), env=environment, dimensions=ROWS_COLUMNS, preexec_fn=_set_terminal
            )
        except (OSError, PtyProcessError) as error:
            raise EngineStartError(
                f"cannot run {launch.argv[0]!r} on a terminal: {error}", hint="check the path after --engine"
            ) from error
        guard.watch(process.pid, str(model_dir))
        # Open for writing too, so that the pipe has no end before the process has one.
        stderr = os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0)
        terminal = _Terminal(process)
        stdin = os.fdopen(os.dup(process.fd), "wb", buffering=0)
        stdout = os.fdopen(os.dup(process.fd), "rb", buffering=0)
        return cls(terminal, (stdin, stdout, stderr), log=log, guard=guard, started_ns=started_ns)

    def kill(self) -> int | None:
        """End the whole group at once and let go of the terminal. Safe to call again."""
        status = super().kill()
        if isinstance(self._process, _Terminal):
            self._process.close()
        return status


class _Terminal:
    """A process of ptyprocess, with the methods of one of the standard library."""

    def __init__(self, process: PtyProcess) -> None:
        self._process = process
        # It would sleep that long when it is closed; the group has been killed by then.
        process.delayafterclose = process.delayafterterminate = 0

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def poll(self) -> int | None:
        try:
            if self._process.isalive():
                return None
        except PtyProcessError:
            return None
        if self._process.exitstatus is not None:
            return int(self._process.exitstatus)
        return -int(self._process.signalstatus or 0)

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired(cmd="terminal", timeout=timeout or 0.0)
            time.sleep(POLL_S)
        return status

    def close(self) -> None:
        if not self._process.closed:
            self._process.close(force=True)


def _set_terminal() -> None:
    """Let bytes through as they are written, and do not echo what is typed."""
    # A harness that runs in the background was started with the signal ignored, and the program would be too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    settings = termios.tcgetattr(0)
    settings[1] &= ~termios.OPOST
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(0, termios.TCSANOW, settings)
