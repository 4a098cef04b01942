"""A model that is a GGUF file, or several that belong together by their numbered names."""

import re
from pathlib import Path

from engine_bindings.errors import CheckpointError
from engine_bindings.regular_file import open_regular

MAGIC = b"GGUF"
PART = re.compile(r"(.*-)\d{5}(-of-\d{5}\.gguf)")


def list_gguf_parts(path: Path) -> list[Path]:
    """Return the file, or all parts of the model whose first part it is, in their order."""
    named = PART.fullmatch(path.name)
    if named is None:
        return [path]
    return sorted(path.parent.glob(f"{named[1]}?????{named[2]}"))


def check_gguf(path: Path) -> None:
    """Raise CheckpointError unless every part of the model is there and begins as a GGUF file does."""
    named = PART.fullmatch(path.name)
    parts = list_gguf_parts(path)
    wanted = int(path.name[-10:-5]) if named else 1
    if len(parts) != wanted:
        raise CheckpointError(
            f"{path}: {len(parts)} of {wanted} parts are there", hint="the model is not complete"
        )
    for part in parts:
        try:
            with open_regular(part) as file:
                begin = file.read(len(MAGIC))
        except OSError as error:
            raise CheckpointError(f"{part}: cannot be read: {error.strerror}") from error
        if begin != MAGIC:
            raise CheckpointError(
                f"{part}: not a GGUF file, it begins with {begin!r}",
                hint="--model takes a directory, or a .gguf file for llama.cpp",
            )
