"""When a slot's context is saved in the model directory and taken up again.

The form of the file belongs to ``kv_cache``. Nothing else is ever written: the real engine also keeps a
history of expert use (``.coli_usage``) to decide what to hold in memory, and here all experts are.
"""

import time
from pathlib import Path

from engine_bindings.reference.console import log
from engine_bindings.reference.generate import Engine
from engine_bindings.reference.kv_cache import SavedKvError, read_kv_cache, write_kv_cache
from engine_bindings.reference.slot import Slot
from engine_bindings.wire.stderr_lines import KvResumed

FILE_NAME = ".coli_kv"


class KvFiles:
    """The saved contexts of an engine, one file for every slot, bound to one model by its digest.

    Without a directory nothing is read or written.
    """

    def __init__(self, directory: Path | None, engine: Engine, digest: str) -> None:
        self.directory = directory
        self.engine = engine
        self.digest = digest
        self.saved: dict[int, list[int]] = {}

    def resume(self) -> None:
        """Fill the slots from their files; a file that cannot be used is named and left to the next save."""
        for slot in self.engine.slots:
            path = self.path(slot)
            if path and path.exists():
                self._resume_slot(slot, path)

    def save(self, slot: Slot) -> None:
        """Write the slot's context if it changed; a directory that cannot be written ends the saving."""
        path = self.path(slot)
        if path is None or self.saved.get(slot.index) == slot.history:
            return
        try:
            write_kv_cache(path, slot.cache, slot.history, self.digest)
        except OSError as error:
            log(f"[KV] saving is off: {path} cannot be written: {error.strerror}")
            self.directory = None
        else:
            self.saved[slot.index] = list(slot.history)

    def path(self, slot: Slot) -> Path | None:
        """Return the slot's file, None while saving is off."""
        name = FILE_NAME if slot.index == 0 else f"{FILE_NAME}.{slot.index}"
        return self.directory / name if self.directory else None

    def _resume_slot(self, slot: Slot, path: Path) -> None:
        began = time.perf_counter()
        try:
            tokens = read_kv_cache(path, slot.cache, self.digest)
        except SavedKvError as error:
            log(f"[KV] ignoring {path.name}: {error}")
            return
        slot.adopt_saved(tokens)
        self.saved[slot.index] = list(tokens)
        log(KvResumed(tokens=len(tokens), load_s=time.perf_counter() - began).to_line())
