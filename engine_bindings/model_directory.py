"""A private model directory for one engine process: links to the model's files, no saved state."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_bindings.gguf_file import list_gguf_parts

# Engines keep saved conversations and usage counts under this prefix and read them at the next start.
STATE_PREFIX = ".coli_"


@contextmanager
def private_model_directory(model_dir: Path) -> Iterator[Path]:
    """Yield a new directory with links to the files of ``model_dir``; remove it afterwards.

    A model that is a GGUF file is linked with the parts that belong to it.
    """
    private = Path(tempfile.mkdtemp(prefix="coli-ab-model-"))
    try:
        model = model_dir.absolute()
        for path in list_gguf_parts(model) if model.is_file() else model.iterdir():
            if not path.name.startswith(STATE_PREFIX):
                (private / path.name).symlink_to(path)
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)


def remove_state(directory: Path) -> None:
    """Remove what an engine left in its private directory, so that the next one starts like the first."""
    for path in directory.iterdir():
        if path.name.startswith(STATE_PREFIX) and path.is_file():
            path.unlink(missing_ok=True)
