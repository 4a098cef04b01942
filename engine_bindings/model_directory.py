"""A private model directory for one engine process: links to the model's files, no saved state."""

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from engine_bindings.errors import EngineStartError
from engine_bindings.gguf_file import list_gguf_parts

# Engines keep saved conversations and usage counts under this prefix and read them at the next start.
STATE_PREFIX = ".coli_"
PRIVATE_PREFIX = "coli-ab-model-"


class DirectoryKeeper(Protocol):
    """Removes directories should this process be killed; see :class:`harness.drivers.guard.ProcessGuard`."""

    def keep_directory(self, directory: str) -> None:
        """Take note of a directory that is about to be made."""

    def drop_directory(self, directory: str) -> None:
        """Forget a directory that was removed."""


@contextmanager
def private_model_directory(model_dir: Path, keeper: DirectoryKeeper | None = None) -> Iterator[Path]:
    """Yield a new directory with links to the files of ``model_dir``; remove it afterwards.

    A model that is a GGUF file is linked with the parts that belong to it. ``keeper`` hears of the directory
    before it is there, so that it is removed whenever this process is killed.

    Raises:
        EngineStartError: it cannot be made, or ``model_dir`` is not there any more.
    """
    private = Path(tempfile.gettempdir(), PRIVATE_PREFIX + secrets.token_hex(8))
    if keeper is not None:
        keeper.keep_directory(str(private))
    try:
        _make_directory(private)
        _link_files(model_dir, private)
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)
        if keeper is not None:
            keeper.drop_directory(str(private))


def _make_directory(private: Path) -> None:
    try:
        private.mkdir(mode=0o700)
    except OSError as error:
        raise EngineStartError(
            f"cannot make a directory in the temporary folder: {error.strerror}: {error.filename}",
            hint="make room there, or name another folder with the variable TMPDIR",
        ) from error


def _link_files(model_dir: Path, private: Path) -> None:
    try:
        model = model_dir.absolute()
        for path in list_gguf_parts(model) if model.is_file() else model.iterdir():
            if not path.name.startswith(STATE_PREFIX):
                (private / path.name).symlink_to(path)
    except OSError as error:
        raise EngineStartError(
            f"cannot link the files of the model {str(model_dir)!r}: {error.strerror}: {error.filename}",
            hint="leave the model and the temporary folder alone while a run goes on",
        ) from error


def remove_state(directory: Path) -> None:
    """Remove what an engine left in its private directory, so that the next one starts like the first."""
    for path in directory.iterdir():
        if path.name.startswith(STATE_PREFIX) and path.is_file():
            path.unlink(missing_ok=True)
