"""Keys and values of one slot, and their file form."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine_bindings.errors import ColiAbError, UsageError
from engine_bindings.reference.config import ModelConfig

FloatArray = NDArray[np.float32]

KEY_BLOCK = 64  # keys are attended in whole blocks, so that a row's key length depends on its position only
COLUMN_SKEW = 16  # keeps a row's stride off a power of two, where all rows would share one cache set
FILE_FORMAT = "coli-ab-kv-1"


class SavedKvError(ColiAbError):
    """A saved context cannot be used: damaged, of another model, or too long."""

    code = "saved-kv"


class KvCache:
    """KV rows of the main layers and of the MTP layer for one conversation.

    A position is one column of ``keys``: the rotated rope key, the latent row, and a constant one whose
    product with the attention weights is their sum. Columns beyond ``length`` may hold stale but finite
    values.

    Attributes:
        capacity_tokens: positions that fit.
        vocab_size: token ids of the model.
        length: positions of the main layers that are valid.
        draft_start: first MTP row, or None when there is none. Rows draft_start to draft_end - 1 are
            verified.
        draft_end: one past the last verified MTP row; 0 when there is none.
        keys: [num_hidden_layers + 1, rope + latent + 1, columns]; the MTP layer is the last.
    """

    def __init__(self, config: ModelConfig, capacity_tokens: int) -> None:
        if not 1 <= capacity_tokens <= config.max_context_tokens:
            limit = config.max_context_tokens
            raise UsageError(
                f"a context of {capacity_tokens} tokens does not fit this model: it takes 1 to {limit}",
                hint="lower CTX, or choose a model with a longer context",
            )
        self.capacity_tokens = capacity_tokens
        self.vocab_size = config.vocab_size
        self.length = 0
        self.draft_start: int | None = None
        self.draft_end = 0
        columns = -(-capacity_tokens // KEY_BLOCK) * KEY_BLOCK + COLUMN_SKEW
        self.keys = np.zeros((config.num_hidden_layers + 1, config.latent_dim + 1, columns), np.float32)
        self.keys[:, -1] = 1.0
        self._blocks: dict[int, tuple[list[FloatArray], list[FloatArray]]] = {}
        self._rope_dim = config.qk_rope_head_dim

    def truncate(self, length: int) -> None:
        """Forget positions from ``length`` on.

        MTP row p was made from the token at p + 1 too, so MTP rows from ``length - 1`` on are forgotten as
        well.
        """
        self.length = min(self.length, length)
        self.truncate_draft(length - 1)

    def truncate_draft(self, end: int) -> None:
        """Forget MTP rows from ``end`` on."""
        self.draft_end = max(0, min(self.draft_end, end))
        if self.draft_start is not None and self.draft_end <= self.draft_start:
            self.draft_start, self.draft_end = None, 0

    def open_draft(self, start: int, end: int) -> int:
        """Make MTP rows ``start`` to ``end - 1`` the newest verified ones and return the window's first row.

        Rows that do not join the window begin a new one, as nothing is known of the rows between.
        """
        if self.draft_start is None or not self.draft_start <= start <= self.draft_end:
            self.draft_start = start
        self.draft_end = end
        return self.draft_start

    def blocks(self, columns: int) -> tuple[list[FloatArray], list[FloatArray]]:
        """Return views of the first ``columns`` positions, layer by layer.

        They are keys [rope + latent, columns] and values [latent + 1, columns].
        """
        found = self._blocks.get(columns)
        if found is None:
            part = self.keys[:, :, :columns]
            found = self._blocks[columns] = (list(part[:, :-1]), list(part[:, self._rope_dim :]))
        return found


def write_kv_cache(path: Path, cache: KvCache, tokens: Sequence[int], model_digest: str) -> None:
    """Write the main layers' valid rows and the tokens they were made from; replaces the file in one step.

    The MTP rows are left out: they are only worth drafts. Raises OSError.
    """
    rows = np.ascontiguousarray(cache.keys[:-1, :-1, : cache.length].transpose(2, 0, 1))
    metadata = {"format": FILE_FORMAT, "model": model_digest}
    arrays = {"rows": rows, "tokens": np.asarray(tokens[: cache.length], np.int32)}
    part = path.with_name(path.name + ".part")
    try:
        save_file(arrays, part, metadata)
    except SafetensorError as error:
        raise OSError(0, str(error), str(part)) from error
    os.replace(part, path)


def _read_arrays(path: Path, model_digest: str) -> dict[str, NDArray[Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise SavedKvError(f"{path} cannot be read: {error}", hint="delete it") from None
    if metadata.get("format") != FILE_FORMAT or metadata.get("model") != model_digest:
        raise SavedKvError(f"{path} is from a different model or version", hint="delete it")
    return arrays


def read_kv_cache(path: Path, cache: KvCache, model_digest: str) -> tuple[int, ...]:
    """Fill ``cache`` from a file and return the tokens it was made from.

    Raises SavedKvError when the file is damaged, of another model or longer than the cache; the cache is then
    empty.
    """
    cache.truncate(0)
    cache.truncate_draft(0)
    arrays = _read_arrays(path, model_digest)
    rows, tokens = arrays.get("rows"), arrays.get("tokens")
    layers, width, _ = cache.keys.shape
    shape = (0 if tokens is None else tokens.size, layers - 1, width - 1)
    if rows is None or tokens is None or rows.shape != shape or tokens.shape != shape[:1]:
        shapes = json.dumps({name: array.shape for name, array in arrays.items()})
        raise SavedKvError(f"{path} holds other arrays than this model's: {shapes}", hint="delete it")
    if tokens.dtype != np.int32 or ((tokens < 0) | (tokens >= cache.vocab_size)).any():
        raise SavedKvError(f"{path} holds token ids that the model does not have", hint="delete it")
    if rows.dtype != np.float32 or not np.isfinite(rows).all():
        raise SavedKvError(f"{path} holds values that are no finite float32 numbers", hint="delete it")
    if len(tokens) > cache.capacity_tokens:
        raise SavedKvError(
            f"{path} holds {len(tokens)} tokens, the context has {cache.capacity_tokens}", hint="raise CTX"
        )
    cache.keys[:-1, :-1, : len(tokens)] = rows.transpose(1, 2, 0)
    cache.length = len(tokens)
    return tuple(int(token) for token in tokens)
