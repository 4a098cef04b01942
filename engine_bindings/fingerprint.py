"""Exactly which engine and which model were tested, as digests.

Weights of up to 1 GiB together are hashed whole. Of larger ones every file's size and head count, and about
1 GiB of evenly spaced blocks, because reading hundreds of gigabytes would take longer than the measurement.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from engine_bindings.errors import CheckpointError, UsageError
from engine_bindings.gguf_file import check_gguf, list_gguf_parts
from engine_bindings.regular_file import check_regular, open_regular, read_regular

WHOLE_LIMIT_BYTES = 1 << 30
BLOCK_BYTES = 1 << 20
# Shared by the files of a model, but two at least for each: its first bytes and its last.
SAMPLED_BLOCKS = 1024
# A safetensors header lists every tensor; the largest known ones take a few MiB.
SAFETENSORS_HEADER_LIMIT_BYTES = 100 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFingerprint:
    """Which engine: its binding's name, what was started, and a SHA-256 over it.

    ``reported`` says that the digest is over what a server says of itself, which proves nothing.
    """

    name: str
    version: str | None
    source: str
    digest: str
    reported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFingerprint:
    """Which model: its directory and SHA-256 digests of config, tokenizer and weights.

    ``weights_sampled`` says that the weights were too large to be hashed whole. ``reported`` says that only
    the model's name is known, from its server: it stands for the directory, and the digests are over it.
    """

    directory: str
    config_digest: str
    tokenizer_digest: str
    weights_digest: str
    weights_bytes: int
    weights_sampled: bool
    reported: bool = False


def read_version() -> str:
    """Return this package's version, or say that it runs from a source tree that is not installed."""
    try:
        return metadata.version("coli-ab")
    except metadata.PackageNotFoundError:
        return "not installed"


def read_engine_fingerprint(
    name: str, *, version: str | None, source: Path, more: Sequence[Path] = ()
) -> EngineFingerprint:
    """Return the fingerprint of an executable file or of a directory of Python sources.

    ``more`` are directories of Python sources that the engine is made of besides ``source``.

    Raises:
        UsageError: ``source`` is not there or cannot be read.
    """
    try:
        digest = _join_digests(_digest_source(path) for path in (source, *more))
    except OSError as error:
        raise UsageError(f"cannot read the engine {str(source)!r}: {error.strerror}") from error
    return EngineFingerprint(name=name, version=version, source=str(source), digest=digest)


def _digest_source(source: Path) -> str:
    if source.is_dir():
        return _digest_files(sorted(source.rglob("*.py")), root=source)
    return _digest_files([source], root=source.parent)


def _join_digests(digests: Iterable[str]) -> str:
    first, *others = digests
    return hashlib.sha256("".join((first, *others)).encode()).hexdigest() if others else first


def read_weights_bytes(model_dir: Path) -> int:
    """Return the size of a model's weight files, 0 when it has none; nothing is checked."""
    if model_dir.is_file():
        return sum(path.stat().st_size for path in list_gguf_parts(model_dir) if path.is_file())
    return sum(path.stat().st_size for path in model_dir.glob("*.safetensors") if path.is_file())


def read_model_fingerprint(model_dir: Path) -> ModelFingerprint:
    """Return the fingerprint of a model directory, or of a GGUF file, after checking that it is complete.

    Raises:
        CheckpointError: the directory, a file in it or a file's form is missing or broken.
    """
    if model_dir.is_file():
        return _read_gguf_fingerprint(model_dir)
    if not model_dir.is_dir():
        raise CheckpointError(
            f"there is no model directory {str(model_dir)!r}",
            hint="--model takes a directory with config.json, tokenizer.json and *.safetensors",
        )
    _refuse_odd_files(model_dir)
    config, tokenizer = (_checked_json(model_dir / name) for name in ("config.json", "tokenizer.json"))
    weights = sorted(model_dir.glob("*.safetensors"))
    if not weights:
        raise CheckpointError(f"{model_dir}: no *.safetensors file", hint="the weights are missing")
    for path in weights:
        check_safetensors(path)
    sizes = [path.stat().st_size for path in weights]
    return ModelFingerprint(
        directory=str(model_dir),
        config_digest=_digest_files([config], root=model_dir),
        tokenizer_digest=_digest_files([tokenizer], root=model_dir),
        weights_digest=_digest_files(weights, root=model_dir),
        weights_bytes=sum(sizes),
        weights_sampled=sum(sizes) > WHOLE_LIMIT_BYTES,
    )


def _refuse_odd_files(model_dir: Path) -> None:
    """Raise CheckpointError for a pipe, device or socket: an engine that opens it may wait for ever."""
    try:
        for path in sorted(model_dir.iterdir()):
            if path.exists() and not path.is_dir():
                check_regular(path)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename}: {error.strerror}", hint="take it out of the model"
        ) from error


def _read_gguf_fingerprint(path: Path) -> ModelFingerprint:
    """Return the fingerprint of a GGUF model, whose files hold config, tokenizer and weights together."""
    check_gguf(path)
    parts = list_gguf_parts(path)
    digest = _digest_files(parts, root=path.parent)
    sizes = [part.stat().st_size for part in parts]
    return ModelFingerprint(
        directory=str(path),
        config_digest=digest,
        tokenizer_digest=digest,
        weights_digest=digest,
        weights_bytes=sum(sizes),
        weights_sampled=sum(sizes) > WHOLE_LIMIT_BYTES,
    )


def _checked_json(path: Path) -> Path:
    try:
        value = json.loads(read_regular(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file", hint="the model directory is not complete") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(value).__name__} where an object belongs")
    return path


def check_safetensors(path: Path) -> None:
    """Check a weight file's header against its size; CheckpointError names the file and what is wrong."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 2 <= header_bytes <= min(size - 8, SAFETENSORS_HEADER_LIMIT_BYTES):
                raise CheckpointError(
                    f"{path}: not a safetensors file: its header would be {header_bytes} bytes long"
                )
            header = json.loads(file.read(header_bytes))
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: its safetensors header is broken: {error}") from error
    if 8 + header_bytes + end != size:
        raise CheckpointError(
            f"{path}: {size} bytes, but its header describes {8 + header_bytes + end}",
            hint="the file was cut or is still being copied",
        )


def _digest_files(paths: Sequence[Path], *, root: Path) -> str:
    sizes = [path.stat().st_size for path in paths]
    sampled = sum(sizes) > WHOLE_LIMIT_BYTES
    digest = hashlib.sha256()
    for path, size in zip(paths, sizes, strict=True):
        digest.update(f"{path.relative_to(root)}\0{size}\0".encode())
        with open_regular(path) as file:
            for block in _sample(file, size, SAMPLED_BLOCKS // len(paths)) if sampled else _read_whole(file):
                digest.update(block)
    return digest.hexdigest()


def _read_whole(file: BinaryIO) -> Iterable[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def _sample(file: BinaryIO, size: int, blocks: int) -> Iterable[bytes]:
    """Yield a safetensors header whole, as it names every tensor, and blocks from the first to the last."""
    header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes <= SAFETENSORS_HEADER_LIMIT_BYTES:
        yield file.read(header_bytes)
    last = max(blocks, 2) - 1
    for index in range(last + 1):
        file.seek(max(0, size - BLOCK_BYTES) * index // last)
        yield file.read(BLOCK_BYTES)
