"""The process of a server that a cell starts for itself: its output goes to a file, and its group is
ended.
"""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from engine_bindings.binding import Launch
from engine_bindings.errors import EngineStartError
from harness.drivers.guard import ProcessGuard
from harness.drivers.process import build_process_environment
from harness.drivers.stderr_log import StderrLog

KILL_WAIT_S = 5.0
READ_BYTES = 1 << 20
PORT_MARK = "{port}"
OUTPUT_NAME = "coli-ab-server.log"


def choose_port(launch: Launch) -> Launch:
    """Put a free port of the loopback in place of ``{port}``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return replace(
        launch,
        argv=tuple(word.replace(PORT_MARK, port) for word in launch.argv),
        url=launch.url.replace(PORT_MARK, port) if launch.url else None,
    )


class ServerProcess:
    """One server. What it writes to stdout and stderr goes to a file and from there to the log.

    A file cannot fill up and block the server while nobody reads, as a pipe would during a long turn.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", output: Path, log: StderrLog, guard: ProcessGuard
    ) -> None:
        self._process = process
        self._output = output.open("rb")
        self._log = log
        self._guard = guard
        self._ended = False

    @classmethod
    def start(
        cls,
        launch: Launch,
        *,
        inherited: Mapping[str, str],
        directory: Path,
        log: StderrLog,
        guard: ProcessGuard,
    ) -> Self:
        """Start the server; its output file and its model are in ``directory``.

        Raises:
            EngineStartError: the system cannot run it.
        """
        output = directory / OUTPUT_NAME
        try:
            with output.open("wb") as file:
                process = subprocess.Popen(
                    launch.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=build_process_environment(launch, inherited, directory),
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineStartError(
                f"cannot run {launch.argv[0]!r}: {error.strerror}", hint="check the path after --engine"
            ) from error
        guard.watch(process.pid, str(directory))
        return cls(process, output, log, guard)

    def exit_status(self) -> int | None:
        """Return its exit status, None while it runs."""
        return self._process.poll()

    def drain(self) -> None:
        """Take what it has written until now into the log."""
        while data := self._output.read(READ_BYTES):
            self._log.feed(data)

    def end(self, timeout_s: float) -> int | None:
        """Ask it to end (SIGTERM) and return its exit status, or None when the time passes first."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        try:
            status = self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self.kill()
        return status

    def kill(self) -> int | None:
        """End the whole group at once. Safe to call again."""
        if self._ended:
            return self._process.returncode
        self._ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=KILL_WAIT_S)
        try:
            self.drain()
        finally:
            self._output.close()
            self._guard.release(self._process.pid)
        return self._process.returncode
