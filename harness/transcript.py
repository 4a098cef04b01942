"""What one cell really did, as the runner saw it: the only input of every later stage."""

from dataclasses import dataclass
from typing import Literal

from engine_bindings.binding import EntryKind, Pin
from harness.plan import CellSpec
from harness.record_json import Payload, from_json, to_json

# The one failure that is not the engine's: the user ended the run.
INTERRUPTED_CODE = "interrupted"

Finish = Literal[
    "stop", "length", "stop-string", "cancelled", "refused", "broken-grammar", "tool-calls", "unreported"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Output that reached the client at one moment.

    Attributes:
        at_ns: the client's monotonic clock, from the start of the cell.
        size_bytes: bytes of answer text that arrived; bytes behind a stop string count too.
        tokens: tokens that arrived, None where the engine shows no token boundaries.
    """

    at_ns: int
    size_bytes: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """The two best candidates of one choice, by token id, and how far apart their logits are."""

    best: int
    second: int
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn. Counts are the engine's own; None means that it did not report them.

    Attributes:
        conversation: id of the conversation in the scenario.
        turn: index of the turn in it, from 0.
        entry: ``line`` when the user's text was typed, ``prompt`` for the exact prompt, ``messages``
            when the engine put the template around messages itself.
        prompt: the bytes sent: the exact prompt or the typed text; for messages the prompt that this tool
            would render from them.
        text: the visible answer, cut before a stop string.
        deliveries: everything that arrived, in order.
        sent_ns: request written; accepted_ns: ACCEPT read (serve); done_ns: end of the turn read. The
            deliveries use the same clock.
        asked_to_end_ns: when the engine was told to stop or cancel the turn; None when it was not.
        emitted_tokens: all tokens of the turn, also those hidden behind a stop string.
        prompt_tokens: length of the whole prompt. None for a typed line, whose figure counts that turn alone.
        cached_tokens, prefill_tokens: prompt tokens taken from the cache, and computed.
        forwards: decode forwards. drafted_tokens, accepted_tokens: drafts proposed and kept.
        length_limited: the engine's own flag.
        finish: how the turn ended, by the rules of docs/metrics.md.
        engine_tokens_per_s: the engine's own speed figure.
        drafts_paused: how often the engine said that it paused drafting in this turn.
        token_lengths: bytes of each emitted token, where the engine shows boundaries; their sum may exceed
            ``text`` when a stop string cut it.
        margins: of the choices in order, where the engine was asked to print them. A stop token that was
            chosen has one too. An engine may print none for accepted drafts.
        logprobs: natural logarithm of each emitted token's probability, where the request asked for it and
            the engine gave any; None in it for a token without one.
        shared_margins: the same of all turns that ran at once, in the order in which they were printed: the
            lines do not say whose they are.
    """

    conversation: str
    turn: int
    entry: EntryKind
    prompt: Payload
    text: Payload
    deliveries: tuple[Delivery, ...]
    sent_ns: int
    accepted_ns: int | None = None
    done_ns: int
    asked_to_end_ns: int | None = None
    emitted_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_tokens: int | None = None
    forwards: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    length_limited: bool | None = None
    finish: Finish
    engine_tokens_per_s: float | None = None
    drafts_paused: int = 0
    token_lengths: tuple[int, ...] | None = None
    margins: tuple[Margin, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    shared_margins: tuple[Margin, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a cell could not be measured: an EngineError with the last lines of the engine's stderr."""

    code: str
    message: str
    hint: str
    stderr_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The state of the machine at one moment; None where it does not show it.

    Attributes:
        clock_s: a monotonic clock.
        busy_cpu_s: seconds that all processors together were busy, since the machine started.
        own_cpu_s: processor seconds of the harness and of the engines that have ended.
        load_average: of the last minute.
        governors: the clock policies in use. boost: whether the processor may exceed its base clock.
        throttle_events: how often a processor package throttled since the machine started.
        temperature_c: of the hottest sensor of the processor, degrees Celsius.
    """

    clock_s: float
    busy_cpu_s: float
    own_cpu_s: float
    load_average: float
    governors: tuple[str, ...]
    boost: bool | None
    throttle_events: int | None
    temperature_c: float | None
    memory_available_bytes: int
    swap_used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftFile:
    """A file that the engine wrote in its model directory; ``name`` is relative to that."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a cell was ended before its last turn: what its turn showed was worth looking into at once.

    Attributes:
        conversation, turn: where; ``turn`` from 0.
        reason: what was seen there, in words.
        turns_left: turns that were not asked.
    """

    conversation: str
    turn: int
    reason: str
    turns_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """One attempt at one cell; a retry is a new record with a higher ``attempt``.

    Attributes:
        spec: which cell.
        attempt: from 0.
        started_at: wall-clock time of the start, ISO 8601.
        argv: the command line of the engine.
        pins: settings that the harness fixed.
        banner: stdout lines before READY; shown, never used as evidence.
        protocol: the protocol that the READY block proved, None when it never came.
        ready_ns, ended_ns: READY read, engine gone; from the start of the cell.
        kv_resumed_tokens: tokens of a saved conversation that the engine said it resumed.
        turns: the turns that ended, in order; those before a failure are kept.
        failure: why the cell could not be measured, None when it could.
        stop: why it was ended early, None when all turns were asked. A cell that is run again to its end is a
            new attempt.
        exit_code: of the process, negative for a signal.
        engine_stderr_file: path in the run directory.
        left_files: files that the engine wrote in its private model directory and left there.
        notes: remarks of the runner, in plain sentences.
        reused_from: name of the run that measured it, empty for this one. Its times say nothing here.
        before, after: the state of the machine around it.
    """

    spec: CellSpec
    attempt: int = 0
    started_at: str
    argv: tuple[str, ...]
    pins: tuple[Pin, ...] = ()
    banner: tuple[str, ...] = ()
    protocol: str | None = None
    ready_ns: int | None = None
    ended_ns: int | None = None
    kv_resumed_tokens: int | None = None
    turns: tuple[TurnRecord, ...] = ()
    failure: Failure | None = None
    stop: Stop | None = None
    exit_code: int | None = None
    engine_stderr_file: str = ""
    left_files: tuple[LeftFile, ...] = ()
    notes: tuple[str, ...] = ()
    reused_from: str = ""
    before: Conditions | None = None
    after: Conditions | None = None

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return to_json(self)

    @property
    def is_complete(self) -> bool:
        """True when every turn was asked and answered."""
        return self.failure is None and self.stop is None

    @classmethod
    def from_json(cls, text: str | bytes, *, place: str = "") -> "CellRecord":
        """Read a record; RunDirectoryError names ``place`` when ``text`` is not one."""
        return from_json(cls, text, place=place)
