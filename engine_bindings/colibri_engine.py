"""The binding of the colibri engine: its two stdio modes, and its command line and HTTP gateway where a build
has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine_bindings.binding import (
    ArmSettings,
    Capabilities,
    EnginePath,
    Launch,
    Pin,
    apply_overrides,
)
from engine_bindings.colibri_build import ColibriBuild, find_build
from engine_bindings.colibri_family import build_pins, find_grammar_variables
from engine_bindings.colibri_front_ends import (
    CLI_PINS,
    FRONT_END_PINS,
    GATEWAY_PINS,
    build_cli_launch,
    build_gateway_launch,
    is_front_end_pin,
)
from engine_bindings.cpu import count_physical_cores
from engine_bindings.fingerprint import EngineFingerprint, read_engine_fingerprint

COLIBRI = "colibri"
# What the engine itself takes without arguments, and what its command line and gateway always run with.
DEFAULT_BITS = "8"
# The engine reads CAP, or decides itself, when its first argument is 0.
CAP_FROM_ENVIRONMENT = "0"

PATHS: tuple[EnginePath, ...] = ("chat", "serve", "cli", "gateway")
FRONT_ENDS = {"cli": build_cli_launch, "gateway": build_gateway_launch}
MARGIN_PIN = Pin(
    name="COLI_LOGIT_GAP", value="1", reason="prints the two best logits at each forward's first token"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColibriEngine:
    """Starts the engine of one build."""

    build: ColibriBuild
    name: str = COLIBRI

    @property
    def capabilities(self) -> Capabilities:
        """What the engine does and reports, as measured on a build of version 1.6.2.

        The head reads rows that earlier turns left, so its drafts and forwards do not repeat; the text does.
        """
        return Capabilities(
            paths=self._paths(),
            max_depth=63,
            frames_are_tokens=frozenset({"serve"}),
            reports_forwards=True,
            reports_drafted=False,
            reports_cached_tokens=True,
            entries={"chat": ("line", "prompt"), "cli": ("line",), "gateway": ("messages",)},
            slots_path="serve",
            context_paths=frozenset({"chat"}),
            grammar="drafts",
            counters_repeat=False,
            context_tokens=4096,
            margin_pin=MARGIN_PIN,
            unavailable=self.build.missing,
        )

    def default_model_dir(self) -> Path | None:
        """Return None: the engine comes without a model."""
        return None

    def fingerprint(self) -> EngineFingerprint:
        """Digest the binary, and the command line and gateway where they are used."""
        build = self.build
        return read_engine_fingerprint(
            self.name, version=build.version, source=build.engine, more=build.sources
        )

    def launch(self, settings: ArmSettings, overrides: Mapping[str, str]) -> Launch:
        """Return the command and the pins of one arm."""
        engine, cli = self.build.engine, self.build.cli
        pins = apply_overrides(_list_pins(settings), overrides)
        if cli is not None and settings.path in FRONT_ENDS:
            return FRONT_ENDS[settings.path](cli, engine, pins)
        values = {pin.name: pin.value for pin in pins}
        return Launch(
            argv=(str(engine), CAP_FROM_ENVIRONMENT, values["EXPERT_BITS"], values["DENSE_BITS"]),
            pins=pins,
            driver=settings.path,
            grammar_variables=find_grammar_variables(pins),
        )

    def _paths(self) -> tuple[EnginePath, ...]:
        missing = dict(self.build.missing)
        return tuple(path for path in PATHS if path not in missing)


def build_colibri_engine(location: str | None) -> ColibriEngine:
    """Return the binding for ``--engine colibri=PATH``, a binary or the directory of a build.

    Raises:
        UsageError: nothing that can be run is there.
    """
    return ColibriEngine(build=find_build(location))


_WIDTH_REASON = "given to the engine as an argument; the command line and the gateway always use 8"
_WIDTH_PINS = (
    Pin(name="EXPERT_BITS", value=DEFAULT_BITS, reason=f"width of unquantised experts, {_WIDTH_REASON}"),
    Pin(name="DENSE_BITS", value=DEFAULT_BITS, reason=f"width of the other weights, {_WIDTH_REASON}"),
)


def _list_pins(settings: ArmSettings) -> tuple[Pin, ...]:
    pins = (*_WIDTH_PINS, *build_pins(settings, threads=count_physical_cores()))
    if settings.path == "cli":
        return (*filter(is_front_end_pin, pins), *FRONT_END_PINS, *CLI_PINS)
    if settings.path == "gateway":
        # A grammar goes with each request there, as in serve mode.
        pins = (*_WIDTH_PINS, *build_pins(replace(settings, path="serve"), threads=count_physical_cores()))
        return (*filter(is_front_end_pin, pins), *FRONT_END_PINS, *GATEWAY_PINS)
    return pins
