"""The binding of llama.cpp's server: that of the package xllamacpp, or a ``llama-server`` binary.

Settings of the server are pinned under its own names ``LLAMA_ARG_*``, which both programs read. What goes
into every request is pinned under the names in :data:`REQUEST_PINS`.
"""

import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from engine_bindings.binding import ArmSettings, Capabilities, Launch, Pin, apply_overrides
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import (
    EngineFingerprint,
    read_engine_fingerprint,
    read_model_fingerprint,
    read_version,
)

NAME = "llamacpp"
DRIVER = "llamacpp"
COMPLETION, CHAT = "completion", "chat-completions"
HOST_MODULE = "engine_bindings.llamacpp_host"
PACKAGE = "xllamacpp"
MODEL_MARK = "{model}"
SHIPPED = Path(__file__).parent / "reference" / "checkpoint"
URL = "http://127.0.0.1:{port}"
CONTEXT_TOKENS = 4096
MAX_DEPTH = 8
SEED = "20261130"
SPECULATION = "SPECULATION"
SPECULATION_TYPES = {"mtp": "draft-mtp", "ngram": "ngram-simple", "draft": "draft-simple"}
NGRAM_TOKENS = 3
# n-grams have no variables, only flags.
NGRAM_FLAGS = {
    "SPEC_NGRAM_SIMPLE_SIZE_N": "--spec-ngram-simple-size-n",
    "SPEC_NGRAM_SIMPLE_SIZE_M": "--spec-ngram-simple-size-m",
}
DRAFT_MODEL = "LLAMA_ARG_SPEC_DRAFT_MODEL"
REQUEST_PINS = ("SEED", "TOP_K", "MIN_P", "ENABLE_THINKING", "REASONING_FORMAT", "N_PROBS")

CAPABILITIES = Capabilities(
    paths=(COMPLETION, CHAT),
    max_depth=MAX_DEPTH,
    frames_are_tokens=frozenset({COMPLETION}),
    reports_forwards=True,
    reports_drafted=True,
    reports_cached_tokens=True,
    entries={COMPLETION: ("prompt",), CHAT: ("messages",)},
    slots_path=COMPLETION,
    grammar="constraint",
    context_tokens=CONTEXT_TOKENS,
    margin_pin=Pin(
        name="N_PROBS",
        value="2",
        reason="asks /completion for the two best tokens of every choice; told without speculation only",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """Starts a server: xllamacpp's, or that of ``executable``."""

    executable: Path | None = None
    name: str = NAME

    @property
    def capabilities(self) -> Capabilities:
        """What llama.cpp does and reports."""
        return CAPABILITIES

    def default_model_dir(self) -> Path | None:
        """Return the shipped checkpoint as a GGUF file, which is written at the first use."""
        return write_shipped_model(find_cache(os.environ))

    def fingerprint(self) -> EngineFingerprint:
        """Digest the program."""
        if self.executable is not None:
            return read_engine_fingerprint(self.name, version=None, source=self.executable)
        return read_engine_fingerprint(
            self.name, version=metadata.version(PACKAGE), source=find_library(), more=()
        )

    def launch(self, settings: ArmSettings, overrides: Mapping[str, str]) -> Launch:
        """Return the command and the pins of one arm. Raises UsageError for a kind of speculation unknown."""
        kind = overrides.get(SPECULATION, "mtp")
        if kind not in SPECULATION_TYPES:
            raise UsageError(
                f"--set {SPECULATION}={kind}: no such kind", hint=f"one of {', '.join(SPECULATION_TYPES)}"
            )
        if kind == "draft" and DRAFT_MODEL not in overrides:
            raise UsageError(
                f"--set {SPECULATION}=draft: no draft model",
                hint=f"name it with --set {DRAFT_MODEL}=FILE.gguf",
            )
        pins = apply_overrides(build_pins(settings, kind), overrides)
        program = (sys.executable, "-m", HOST_MODULE) if self.executable is None else (str(self.executable),)
        argv = (*program, *build_flags(pins))
        return Launch(argv=argv, pins=pins, driver=DRIVER, url=URL, api=settings.path)


def build_flags(pins: tuple[Pin, ...]) -> tuple[str, ...]:
    """Return the flags of the command line; ``{model}`` and ``{port}`` are filled in at the start."""
    flags = ["--model", MODEL_MARK, "--host", "127.0.0.1", "--port", "{port}"]
    for pin in pins:
        if pin.name in NGRAM_FLAGS:
            flags += [NGRAM_FLAGS[pin.name], pin.value]
    return tuple(flags)


def build_pins(settings: ArmSettings, kind: str) -> tuple[Pin, ...]:
    """Return the settings of one arm; arms of one scenario differ in the kind and number of drafts only."""
    context = settings.context_tokens or CONTEXT_TOKENS
    own = (
        Pin(
            name="LLAMA_ARG_CTX_SIZE",
            value=str(context * settings.slots),
            reason="size of the context, which the slots share evenly; the default depends on the model",
        ),
        Pin(
            name="LLAMA_ARG_N_PARALLEL",
            value=str(settings.slots),
            reason="requests of one arm take turns in one slot and its cache"
            if settings.slots == 1
            else "requests that run at once need a slot each",
        ),
        Pin(
            name="LLAMA_ARG_BATCH",
            value=str(context),
            reason="one decode takes the whole prompt in, so that all others are forwards of the answer",
        ),
    )
    return (*own, *_speculation_pins(settings.depth, kind), *_STATE_PINS, *_REQUEST_PINS)


def _speculation_pins(depth: int, kind: str) -> tuple[Pin, ...]:
    spec_type = SPECULATION_TYPES[kind] if depth else "none"
    pins = (
        Pin(name=SPECULATION, value=kind, reason="what drafts: mtp, ngram or draft (a draft model)"),
        Pin(name="LLAMA_ARG_SPEC_TYPE", value=spec_type, reason="the arm's speculation"),
        Pin(
            name="LLAMA_ARG_SPEC_DRAFT_N_MAX",
            value=str(max(depth, 1)),
            reason="the arm's draft depth; fixed at the start, a request cannot change it",
        ),
    )
    if kind != "ngram":
        return pins
    return (
        *pins,
        Pin(
            name="SPEC_NGRAM_SIMPLE_SIZE_N",
            value=str(min(max(depth, 1), NGRAM_TOKENS)),
            reason="tokens that must have occurred before; with more of them than drafts it never drafts",
        ),
        Pin(name="SPEC_NGRAM_SIMPLE_SIZE_M", value=str(max(depth, 1)), reason="the arm's draft depth"),
    )


_STATE_PINS = (
    Pin(name="LLAMA_ARG_THREADS", value="1", reason="a fixed number of threads for every arm"),
    Pin(name="LLAMA_ARG_ENDPOINT_METRICS", value="1", reason="counts decodes, the proof of speculation"),
    Pin(name="LLAMA_ARG_CACHE_PROMPT", value="1", reason="the prefix that a slot holds is reused"),
    Pin(
        name="LLAMA_ARG_CACHE_RAM",
        value="0",
        reason="prompts kept in host memory would come back, so a turn would depend on all turns before it",
    ),
    Pin(name="LLAMA_ARG_CACHE_REUSE", value="0", reason="no reuse of shifted chunks, which changes logits"),
    Pin(
        name="LLAMA_ARG_CTX_CHECKPOINTS",
        value="0",
        reason="checkpoints cut a prompt's decode in two; only sliding and recurrent models make any",
    ),
    Pin(name="LLAMA_ARG_CONTEXT_SHIFT", value="0", reason="a full context ends the answer, and is not cut"),
    Pin(name="LLAMA_ARG_FIT", value="off", reason="no setting is changed to fit into memory"),
    Pin(name="LLAMA_ARG_OFFLINE", value="1", reason="nothing is loaded from a network"),
)

_REQUEST_PINS = (
    Pin(name="SEED", value=SEED, reason="sampled answers repeat; request number n of a cell adds n"),
    Pin(name="TOP_K", value="0", reason="the server's default of 40 would cut the distribution"),
    Pin(name="MIN_P", value="0", reason="the server's default of 0.05 would cut the distribution"),
    Pin(
        name="ENABLE_THINKING",
        value="false",
        reason="chat completions otherwise open the answer with <think>, where exact prompts close it",
    ),
    Pin(
        name="REASONING_FORMAT",
        value="deepseek",
        reason="thoughts come apart; with none the server adds the <think></think> of its template",
    ),
)


def build_llamacpp(location: str | None) -> LlamaCpp:
    """Return the binding for ``--engine llamacpp``, or for the ``PATH`` of a llama-server behind it.

    Raises:
        UsageError: xllamacpp is not installed, or ``location`` is no executable file.
    """
    if location is None:
        find_library()
        return LlamaCpp()
    found = shutil.which(location)
    if found is None:
        raise UsageError(
            f"--engine llamacpp={location}: no executable file there",
            hint="name a llama-server binary or the http:// address of one that runs",
        )
    return LlamaCpp(executable=Path(found).absolute())


def find_library() -> Path:
    """Return the compiled library of xllamacpp. Raises UsageError when it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    origin = spec.origin if spec is not None else None
    if origin is None:
        raise UsageError(
            "--engine llamacpp: the package xllamacpp is not installed",
            hint="pip install 'coli-ab[llamacpp]', or --engine llamacpp=PATH of a llama-server",
        )
    return next(Path(origin).parent.glob("xllamacpp*.so"), Path(origin))


def find_cache(environment: Mapping[str, str]) -> Path:
    """Return the directory for files that can be made again."""
    home = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "coli-ab"


def write_shipped_model(cache: Path) -> Path:
    """Return the shipped checkpoint as a GGUF file in ``cache``; it is written when it is not there yet."""
    from engine_bindings.gguf_export import export_gguf  # noqa: PLC0415 - needs an extra and numpy

    model = read_model_fingerprint(SHIPPED)
    digests = f"{read_version()} {model.config_digest} {model.tokenizer_digest} {model.weights_digest}"
    path = cache / f"reference-{hashlib.sha256(digests.encode()).hexdigest()[:16]}.gguf"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        export_gguf(path, SHIPPED)
    return path
