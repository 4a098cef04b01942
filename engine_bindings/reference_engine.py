"""The binding of the embedded engine, or of any executable that speaks the same protocols."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.binding import PATHS, ArmSettings, Capabilities, Launch, Pin, apply_overrides
from engine_bindings.colibri_family import build_pins, find_grammar_variables
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import EngineFingerprint, read_engine_fingerprint, read_version

SOURCES = Path(__file__).parent / "reference"
WIRE = SOURCES.with_name("wire")
MODULE = "engine_bindings.reference.host"

BLAS_PIN = Pin(name="OPENBLAS_NUM_THREADS", value="1", reason="a fixed number of threads for every arm")
CAPABILITIES = Capabilities(
    paths=PATHS,
    max_depth=8,
    frames_are_tokens=frozenset({"serve"}),
    reports_forwards=True,
    reports_drafted=True,
    reports_cached_tokens=True,
    entries={"chat": ("line", "prompt")},
    slots_path="serve",
    context_paths=frozenset({"chat"}),
    grammar="constraint",
    counters_repeat=True,
    draws_repeat=True,
    context_tokens=4096,
    margin_pin=Pin(name="COLI_LOGIT_GAP", value="1", reason="prints the two best logits of every choice"),
    reports_logprobs=frozenset({"serve"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEngine:
    """Starts the embedded engine, or ``executable`` in its place."""

    executable: Path | None = None
    name: str = "reference"

    @property
    def capabilities(self) -> Capabilities:
        """What the reference engine does and reports."""
        return CAPABILITIES

    @property
    def command(self) -> tuple[str, ...]:
        """The program, and what it is called with in every case."""
        return (sys.executable, "-m", MODULE) if self.executable is None else (str(self.executable),)

    def default_model_dir(self) -> Path | None:
        """Return the checkpoint that is shipped with the engine."""
        return SOURCES / "checkpoint"

    def fingerprint(self) -> EngineFingerprint:
        """Digest the engine's sources, or the executable that stands in for it."""
        if self.executable is not None:
            return read_engine_fingerprint(self.name, version=None, source=self.executable)
        return read_engine_fingerprint(self.name, version=read_version(), source=SOURCES, more=(WIRE,))

    def launch(self, settings: ArmSettings, overrides: Mapping[str, str]) -> Launch:
        """Return the command and the pins of one arm."""
        pins = apply_overrides((*build_pins(settings), BLAS_PIN), overrides)
        return Launch(
            argv=self.command, pins=pins, driver=settings.path, grammar_variables=find_grammar_variables(pins)
        )


def build_reference_engine(location: str | None) -> ReferenceEngine:
    """Return the binding for ``--engine reference`` (None) or ``--engine reference=PATH``.

    Raises:
        UsageError: ``location`` is no executable file, neither as a path nor on PATH.
    """
    if location is None:
        return ReferenceEngine()
    found = shutil.which(location)
    if found is None:
        raise UsageError(
            f"--engine reference={location}: no executable file there",
            hint="name a program that speaks the engine's stdio protocols, and check its x permission",
        )
    return ReferenceEngine(executable=Path(found).absolute())
