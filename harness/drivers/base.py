"""What the runner needs of a running engine, whatever carries its bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine_bindings.chat_template import Message
from harness.transcript import TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One turn to ask for.

    Attributes:
        conversation: id of the conversation in the scenario.
        turn: index of the turn in it, from 0.
        prompt: the whole prompt with its template, for an engine that takes exact prompts.
        line: the text a person would type, when the turn is to be typed; None for an exact prompt.
        messages: the turn as messages, where the engine puts the template around them; empty where not.
        max_tokens: the cap.
        stop: strings that end the answer; the first one found is cut off with all that follows.
        cancel_after_tokens: cancel the turn once so many tokens have arrived; pieces of output where the path
            shows no tokens.
        may_refuse: a refusal of the prompt is a result like any other.
        slot: the context that it runs in, of an engine with several.
        logprobs: ask for the logprob of each token, on a path that can give it.
    """

    conversation: str
    turn: int
    prompt: bytes
    line: bytes | None
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    cancel_after_tokens: int | None = None
    may_refuse: bool = False
    slot: int = 0
    messages: tuple[Message, ...] = ()
    logprobs: bool = False

    @property
    def place(self) -> str:
        """The turn in words, for messages; turns are counted from 1 there."""
        return f"turn {self.turn + 1} of conversation {self.conversation!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStart:
    """What an engine said before its first turn."""

    protocol: str
    banner: tuple[str, ...]
    kv_resumed_tokens: int | None


class EngineSession(Protocol):
    """One engine process from start to exit. Every method raises EngineError when the engine misbehaves."""

    def start(self) -> EngineStart:
        """Wait for the engine to be ready and prove which protocol it speaks, before anything is sent."""

    def begin_conversation(self) -> None:
        """Forget typed context. Exact prompts need nothing: they name their whole context."""

    def run_turn(self, request: TurnRequest) -> TurnRecord:
        """Ask for one turn and return all that was seen of it."""

    def run_together(self, requests: Sequence[TurnRequest]) -> tuple[TurnRecord, ...]:
        """Ask for several turns at once, each in a slot of its own; one after the other with one slot."""

    def end(self) -> int:
        """Tell the engine to exit, wait for it and return its exit status."""

    def kill(self) -> int | None:
        """End the engine and its children at once, if they still run; return the exit status, if any."""

    def now_ns(self) -> int:
        """Return the time since the cell began."""

    def stderr_tail(self) -> tuple[str, ...]:
        """Return the last lines that the engine wrote to stderr."""


class Arrival:
    """Bytes of the engine's stdout with the time at which they were read; no bytes mean the end of it."""

    __slots__ = ("at_ns", "data")

    def __init__(self, at_ns: int, data: bytes) -> None:
        self.at_ns = at_ns
        self.data = data


class Transport(Protocol):
    """The bytes of one engine process. Times are nanoseconds of one monotonic clock."""

    def send(self, data: bytes) -> None:
        """Queue bytes for stdin; they are written here or during later calls."""

    def receive(self, deadline_ns: int) -> Arrival | None:
        """Return the next bytes of stdout, or None when the deadline passes first."""

    def wait_stderr(self, deadline_ns: int) -> bool:
        """Wait for more stderr and return True, or False when the deadline passes first."""

    def drain_stderr(self) -> None:
        """Take what stderr holds now, without waiting."""

    def take_unread(self) -> bytes:
        """Take what stdout held and nobody received, without waiting; after ``end``, all of it."""

    def interrupt(self) -> None:
        """Send the engine the signal that ends a turn softly (SIGINT)."""

    def end(self, deadline_ns: int) -> int | None:
        """Close stdin and return the exit status, or None when the deadline passes first."""

    def kill(self) -> int | None:
        """End the whole process group at once."""

    def now_ns(self) -> int:
        """Read the clock."""
