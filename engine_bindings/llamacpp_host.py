"""Runs llama.cpp's server out of the package xllamacpp, started as ``llama-server`` would be.

It is a process of its own, so that an engine that crashes takes nothing with it. It understands the flags and
the environment variables ``LLAMA_ARG_*`` of :data:`OPTIONS` under llama-server's names, and refuses others: a
setting that is not applied must not be taken for one that is.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

EXIT_USAGE = 2
PREFIX = "LLAMA_ARG_"
ON, OFF = ("true", "1", "on", "enabled"), ("false", "0", "off", "disabled")


class HostError(Exception):
    """A setting that cannot be applied; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One of llama-server's options.

    Attributes:
        flag: as on its command line.
        variable: the environment variable for the same, None where it has none.
        places: attributes of xllamacpp's parameters, dotted.
        read: turns text into a value; it gets the library.
    """

    flag: str
    variable: str | None
    places: tuple[str, ...]
    read: Callable[[Any, str], Any]


def _text(_: Any, text: str) -> str:
    return text


def _integer(_: Any, text: str) -> int:
    return int(text)


def _number(_: Any, text: str) -> float:
    return float(text)


def _switch(_: Any, text: str) -> bool:
    if text not in (*ON, *OFF):
        raise ValueError(text)
    return text in ON


def _hosts(_: Any, text: str) -> list[str]:
    return [text]


def _cache_type(library: Any, text: str) -> Any:
    return getattr(library.ggml_type, f"GGML_TYPE_{text.upper()}")


def _flash_attention(library: Any, text: str) -> Any:
    words = {"auto": "AUTO", **dict.fromkeys(ON, "ENABLED"), **dict.fromkeys(OFF, "DISABLED")}
    return getattr(library.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{words[text]}")


def _speculation(library: Any, text: str) -> list[Any]:
    kinds = library.common_speculative_type
    names = [name.strip().upper().replace("-", "_") for name in text.split(",")]
    return [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name}") for name in names]


def _option(flag: str, variable: str | None, read: Callable[[Any, str], Any], *places: str) -> Option:
    return Option(flag=flag, variable=variable, places=places, read=read)


OPTIONS = (
    _option("--model", "MODEL", _text, "model.path"),
    _option("--host", "HOST", _hosts, "hostnames"),
    _option("--port", "PORT", _integer, "port"),
    _option("--ctx-size", "CTX_SIZE", _integer, "n_ctx"),
    _option("--parallel", "N_PARALLEL", _integer, "n_parallel"),
    _option("--batch-size", "BATCH", _integer, "n_batch"),
    _option("--ubatch-size", "UBATCH", _integer, "n_ubatch"),
    _option("--threads", "THREADS", _integer, "cpuparams.n_threads", "cpuparams_batch.n_threads"),
    _option("--n-gpu-layers", "N_GPU_LAYERS", _integer, "n_gpu_layers"),
    _option("--fit", "FIT", _switch, "fit_params"),
    _option("--offline", "OFFLINE", _switch, "offline"),
    _option("--flash-attn", "FLASH_ATTN", _flash_attention, "flash_attn_type"),
    _option("--cache-type-k", "CACHE_TYPE_K", _cache_type, "cache_type_k"),
    _option("--cache-type-v", "CACHE_TYPE_V", _cache_type, "cache_type_v"),
    _option("--cache-prompt", "CACHE_PROMPT", _switch, "cache_prompt"),
    _option("--cache-ram", "CACHE_RAM", _integer, "cache_ram_mib"),
    _option("--cache-reuse", "CACHE_REUSE", _integer, "n_cache_reuse"),
    _option("--ctx-checkpoints", "CTX_CHECKPOINTS", _integer, "n_ctx_checkpoints"),
    _option("--context-shift", "CONTEXT_SHIFT", _switch, "ctx_shift"),
    _option("--metrics", "ENDPOINT_METRICS", _switch, "endpoint_metrics"),
    _option("--verbosity", "LOG_VERBOSITY", _integer, "verbosity"),
    _option("--spec-type", "SPEC_TYPE", _speculation, "speculative.types"),
    _option("--spec-draft-n-max", "SPEC_DRAFT_N_MAX", _integer, "speculative.draft.n_max"),
    _option("--spec-draft-n-min", "SPEC_DRAFT_N_MIN", _integer, "speculative.draft.n_min"),
    _option("--spec-draft-p-min", "SPEC_DRAFT_P_MIN", _number, "speculative.draft.p_min"),
    _option("--spec-draft-model", "SPEC_DRAFT_MODEL", _text, "speculative.draft.mparams.path"),
    _option("--spec-ngram-simple-size-n", None, _integer, "speculative.ngram_simple.size_n"),
    _option("--spec-ngram-simple-size-m", None, _integer, "speculative.ngram_simple.size_m"),
)


def read_settings(argv: Sequence[str], environment: Mapping[str, str]) -> list[tuple[Option, str, str]]:
    """Return the options that are set: each with where it came from and its text, flags behind variables.

    Raises:
        HostError: a flag or a variable that is not in :data:`OPTIONS`, or a flag without a value.
    """
    by_variable = {f"{PREFIX}{option.variable}": option for option in OPTIONS if option.variable}
    by_flag = {option.flag: option for option in OPTIONS}
    found = []
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        if name not in by_variable:
            raise HostError(f"{name}: xllamacpp cannot be given it here; use a llama-server binary")
        found.append((by_variable[name], name, environment[name]))
    for flag, value in zip(argv[::2], [*argv[1::2], None], strict=False):
        if flag not in by_flag or value is None:
            raise HostError(f"{flag}: " + ("no value follows" if flag in by_flag else "no such option here"))
        found.append((by_flag[flag], flag, value))
    return found


def apply_settings(library: Any, settings: Sequence[tuple[Option, str, str]]) -> Any:
    """Return xllamacpp's parameters with the settings. Raises HostError when a value does not fit."""
    parameters = library.CommonParams()
    for option, name, text in settings:
        try:
            value = option.read(library, text)
            for place in option.places:
                *path, last = place.split(".")
                target = parameters
                for part in path:
                    target = getattr(target, part)
                setattr(target, last, value)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise HostError(f"{name}={text}: not a value that it takes ({error!r})") from error
    # The MTP layer of a file is loaded only when it is asked for.
    kinds = library.common_speculative_type
    parameters.load_mtp = kinds.COMMON_SPECULATIVE_TYPE_DRAFT_MTP in parameters.speculative.types
    return parameters


def check_port(host: str, port: int) -> None:
    """Raise HostError unless the port is free: the server does not check and crashes."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise HostError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def leave(*_: object) -> NoReturn:
    """End the process at once: the library's own threads would be torn down in no order."""
    sys.stderr.flush()
    os._exit(0)


def heed_signals() -> int:
    """Let SIGTERM and SIGINT end the process; return a descriptor that can be read once one has come.

    ``signal.pause`` would sleep on when the signal came just before it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    return reader


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT, which end it with status 0."""
    given = sys.argv[1:] if argv is None else argv
    try:
        settings = read_settings(given, os.environ)
        import xllamacpp as library  # noqa: PLC0415 - its absence is an answer of this program

        parameters = apply_settings(library, settings)
        check_port(parameters.hostnames[0], parameters.port)
        stop = heed_signals()
        server = library.Server(parameters)
    except ImportError as error:
        sys.stderr.write(f"llamacpp-host: {error}; pip install 'coli-ab[llamacpp]' brings xllamacpp\n")
        return EXIT_USAGE
    except HostError as error:
        sys.stderr.write(f"llamacpp-host: {error}\n")
        return EXIT_USAGE
    except Exception as error:  # the library raises bare exceptions of its own
        sys.stderr.write(f"llamacpp-host: the server could not be started: {error}\n")
        return 1
    # The library's log thread may have left a line open.
    sys.stderr.write(f"\nllamacpp-host: listening on {server.listening_address}\n")
    os.read(stop, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
