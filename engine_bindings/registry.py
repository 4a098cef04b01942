"""The engines that can be started, by the name that ``--engine`` takes."""

from collections.abc import Callable
from difflib import get_close_matches

from engine_bindings.binding import Binding
from engine_bindings.colibri_engine import build_colibri_engine
from engine_bindings.errors import UsageError
from engine_bindings.llamacpp import build_llamacpp
from engine_bindings.llamacpp_served import build_running_server
from engine_bindings.openai_server import build_openai_server
from engine_bindings.reference_engine import build_reference_engine

ADDRESSES = ("http://", "https://")


def _build_llamacpp(location: str | None) -> Binding:
    if location is not None and location.startswith(ADDRESSES):
        return build_running_server(location)
    return build_llamacpp(location)


BINDINGS: dict[str, Callable[[str | None], Binding]] = {
    "colibri": build_colibri_engine,
    "llamacpp": _build_llamacpp,
    "openai": build_openai_server,
    "reference": build_reference_engine,
}


def find_binding(text: str) -> Binding:
    """Return the binding for the text of ``--engine``: ``NAME``, ``NAME=LOCATION`` or an address.

    Raises:
        UsageError: no engine has that name, or nothing that can be started is at the location.
    """
    if text.startswith(ADDRESSES):
        return build_openai_server(text)
    name, equals, location = text.partition("=")
    if name not in BINDINGS:
        near = get_close_matches(name, BINDINGS, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"unknown engine {name!r}", hint=f"{guess}known engines: {', '.join(sorted(BINDINGS))}"
        )
    if equals and not location:
        raise UsageError(f"--engine {text}: nothing after the equals sign", hint=f"{name} or {name}=PATH")
    return BINDINGS[name](location or None)
