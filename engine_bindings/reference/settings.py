"""What the engine is asked to do: environment variables and arguments, read once into one frozen value.

Every variable is declared here and nowhere else; ``--help`` prints the same declarations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from engine_bindings.errors import UsageError

T = TypeVar("T")
Kernels = Literal["invariant", "int8-batch"]
Mode = Literal["chat", "serve", "one-shot", "oracle"]
ForceAccept = Literal["accept", "reject", "alternate", "cycle"]
Environment = Mapping[str, str]

MAX_DRAFT_TOKENS = (
    8  # a deeper draft never pays for a head of one layer, and it bounds the rows of one forward
)
MAX_KV_SLOTS = 16
MAX_CONTEXT_TOKENS = 1 << 20
MAX_NEW_TOKENS = 1 << 20
MAX_SPAN_TOKENS = 48  # the real engine's bound for GRAMMAR_DRAFT
FLOAT32_BITS = 16  # in the real engine's arguments 16 bits and more mean float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable: its name, what it means, and the default as a person reads it."""

    name: str
    meaning: str
    default: str
    modes: str = "all"

    def text(self, environ: Environment) -> str | None:
        """Return the value, or None when it is unset or empty."""
        return environ.get(self.name) or None

    def fail(self, value: str, wanted: str) -> UsageError:
        """Build the error for an impossible value."""
        return UsageError(f"{self.name}={value!r} is not {wanted}", hint=self.meaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Variable):
    """An integer between two bounds."""

    low: int
    high: int

    def read(self, environ: Environment, default: T) -> int | T:
        """Return the integer, or ``default`` when unset; raise UsageError outside the bounds."""
        text = self.text(environ)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise self.fail(text, "a whole number") from None
        if not self.low <= value <= self.high:
            raise self.fail(text, f"between {self.low} and {self.high}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Real(Variable):
    """A number between two bounds; ``open_low`` leaves out the lower bound itself."""

    low: float
    high: float
    open_low: bool = False

    def read(self, environ: Environment, default: float) -> float:
        """Return the number, or ``default`` when unset; raise UsageError outside the bounds."""
        text = self.text(environ)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise self.fail(text, "a number") from None
        above = value > self.low if self.open_low else value >= self.low
        if not (math.isfinite(value) and above and value <= self.high):
            raise self.fail(text, f"{'above' if self.open_low else 'from'} {self.low:g} to {self.high:g}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(Variable):
    """A number that is on when it is not 0."""

    def read(self, environ: Environment, default: bool) -> bool:
        """Return whether it is on; raise UsageError when the value is no whole number."""
        text = self.text(environ)
        if text is None:
            return default
        try:
            return int(text) != 0
        except ValueError:
            raise self.fail(text, "0 or 1") from None


SNAP = Variable(name="SNAP", meaning="model directory", default="the packaged checkpoint, with KVSAVE off")
SERVE = Variable(
    name="SERVE", meaning="set to any value: stay up and speak a stdio protocol", default="unset"
)
SERVE_BATCH = Switch(name="SERVE_BATCH", meaning="with SERVE: 1 is serve mode, 0 chat mode", default="0")
PROMPT = Variable(
    name="PROMPT", meaning="without SERVE: answer this text once", default="unset", modes="one-shot"
)
COLI_PROMPT = Variable(
    name="COLI_PROMPT", meaning="the same, preferred to PROMPT", default="unset", modes="one-shot"
)
CTX = Whole(
    name="CTX",
    meaning="context of one slot in tokens",
    default="4096",
    modes="chat, serve",
    low=16,
    high=MAX_CONTEXT_TOKENS,
)
NGEN = Whole(
    name="NGEN",
    meaning="most new tokens of a turn; chat clamps a larger request",
    default="256 chat, 64 one-shot",
    modes="chat, one-shot",
    low=1,
    high=MAX_NEW_TOKENS,
)
DRAFT = Whole(
    name="DRAFT",
    meaning="drafts per forward, 0 switches speculation off, -1 is auto",
    default="1 with a head, else 0",
    low=-1,
    high=MAX_DRAFT_TOKENS,
)
MTP = Switch(name="MTP", meaning="0 drops the MTP head; DRAFT>0 then drafts by n-gram lookup", default="1")
GUARD_PCT = Whole(
    name="COLI_MTP_GUARD_PCT",
    meaning="acceptance in percent under which drafts pause for 256 forwards; 0 never",
    default="70",
    low=0,
    high=100,
)
GUARD_WINDOW = Whole(
    name="COLI_MTP_GUARD_WINDOW", meaning="proposals before the guard looks", default="24", low=4, high=256
)
KV_SLOTS = Whole(
    name="KV_SLOTS",
    meaning="independent contexts; more than 1 in serve mode switches drafts off",
    default="1",
    modes="chat, serve",
    low=1,
    high=MAX_KV_SLOTS,
)
KVSAVE = Switch(
    name="KVSAVE",
    meaning="save every turn's KV in SNAP/.coli_kv and resume from it",
    default="1",
    modes="chat, serve",
)
COLI_TEMP = Real(
    name="COLI_TEMP",
    meaning="temperature of chat lines, one-shot and oracle (alias TEMP)",
    default="0.7, oracle 0",
    modes="chat, one-shot, oracle",
    low=0,
    high=2,
)
TEMP = Real(
    name="TEMP", meaning="alias of COLI_TEMP", default="unset", modes="chat, one-shot, oracle", low=0, high=2
)
NUCLEUS = Real(
    name="NUCLEUS",
    meaning="top-p where the request carries none",
    default="0.90",
    modes="chat, one-shot, oracle",
    low=0,
    high=1,
    open_low=True,
)
SEED = Whole(
    name="SEED",
    meaning="same seed and prompt, same sampled text, on every path, slot and depth",
    default="fresh for every turn",
    low=-(1 << 63),
    high=(1 << 64) - 1,
)
CHAT_TEMPLATE = Switch(
    name="CHAT_TEMPLATE", meaning="0 takes lines and PROMPT raw", default="1", modes="chat, one-shot"
)
THINK = Switch(name="THINK", meaning="1 opens the answer of a line with <think>", default="0", modes="chat")
ALL_STOPS = Variable(
    name="COLI_SERVE_ALL_STOPS",
    meaning="set to any value: serve mode stops at the same tokens as chat mode",
    default="unset",
    modes="serve",
)
GRAMMAR = Variable(
    name="GRAMMAR",
    meaning="file with a GBNF grammar, or its text: where it forces the answer, drafts come from it",
    default="unset",
    modes="chat, one-shot",
)
SCHEMA = Variable(
    name="SCHEMA",
    meaning="file with a JSON Schema, or its text, in place of GRAMMAR",
    default="unset",
    modes="chat, one-shot",
)
GRAMMAR_DRAFT = Whole(
    name="GRAMMAR_DRAFT",
    meaning="most forced tokens of one draft, while the grammar is no constraint",
    default="24",
    low=1,
    high=MAX_SPAN_TOKENS,
)
GRAMMAR_CONSTRAIN = Switch(
    name="REF_GRAMMAR_CONSTRAIN",
    meaning="1 makes GRAMMAR or SCHEMA a constraint on the answer, behind </think> when it reasons",
    default="0",
    modes="chat, one-shot",
)
PROF = Switch(name="PROF", meaning="[PROF] and [SPEC] lines on stderr for every turn", default="0")
LOGIT_GAP = Variable(
    name="COLI_LOGIT_GAP",
    meaning="LOGITGAP line on stderr for every chosen token (greedy turns)",
    default="unset",
)
TOKENS = Switch(name="TOKENS", meaning="print the token ids on stderr", default="0", modes="one-shot")
REF = Variable(
    name="REF", meaning="file with prompt_ids, full_ids and tf_pred", default="ref_glm.json", modes="oracle"
)
TF = Switch(
    name="TF", meaning="compare the argmax of every position with tf_pred", default="0", modes="oracle"
)
REF_KERNELS = Variable(
    name="REF_KERNELS",
    meaning="invariant, or int8-batch (several rows are rounded differently from one, to make near-ties)",
    default="invariant",
)
REF_DEFECT = Variable(
    name="REF_DEFECT",
    meaning="seeded defects by name, separated by commas; --list-defects explains them",
    default="none",
)
REF_FORCE_ACCEPT = Variable(
    name="REF_FORCE_ACCEPT",
    meaning="with DRAFT>0: accept, reject, alternate or cycle chooses what verify finds in the drafts",
    default="unset",
)
REF_STATE_DIR = Variable(
    name="REF_STATE_DIR",
    meaning="directory that the defect state-carried-between-arms writes to and reads from",
    default="SNAP",
    modes="chat, serve",
)
CAP = Whole(
    name="CAP", meaning="expert cache size shown in the banner; has no effect", default="64", low=0, high=4096
)

VARIABLES: tuple[Variable, ...] = (
    SNAP, SERVE, SERVE_BATCH, PROMPT, COLI_PROMPT, CTX, NGEN, DRAFT, MTP, GUARD_PCT, GUARD_WINDOW, KV_SLOTS,
    KVSAVE, COLI_TEMP, NUCLEUS, SEED, CHAT_TEMPLATE, THINK, ALL_STOPS, GRAMMAR, SCHEMA, GRAMMAR_DRAFT,
    GRAMMAR_CONSTRAIN, PROF, LOGIT_GAP, TOKENS, REF, TF, REF_KERNELS,
    REF_DEFECT, REF_FORCE_ACCEPT, REF_STATE_DIR, CAP,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything the engine is asked to do.

    ``draft_tokens`` None is auto; ``ngen_tokens`` None is the mode's default; ``model_dir`` None is the
    packaged checkpoint; ``seed`` None is fresh entropy for every turn; ``grammar`` is a file or a text.
    """

    mode: Mode
    model_dir: Path | None
    prompt: str | None
    context_tokens: int
    ngen_tokens: int | None
    draft_tokens: int | None
    mtp: bool
    guard_percent: int
    guard_window_tokens: int
    kv_slots: int
    kv_save: bool
    temperature: float | None
    top_p: float
    seed: int | None
    chat_template: bool
    think: bool
    all_stops: bool
    grammar: str | None
    span_tokens: int
    grammar_constrains: bool
    prof: bool
    logit_gap: bool
    print_tokens: bool
    reference_file: Path
    teacher_forcing: bool
    kernels: Kernels
    defects: tuple[str, ...]
    force_accept: ForceAccept | None
    state_dir: Path | None
    cache_experts: int
    expert_bits: int
    dense_bits: int


def read_settings(
    environ: Environment,
    *,
    kernels: str | None = None,
    numbers: Sequence[int] = (),
    defects: str | None = None,
    force_accept: str | None = None,
) -> EngineSettings:
    """Read the settings from an environment.

    ``numbers`` are the positional arguments ``cap expert_bits dense_bits``; ``kernels``, ``defects`` and
    ``force_accept`` are the command line's choices and win over their variables. Raises UsageError that
    names the variable, its value and what is possible.
    """
    snap, state_dir = SNAP.text(environ), REF_STATE_DIR.text(environ)
    draft = DRAFT.read(environ, -1)
    expert_bits = numbers[1] if len(numbers) > 1 else FLOAT32_BITS
    return EngineSettings(
        mode=choose_mode(environ),
        model_dir=Path(snap) if snap else None,
        prompt=environ.get("COLI_PROMPT", environ.get("PROMPT")),
        context_tokens=CTX.read(environ, 4096),
        ngen_tokens=NGEN.read(environ, None),
        draft_tokens=None if draft < 0 else draft,
        mtp=MTP.read(environ, True),
        guard_percent=GUARD_PCT.read(environ, 70),
        guard_window_tokens=GUARD_WINDOW.read(environ, 24),
        kv_slots=KV_SLOTS.read(environ, 1),
        kv_save=KVSAVE.read(environ, True) and snap is not None,
        temperature=_read_temperature(environ),
        top_p=NUCLEUS.read(environ, 0.9),
        seed=SEED.read(environ, None),
        chat_template=CHAT_TEMPLATE.read(environ, True),
        think=THINK.read(environ, False),
        all_stops=ALL_STOPS.name in environ,
        grammar=GRAMMAR.text(environ) or SCHEMA.text(environ),
        span_tokens=GRAMMAR_DRAFT.read(environ, 24),
        grammar_constrains=GRAMMAR_CONSTRAIN.read(environ, False),
        prof=PROF.read(environ, False),
        logit_gap=not (LOGIT_GAP.text(environ) or "0").startswith("0"),
        print_tokens=TOKENS.read(environ, False),
        reference_file=Path(REF.text(environ) or "ref_glm.json"),
        teacher_forcing=TF.read(environ, False),
        kernels=_read_kernels(environ, kernels),
        defects=_read_names(defects or REF_DEFECT.text(environ) or ""),
        force_accept=_read_force_accept(environ, force_accept),
        state_dir=Path(state_dir) if state_dir else None,
        cache_experts=(numbers[0] or 8) if numbers else CAP.read(environ, 64),
        expert_bits=expert_bits,
        dense_bits=numbers[2] if len(numbers) > 2 else expert_bits,
    )


def choose_mode(environ: Environment) -> Mode:
    """Return the mode that the environment asks for, in the real engine's order of tests."""
    if SERVE.name in environ:
        return "serve" if SERVE_BATCH.read(environ, False) else "chat"
    if COLI_PROMPT.name in environ or PROMPT.name in environ:
        return "one-shot"
    return "oracle"


def _read_temperature(environ: Environment) -> float | None:
    variable = COLI_TEMP if COLI_TEMP.text(environ) else TEMP
    return variable.read(environ, 0.0) if variable.text(environ) else None


def _read_kernels(environ: Environment, option: str | None) -> Kernels:
    name = option or REF_KERNELS.text(environ) or "invariant"
    if name not in get_args(Kernels):
        raise REF_KERNELS.fail(name, " or ".join(get_args(Kernels)))
    kernels: Kernels = name  # type: ignore[assignment]
    return kernels


def _read_force_accept(environ: Environment, option: str | None) -> ForceAccept | None:
    name = option or REF_FORCE_ACCEPT.text(environ)
    if name is None:
        return None
    if name not in get_args(ForceAccept):
        raise REF_FORCE_ACCEPT.fail(name, "one of " + ", ".join(get_args(ForceAccept)))
    pattern: ForceAccept = name  # type: ignore[assignment]
    return pattern


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
