"""Reads the options that name an engine's model and settings, alike for every command."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine_bindings.binding import Binding, ServedBinding
from engine_bindings.errors import UsageError

# Named by the harness for each process; another value would break the isolation of the arms.
RESERVED_VARIABLES = ("SNAP",)


def find_model_dir(binding: Binding, given: Path | None) -> Path | None:
    """Return the model directory of ``--model``, or the one that comes with the engine; None for a server
    that runs already.
    """
    if isinstance(binding, ServedBinding):
        if given is not None:
            raise UsageError(
                f"--model {given}: the server has its model already",
                hint="name one that it lists: --model-name",
            )
        return None
    model_dir = given or binding.default_model_dir()
    if model_dir is None:
        raise UsageError(
            f"the engine {binding.name!r} comes without a model", hint="name one with --model DIR"
        )
    return model_dir


def parse_settings(texts: Sequence[str]) -> Mapping[str, str]:
    """Return the settings by name. Raises UsageError for anything but NAME=VALUE."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--set {text}: not NAME=VALUE", hint="for example --set CTX=8192")
        if name in RESERVED_VARIABLES:
            raise UsageError(
                f"--set {text}: {name} names the private model directory of each process",
                hint="name the model with --model DIR",
            )
        settings[name] = value
    return settings
