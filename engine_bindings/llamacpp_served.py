"""The binding of a llama.cpp server that runs already, with a model and settings that it was started with."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from engine_bindings.binding import (
    UNKNOWN_DEPTH,
    ArmSettings,
    Capabilities,
    Launch,
    ServedBinding,
    apply_overrides,
)
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import EngineFingerprint, ModelFingerprint
from engine_bindings.llamacpp import CAPABILITIES, DRIVER, NAME, REQUEST_PINS, build_pins
from engine_bindings.served_facts import ServedFacts, check_url, read_served_facts

OWNER = "llamacpp"


@dataclass(frozen=True, kw_only=True)
class RunningLlamaCpp(ServedBinding):
    """Asks the server at ``url``, whose address has no ``/v1``."""

    url: str
    name: str = NAME

    @cached_property
    def _facts(self) -> ServedFacts:
        facts = read_served_facts(f"{self.url}/v1")
        if facts.owner != OWNER:
            raise UsageError(
                f"--engine {NAME}={self.url}: not llama.cpp's server but {facts.owner or 'another'!r}",
                hint=f"any OpenAI-compatible server: --engine {self.url}/v1",
            )
        return facts

    @property
    def capabilities(self) -> Capabilities:
        """What llama.cpp reports; what it drafts was chosen at its start, and its batch is not known."""
        return replace(
            CAPABILITIES,
            max_depth=0,
            depths=(UNKNOWN_DEPTH,),
            reports_forwards=False,
            slots_path=None,
            context_tokens=self._facts.context_tokens,
            cold_cells=False,
            margin_pin=None,
        )

    def default_model_dir(self) -> Path | None:
        """Return None: the server has its model."""
        return None

    def fingerprint(self) -> EngineFingerprint:
        """Say which server it is, by its own words."""
        facts = self._facts
        return EngineFingerprint(
            name=self.name,
            version=facts.version,
            source=self.url,
            digest=facts.digest(),
            reported=True,
        )

    def served_model(self, overrides: Mapping[str, str]) -> ModelFingerprint:  # noqa: ARG002 - it has one
        """Return the model by its name, which is all that is known of it."""
        name = ", ".join(self._facts.models)
        digest = hashlib.sha256(name.encode()).hexdigest()
        return ModelFingerprint(
            directory=name,
            config_digest=digest,
            tokenizer_digest=digest,
            weights_digest=digest,
            weights_bytes=0,
            weights_sampled=False,
            reported=True,
        )

    def launch(self, settings: ArmSettings, overrides: Mapping[str, str]) -> Launch:
        """Return the address and the parameters of its requests."""
        pins = tuple(pin for pin in build_pins(settings, "mtp") if pin.name in REQUEST_PINS)
        return Launch(
            argv=(), pins=apply_overrides(pins, overrides), driver=DRIVER, url=self.url, api=settings.path
        )


def build_running_server(location: str) -> RunningLlamaCpp:
    """Return the binding for an address, with or without ``/v1``. Raises UsageError when it is none."""
    return RunningLlamaCpp(url=check_url(location).removesuffix("/v1"))
