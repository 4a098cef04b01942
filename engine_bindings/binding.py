"""What a binding is: how one kind of engine is started, what is fixed for it, and what it reports."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from engine_bindings.fingerprint import EngineFingerprint, ModelFingerprint

EnginePath = str
EntryKind = Literal["line", "prompt", "messages"]
GrammarKind = Literal["schema", "gbnf"]
GrammarSupport = Literal["constraint", "drafts", "none"]
# The two stdio protocols of the colibri family; a binding may have others.
PATHS: tuple[EnginePath, ...] = ("chat", "serve")
# The depth of an arm of which nobody knows whether and how deep it drafts, such as a server found running.
UNKNOWN_DEPTH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One environment variable that the harness fixes, and why.

    ``overridden``: the user gave the value. ``forbids`` are patterns of names of files that an engine must
    not write in its model directory while the variable has this value.
    """

    name: str
    value: str
    reason: str
    overridden: bool = False
    forbids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do and what it reports.

    Attributes:
        paths: the ways to get an answer from it; the others are held against the first.
        max_depth: the greatest draft depth it takes; 0 where a depth cannot be asked for.
        depths: the only draft depths it can be run at; None: without drafts, and any up to ``max_depth``.
        entries: in which forms each path takes a turn; exact prompts where nothing is said.
        slots_path: the path on which it answers several requests at once, None when there is none.
        context_paths: the paths on which a turn can name the context that it runs in, with drafts on.
        frames_are_tokens: the paths on which one frame of output is exactly one token.
        reports_forwards: decode forwards per turn are reported on every path.
        reports_drafted: drafts proposed per turn are reported.
        reports_cached_tokens: the reused prefix is reported for exact prompts.
        grammar: what it does with a grammar: enforce it, draft from it, or take none.
        counters_repeat: forwards, drafts and acceptance are a pure function of prompt and settings, so that
            two runs, or both paths, must show the same; not so where a head reads rows that earlier turns
            left.
        draws_repeat: sampled answers are a pure function of prompt, settings and seed too, so that one prompt
            asked twice in one process must give the same; not so where all requests share one generator.
        context_tokens: size of the context unless another is asked for, None when it is not known.
        cold_cells: each cell starts with an empty cache, so that what two cells reuse can be compared.
        exact_prefixes: a prefix is reused to the token; not so where a cache holds blocks of many.
        margin_pin: the setting that makes the engine print the two best logits of its choices, None when it
            has none. It must change nothing but stderr.
        reports_logprobs: the paths on which a request can ask for the logprob of each token of its answer.
        unavailable: the paths of this kind of engine that this one does not have, each with the reason.
    """

    paths: tuple[EnginePath, ...]
    max_depth: int
    frames_are_tokens: frozenset[EnginePath]
    reports_forwards: bool
    reports_drafted: bool
    reports_cached_tokens: bool
    depths: tuple[int, ...] | None = None
    entries: Mapping[EnginePath, tuple[EntryKind, ...]] = field(default_factory=dict)
    slots_path: EnginePath | None = None
    context_paths: frozenset[EnginePath] = frozenset()
    grammar: GrammarSupport = "none"
    counters_repeat: bool = False
    draws_repeat: bool = False
    context_tokens: int | None = None
    cold_cells: bool = True
    exact_prefixes: bool = True
    margin_pin: Pin | None = None
    reports_logprobs: frozenset[EnginePath] = frozenset()
    unavailable: tuple[tuple[EnginePath, str], ...] = ()

    def entries_of(self, path: EnginePath) -> tuple[EntryKind, ...]:
        """Return the forms in which a path takes a turn."""
        return self.entries.get(path, ("prompt",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSettings:
    """What the arms of one scenario ask of an engine's start.

    Attributes:
        path: one of the binding's.
        depth: draft depth, 0 for no speculation.
        cap_tokens: the largest number of new tokens that any turn asks for.
        context_tokens: size of the context, or None for the engine's default.
        temperature: for turns whose request cannot carry one (typed lines).
        top_p: likewise.
        grammar: the kind of the scenario's grammar, for a path that reads it at the start; None without one.
        grammar_binds: the engine must enforce it.
        slots: contexts that the engine holds. More than one with speculation only on a path that takes one
            turn at a time.
    """

    path: EnginePath
    depth: int
    cap_tokens: int
    context_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    grammar: GrammarKind | None = None
    grammar_binds: bool = False
    slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """An executable that is written for one process: the pin ``variable`` names it, ``text`` is in it."""

    variable: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start one engine process.

    Attributes:
        argv: the command line; empty where nothing is started, because a server runs at ``url`` already.
        pins: the settings fixed for it.
        driver: which session speaks to it: ``chat`` and ``serve`` are the stdio protocols, ``terminal`` types
            into a pseudo-terminal, ``http`` sends requests.
        url: where it is reached over HTTP. A process that is started may have ``{port}`` there and in its
            ``argv``: a free port is put in its place.
        api: over HTTP, the way in which turns are asked for.
        key_variable: over HTTP, the environment variable that holds the key for the server; None: none is
            sent.
        parameters: over HTTP, the pins that go into the requests to a server that is started; the others are
            its
            environment. All pins go into the requests where none is started.
        reads_metrics: over HTTP, the server's own counters are read around each turn.
        model_variable: the environment variable that names the model directory of the process.
        grammar_variables: pins whose value is the name of a file there that holds the grammar.
        scripts: executables that are put there, likewise.
    """

    argv: tuple[str, ...]
    pins: tuple[Pin, ...]
    driver: str
    url: str | None = None
    api: str = ""
    key_variable: str | None = None
    parameters: tuple[str, ...] = ()
    reads_metrics: bool = False
    model_variable: str = "SNAP"
    grammar_variables: tuple[str, ...] = ()
    scripts: tuple[Script, ...] = ()


class Binding(Protocol):
    """One kind of engine that can be started and measured."""

    @property
    def name(self) -> str:
        """The name that ``--engine`` knows it by."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do and what it reports."""

    def default_model_dir(self) -> Path | None:
        """Return the model directory that comes with the engine, or None."""

    def fingerprint(self) -> EngineFingerprint:
        """Say exactly which engine this is. Raises UsageError when it is not there."""

    def launch(self, settings: ArmSettings, overrides: Mapping[str, str]) -> Launch:
        """Return how to start the engine for an arm; ``overrides`` replace pins or add to them."""


class ServedBinding(ABC):
    """Base of bindings for engines that are reached where they run already, with a model that they have."""

    @abstractmethod
    def served_model(self, overrides: Mapping[str, str]) -> ModelFingerprint:
        """Return the model as its server reports it. Raises UsageError when it serves no such model."""


def apply_overrides(pins: Iterable[Pin], overrides: Mapping[str, str]) -> tuple[Pin, ...]:
    """Replace the values of pins that the user named, and add the ones that are no pin yet."""
    kept = tuple(_override(pin, overrides[pin.name]) if pin.name in overrides else pin for pin in pins)
    known = {pin.name for pin in kept}
    added = (
        Pin(name=name, value=value, reason="not pinned otherwise", overridden=True)
        for name, value in sorted(overrides.items())
        if name not in known
    )
    return (*kept, *added)


def _override(pin: Pin, value: str) -> Pin:
    reason = f"in place of {pin.value}: {pin.reason}"
    forbids = pin.forbids if value == pin.value else ()
    return replace(pin, value=value, reason=reason, overridden=True, forbids=forbids)


def is_engine_variable(name: str) -> bool:
    """Say whether an environment variable steers an engine, so that a stray value could change an arm."""
    if name.startswith(OWN_PREFIX):
        return False
    return name in ENGINE_VARIABLES or name.startswith(ENGINE_PREFIXES)


def build_environment(inherited: Mapping[str, str], pins: Iterable[Pin]) -> dict[str, str]:
    """Return the environment for an engine: what was inherited, without engine variables, and the pins."""
    environment = {name: value for name, value in inherited.items() if not is_engine_variable(name)}
    environment.update((pin.name, pin.value) for pin in pins)
    return environment


OWN_PREFIX = "COLI_AB_"  # this tool's own variables, which no engine reads
STDERR_VARIABLE = f"{OWN_PREFIX}STDERR"
"""Names the pipe for an engine's stderr, where a program between the engine and us would swallow it."""
ENGINE_PREFIXES = (
    "COLI_",
    "REF_",
    "MTP_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "OPENBLAS_",
    "MKL_",
    "BLIS_",
    "VECLIB_",
    "NPY_",
    "LLAMA_",
    "GGML_",
)

# Every variable that the engines read under a name without such a prefix.
ENGINE_VARIABLES = frozenset(
    {
        "ABLATE_SCORE",
        "ABSORB",
        "AUTOPIN",
        "CACHE_ROUTE",
        "CAP",
        "CAP_RAISE",
        "CHAT_TEMPLATE",
        "CTX",
        "DENSE_BITS",
        "DIRECT",
        "DRAFT",
        "DSA",
        "DSA_FORCE",
        "DSA_TOPK",
        "EXPERT_BITS",
        "EXPERT_BUDGET",
        "GRAMMAR",
        "GRAMMAR_DRAFT",
        "I4S",
        "IDOT",
        "KVSAVE",
        "KV_SLOTS",
        "LLAMA_ARG_SPEC_DRAFT_MODEL",
        "MTP",
        "NGEN",
        "NUCLEUS",
        "PILOT",
        "PIN",
        "PIN_GB",
        "PIPE",
        "PIPE_WORKERS",
        "PROF",
        "PROMPT",
        "RAM_GB",
        "REF",
        "REPIN",
        "REPLAY",
        "ROUTE_AGREE",
        "ROUTE_TRACE",
        "RSS_GUARD_GB",
        "SCHEMA",
        "SCORE",
        "SEED",
        "SERVE",
        "SERVE_BATCH",
        "SNAP",
        "SPEC_PIN",
        "STATS",
        "TEMP",
        "TF",
        "THINK",
        "TOKENS",
        "TOPK",
        "TOPP",
        "URING",
    }
)
