"""From settings to the mode that they name, on the process's own stdin and stdout."""

import signal
from dataclasses import replace

from engine_bindings.reference.chat_mode import ChatMode
from engine_bindings.reference.console import log
from engine_bindings.reference.one_shot import OneShot
from engine_bindings.reference.oracle_mode import OracleMode
from engine_bindings.reference.pipes import Input, Output, Signals
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.runtime import build_runtime, load_checkpoint
from engine_bindings.reference.serve_mode import ServeMode
from engine_bindings.reference.settings import FLOAT32_BITS, EngineSettings
from engine_bindings.wire.errors import RemoteProtocolError

STDIN, STDOUT = 0, 1
PROTOCOL_STATUS = 1


def run_mode(settings: EngineSettings, rules: Rules) -> int:
    """Load the checkpoint and run the mode; return the exit status.

    SIGINT has its plain effect until chat or serve mode is up, and in the other two modes.
    Raises CheckpointError and other UsageErrors before READY, and BrokenPipeError when nobody reads stdout.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    settings = replace(settings, kernels=rules.computing_kernels(settings.kernels))
    runtime = build_runtime(load_checkpoint(settings), settings, rules)
    write = Output(STDOUT).write
    write(runtime.build_banner())
    log(runtime.describe_head().to_line())
    if min(settings.expert_bits, settings.dense_bits) < FLOAT32_BITS:
        asked = f"{settings.expert_bits}/{settings.dense_bits}"
        log(f"[BITS] {asked} bits were asked for: the reference engine computes in float32")
    if settings.mode == "one-shot":
        return OneShot(runtime, write).run()
    if settings.mode == "oracle":
        return OracleMode(runtime, write).run()
    signals = Signals()
    signals.install()
    source = Input(STDIN, signals)
    mode = ServeMode if rules.answering_mode(settings.mode) == "serve" else ChatMode
    try:
        return mode(runtime, source, write, signals).run()
    except RemoteProtocolError as error:
        log(f"coli-ab-engine: the input is not {settings.mode} mode's: {error}")
        return PROTOCOL_STATUS
