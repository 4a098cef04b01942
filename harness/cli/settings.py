"""Reads the options that name an engine's model and settings, alike for every command."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from engine_bindings.binding import ENGINE_VARIABLES, ArmSettings, Binding, ServedBinding
from engine_bindings.errors import UsageError

# Named by the harness for each process; another value would break the isolation of the arms.
RESERVED_VARIABLES = {
    "SNAP": "names the private model directory of each process",
    "LLAMA_ARG_MODEL": "names the private link to the model of each server",
    "LLAMA_ARG_HOST": "is this machine for a server that is started here",
    "LLAMA_ARG_PORT": "is a free port for each server",
}
# As alike as one letter that is wrong or missing in a name of six makes them.
NEAR_RATIO = 0.8

# What the embedded engine alone reads, and a user may want to set.
EMBEDDED_VARIABLES = frozenset({"REF_DEFECT", "REF_FORCE_ACCEPT", "REF_KERNELS"})


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
                f"--set {text}: {name} {RESERVED_VARIABLES[name]}",
                hint="name the model with --model; a server that runs already: --engine llamacpp=http://HOST:PORT",
            )
        settings[name] = value
    return settings


def describe_near_misses(binding: Binding, names: Sequence[str]) -> list[str]:
    """Return a remark on each name that nearly is one of the engine's settings: it may be misspelt.

    An engine may read variables that nobody has listed, so an unknown name is no error.
    """
    if isinstance(binding, ServedBinding):
        return []
    path = binding.capabilities.paths[0]
    launch = binding.launch(ArmSettings(path=path, depth=1, cap_tokens=1, context_tokens=1), {})
    known = ENGINE_VARIABLES.union(EMBEDDED_VARIABLES, (pin.name for pin in launch.pins))
    remarks = []
    for name in names:
        near = () if name in known else get_close_matches(name.upper(), sorted(known), n=1, cutoff=NEAR_RATIO)
        if near:
            remarks.append(f"--set {name}: no setting of that name is known; did you mean {near[0]}?")
    return remarks
