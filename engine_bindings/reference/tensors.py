"""Reads the ``*.safetensors`` files of a model directory into float32 arrays, by name and checked shape."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from engine_bindings.errors import CheckpointError

FloatArray = NDArray[np.float32]

MAX_CHECKPOINT_BYTES = 4 << 30  # everything is held in memory as float32; a larger model is for a real engine
STORED_TYPES: Mapping[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file holds it."""

    file: Path
    type_name: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """All tensors of a model directory.

    Attributes:
        digest: SHA-256 of the files' names and contents, in hexadecimal.
    """

    model_dir: Path
    stored: Mapping[str, StoredTensor]
    digest: str

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def take(self, name: str, *shape: int) -> FloatArray:
        """Return a tensor as finite float32. Raises CheckpointError when it is missing or anything is off."""
        tensor = self.stored.get(name)
        if tensor is None:
            hint = "the files do not belong to this config.json, or one of them is missing"
            raise CheckpointError(f"{self.model_dir}: tensor {name!r} is missing", hint=hint)
        if tensor.shape != shape:
            message = f"{tensor.file}: tensor {name!r} has shape {tensor.shape}, config.json asks for {shape}"
            raise CheckpointError(message, hint="use the config.json that belongs to these weights")
        values = _to_float32(name, tensor)
        if not np.isfinite(values).all():
            message = f"{tensor.file}: tensor {name!r} holds values that are not finite in float32"
            raise CheckpointError(message, hint="copy the file again, or choose another checkpoint")
        return values


def _to_float32(name: str, tensor: StoredTensor) -> FloatArray:
    stored_type = STORED_TYPES.get(tensor.type_name)
    if stored_type is None:
        message = f"{tensor.file}: tensor {name!r} has type {tensor.type_name}"
        raise CheckpointError(message, hint=f"convert it to one of {', '.join(STORED_TYPES)}")
    values = np.frombuffer(tensor.data, stored_type).reshape(tensor.shape)
    if tensor.type_name == "BF16":
        return (values.astype("<u4") << 16).view("<f4").astype(np.float32)
    with np.errstate(over="ignore"):  # an overflow becomes an infinity, which is refused by name
        return values.astype(np.float32)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error.strerror}", hint="check the path and its permissions"
        ) from None


def _parse_file(path: Path, data: bytes) -> dict[str, StoredTensor]:
    try:
        entries: list[tuple[str, dict[str, Any]]] = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        hint = "the file is cut short or damaged: copy it again"
        raise CheckpointError(f"{path}: not a valid safetensors file: {error}", hint=hint) from None
    return {name: StoredTensor(path, e["dtype"], tuple(e["shape"]), e["data"]) for name, e in entries}


def read_tensors(model_dir: Path) -> Tensors:
    """Read every ``*.safetensors`` file of the directory. Raises CheckpointError."""
    paths = sorted(model_dir.glob("*.safetensors"))
    if not paths:
        hint = "name a directory with config.json, tokenizer.json and *.safetensors"
        raise CheckpointError(f"{model_dir}: no *.safetensors file", hint=hint)
    total_bytes = sum(path.stat().st_size for path in paths if path.exists())
    if total_bytes > MAX_CHECKPOINT_BYTES:
        message = f"{model_dir}: the weights take {total_bytes} bytes, the limit is {MAX_CHECKPOINT_BYTES}"
        raise CheckpointError(message, hint="the reference engine is for small models; run a real engine")
    stored: dict[str, StoredTensor] = {}
    digest = hashlib.sha256()
    for path in paths:
        data = _read_bytes(path)
        digest.update(path.name.encode() + b"\0" + data)
        stored.update(_parse_file(path, data))
    return Tensors(model_dir=model_dir, stored=stored, digest=digest.hexdigest())
