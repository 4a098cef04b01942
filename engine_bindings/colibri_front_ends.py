"""How the engine's own front ends are started: `coli chat` on a terminal, and `coli serve` over HTTP.

Both start the engine themselves, with no widths, and one of them swallows its stderr. COLI_ENGINE lets a
script stand in for the binary: it adds what is missing, and changes nothing else.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine_bindings.binding import STDERR_VARIABLE, Launch, Pin, Script
from engine_bindings.colibri_family import find_grammar_variables

# Set by the front ends themselves.
OWN_VARIABLES = frozenset({"SERVE", "SERVE_BATCH"})
MODEL_VARIABLE = "COLI_MODEL"
ENGINE_VARIABLE = "COLI_ENGINE"
SCRIPT_NAME = "coli-ab-engine"
MODEL_ID = "coli-ab"
# The parameter of a request that names the model.
MODEL_PARAMETER = "model"

FRONT_END_PINS = (
    Pin(
        name=ENGINE_VARIABLE,
        value=SCRIPT_NAME,
        reason="a script that starts the engine with this run's widths, and keeps what it writes to stderr",
    ),
    Pin(name="LC_ALL", value="C.UTF-8", reason="text goes in and out as UTF-8 whatever the user's language"),
    Pin(name="PYTHONUTF8", value="1", reason="likewise"),
)
CLI_PINS = (
    Pin(name="COLI_RAW", value="1", reason="shows the answer as it is; Markdown marks are dropped otherwise"),
    Pin(
        name="TERM", value="dumb", reason="the line editor of the command line writes no sequences of its own"
    ),
    Pin(name="INPUTRC", value="/dev/null", reason="a user's key bindings would change what is typed"),
)
GATEWAY_PINS = (
    Pin(
        name=MODEL_PARAMETER, value=MODEL_ID, reason="the name of the model, for the gateway and in requests"
    ),
)


def is_front_end_pin(pin: Pin) -> bool:
    """Say whether a pin of the engine is left to its fixed value by the front ends."""
    return pin.name not in OWN_VARIABLES


def build_cli_launch(cli: Path, engine: Path, pins: Sequence[Pin]) -> Launch:
    """Return how `coli chat` is started; it must never attach to a server that runs."""
    values = {pin.name: pin.value for pin in pins}
    argv = (sys.executable, str(cli), "chat", "--no-attach", "--ngen", values["NGEN"])
    return Launch(
        argv=argv,
        pins=tuple(pins),
        driver="terminal",
        model_variable=MODEL_VARIABLE,
        grammar_variables=find_grammar_variables(pins),
        scripts=_list_scripts(pins, values, engine),
    )


def build_gateway_launch(cli: Path, engine: Path, pins: Sequence[Pin]) -> Launch:
    """Return how `coli serve` is started, on a free port of the loopback."""
    values = {pin.name: pin.value for pin in pins}
    argv = (
        *(sys.executable, str(cli), "serve", "--host", "127.0.0.1", "--port", "{port}"),
        *("--model-id", values[MODEL_PARAMETER], "--ngen", values["NGEN"]),
        *("--kv-slots", values["KV_SLOTS"]),
    )
    return Launch(
        argv=argv,
        pins=tuple(pins),
        driver="gateway",
        url="http://127.0.0.1:{port}/v1",
        api="chat-completions",
        parameters=(MODEL_PARAMETER,),
        model_variable=MODEL_VARIABLE,
        scripts=_list_scripts(pins, values, engine),
    )


def _list_scripts(pins: Sequence[Pin], values: Mapping[str, str], engine: Path) -> tuple[Script, ...]:
    """Return the script in the engine's place, unless the user put something else there."""
    if any(pin.name == ENGINE_VARIABLE and pin.overridden for pin in pins):
        return ()
    return (Script(variable=ENGINE_VARIABLE, text=_write_script(engine, values)),)


def _write_script(engine: Path, values: Mapping[str, str]) -> str:
    words = (str(engine), values["EXPERT_BITS"], values["DENSE_BITS"])
    binary, experts, dense = map(shlex.quote, words)
    # The front ends name the size of the expert cache, or 0, as the only argument.
    return (
        "#!/bin/sh\n"
        f'if [ -n "${STDERR_VARIABLE}" ]; then exec 2>"${STDERR_VARIABLE}"; fi\n'
        f'exec {binary} "$1" {experts} {dense}\n'
    )
