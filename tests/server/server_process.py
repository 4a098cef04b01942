"""Starts `python -m server` on a scripted engine as a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.server.server_builders import MODEL_DIR, write_engine

LIMIT_S = 60


class ServerProcess:
    """A server on a free port of the loopback."""

    def __init__(self, directory: Path, *options: str, engine: Path | None = None, **script: Any) -> None:
        if engine is None:
            engine = write_engine(directory, **script)
        command = [
            sys.executable,
            "-m",
            "server",
            "--engine",
            f"reference={engine}",
            "--model",
            str(MODEL_DIR),
        ]
        self.popen = subprocess.Popen(
            [*command, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """Return the next line of its output."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().rstrip("\n")

    def url(self) -> str:
        """Return the address, after the line about MTP."""
        self.line()
        return self.line().removeprefix("listening on ")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.popen.send_signal(number)
        self.popen.communicate(timeout=LIMIT_S)
        return self.popen.returncode
