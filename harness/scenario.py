"""A scenario as a value: conversations, turns, caps, and the exact prompt of each turn.

The file format is documented in ``docs/scenario-format.md``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from engine_bindings.chat_template import Message, Role, render_messages
from harness.grammar import Grammar
from harness.scenario_checks import find_problems
from harness.scenario_format import ScenarioFile, TurnFile, parse_tables, raise_problems
from harness.scenario_lines import locate_keys

TurnKind = Literal["user", "tool", "prompt", "append"]
Entry = Literal["prompt", "line"]
Refusal = Literal["never", "possible", "expected"]
SweepKind = Literal["cap", "stop", "repeat", "draw"]

_ROLES: dict[TurnKind, Role] = {"user": "user", "tool": "observation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Values that one turn is run with, each in a conversation of its own; see :mod:`harness.sweeps`.

    ``values`` are stop strings, numbers of repeats, how many draws, or the name of a set of caps, which
    depends on the depth.
    """

    kind: SweepKind
    values: tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request and what is known of its answer beforehand.

    Attributes:
        kind: ``user`` and ``tool`` are messages; ``prompt`` is an exact prompt; ``append`` continues the last
            prompt and answer with raw text.
        text: the message or raw text.
        max_tokens: the cap.
        stop: strings at whose first occurrence the harness cuts the answer and stops the turn.
        expect: facts, searched for in the answer byte by byte.
        expect_prompt_tokens: prompt length with the tokenizer that the scenario was written for.
        expect_cached_tokens: prompt tokens that a correct prefix reuse takes from the cache.
        after: number of the turn that this one builds on, from 1; 0 for none, None for the turn before it.
        same_as: numbers of earlier turns whose answers, joined, must equal this one as far as the caps let
            both go.
        cancel_after_tokens: the turn is cancelled once so many tokens of its answer have arrived.
        refusal: whether the engine may or must refuse the prompt; else a refusal fails the cell.
        sweep: what the turn is run with, one conversation for each; None once the sweep is expanded.
    """

    kind: TurnKind
    text: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    expect_prompt_tokens: int | None = None
    expect_cached_tokens: int | None = None
    after: int | None = None
    same_as: tuple[int, ...] = ()
    cancel_after_tokens: int | None = None
    refusal: Refusal = "never"
    sweep: Sweep | None = None

    @property
    def answer_is_sure(self) -> bool:
        """False where the answer depends on when a cancel is heard, or may not be given at all."""
        return self.cancel_after_tokens is None and self.refusal == "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns that build on each other.

    ``category`` is the ``class`` of the file, for example ``code``. ``slot`` is the context that they run in,
    where a path can choose it.
    """

    id: str
    category: str
    system: str | None
    turns: tuple[Turn, ...]
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario file, with defaults filled in and files read.

    ``entry`` says how a turn is asked for: ``prompt`` sends the exact prompt, ``line`` types the user's text
    where a path can be typed to and leaves the template to the engine; other paths get the rendered prompt.
    ``grammar`` is one for all answers, or None.
    ``context_tokens`` is the size of the context that the scenario needs, None for any. With ``slots`` above
    1 an arm more runs so many of the conversations at once.
    """

    name: str
    title: str
    description: str
    entry: Entry
    temperature: float
    top_p: float
    conversations: tuple[Conversation, ...]
    grammar: Grammar | None = None
    context_tokens: int | None = None
    slots: int = 1

    @property
    def contexts(self) -> int:
        """How many contexts the conversations name, from 0 to the highest."""
        return 1 + max(conversation.slot for conversation in self.conversations)

    @property
    def cap_tokens(self) -> int:
        """The largest cap of any turn."""
        return max(turn.max_tokens for conversation in self.conversations for turn in conversation.turns)

    @property
    def worst_case_tokens(self) -> int:
        """The sum of all caps: what one cell decodes at most."""
        return sum(turn.max_tokens for conversation in self.conversations for turn in conversation.turns)

    @property
    def turn_count(self) -> int:
        """Turns over all conversations."""
        return sum(len(conversation.turns) for conversation in self.conversations)


def parse_scenario(text: str, source: str, read_text: Callable[[str], str]) -> Scenario:
    """Parse a scenario file.

    Args:
        text: the TOML text.
        source: the file's name, for messages.
        read_text: returns the text of a path named by a ``*_file`` key, relative to the scenario file; may
            raise OSError, UnicodeDecodeError or ScenarioError.

    Raises:
        ScenarioError: with every problem found, each with its line, key and remedy.
    """
    file = parse_tables(text, source, read_text)
    raise_problems(find_problems(file), locate_keys(text), source)
    return _build_scenario(file)


def _build_scenario(file: ScenarioFile) -> Scenario:
    conversations = tuple(
        Conversation(
            id=conversation.id,
            category=conversation.category,
            system=conversation.system,
            turns=tuple(_build_turn(turn, file.defaults.max_tokens) for turn in conversation.turn),
            slot=conversation.slot,
        )
        for conversation in file.conversation
    )
    return Scenario(
        name=file.name,
        title=file.title,
        description=file.description,
        entry=file.entry,
        temperature=file.defaults.temperature,
        top_p=file.defaults.top_p,
        conversations=conversations,
        grammar=file.grammar(),
        context_tokens=file.context_tokens,
        slots=file.slots,
    )


def _build_turn(turn: TurnFile, default_max_tokens: int | None) -> Turn:
    kind, text = turn.content()
    max_tokens = turn.max_tokens if turn.max_tokens is not None else default_max_tokens
    if turn.caps is not None:
        max_tokens = 1  # until the sweep is expanded
    assert max_tokens is not None, "the checks refuse a turn without a cap"  # noqa: S101
    return Turn(
        kind=kind,
        text=text,
        max_tokens=max_tokens,
        stop=tuple(turn.stop),
        expect=tuple(turn.expect),
        expect_prompt_tokens=turn.expect_prompt_tokens,
        expect_cached_tokens=turn.expect_cached_tokens,
        after=turn.after,
        same_as=tuple(turn.same_as),
        cancel_after_tokens=turn.cancel_after_tokens,
        refusal="expected" if turn.expect_refusal else "possible" if turn.may_refuse else "never",
        sweep=_build_sweep(turn),
    )


def _build_sweep(turn: TurnFile) -> Sweep | None:
    if turn.caps is not None:
        return Sweep(kind="cap", values=(turn.caps,))
    if turn.stops:
        return Sweep(kind="stop", values=tuple(turn.stops))
    if turn.draws is not None:
        return Sweep(kind="draw", values=(turn.draws,))
    return Sweep(kind="repeat", values=tuple(turn.repeats)) if turn.repeats else None


def build_turn_prompt(conversation: Conversation, answers: Sequence[str | bytes], turn_index: int) -> bytes:
    """Return the exact prompt of a turn, given the answers that this arm really gave to the turns before it.

    Answers are taken to the byte: one that ends inside a UTF-8 character goes into the next prompt like that.

    Raises:
        ValueError: ``answers`` does not hold one answer for each earlier turn.
    """
    _check_answers(conversation, answers, turn_index)
    turns = conversation.turns
    given = tuple(_to_bytes(answer) for answer in answers)
    chain = list_chain(turns, turn_index)
    if turns[chain[0]].kind == "prompt":
        return _join_raw(turns, given, chain)
    return render_messages(_list_messages(conversation.system, turns, given, chain))


def _check_answers(conversation: Conversation, answers: Sequence[str | bytes], turn_index: int) -> None:
    if len(answers) != turn_index:
        raise ValueError(
            f"turn {turn_index} of {conversation.id} needs {turn_index} answers, got {len(answers)}"
        )


def list_chain(turns: Sequence[Turn], turn_index: int) -> list[int]:
    """Return the indexes of the turns that a turn's prompt holds, oldest first, the turn itself last."""
    chain = [turn_index]
    while turns[chain[0]].kind != "prompt":
        after = turns[chain[0]].after
        parent = chain[0] - 1 if after is None else after - 1
        if parent < 0:
            break
        chain.insert(0, parent)
    return chain


def build_turn_line(conversation: Conversation, turn_index: int) -> bytes:
    """Return what a chat arm types for a turn of a ``line`` scenario: the user's text alone."""
    return conversation.turns[turn_index].text.encode("utf-8")


def build_turn_messages(
    conversation: Conversation, answers: Sequence[str | bytes], turn_index: int
) -> tuple[Message, ...]:
    """Return a turn as messages, oldest first, for an engine that puts the template around them itself.

    Raises:
        ValueError: ``answers`` does not hold one answer for each earlier turn, or a turn is raw text.
    """
    _check_answers(conversation, answers, turn_index)
    chain = list_chain(conversation.turns, turn_index)
    if any(conversation.turns[index].kind not in _ROLES for index in chain):
        raise ValueError(f"turn {turn_index} of {conversation.id} is raw text and no message")
    return _list_messages(conversation.system, conversation.turns, [*map(_to_bytes, answers)], chain)


def is_messages(scenario: Scenario) -> bool:
    """Say whether every turn is a message, so that no exact prompt is needed to ask for it."""
    return all(turn.kind in _ROLES for conversation in scenario.conversations for turn in conversation.turns)


def cut_at_stop(text: bytes, stop: Sequence[str]) -> bytes | None:
    """Return ``text`` up to the first occurrence of any stop string, or None when there is none."""
    positions = [text.find(word.encode("utf-8")) for word in stop]
    found = [position for position in positions if position >= 0]
    return text[: min(found)] if found else None


def _to_bytes(answer: str | bytes) -> bytes:
    return answer.encode("utf-8") if isinstance(answer, str) else answer


def _join_raw(turns: Sequence[Turn], answers: Sequence[bytes], chain: Sequence[int]) -> bytes:
    # A prompt that was made from an answer may hold bytes that are no UTF-8, written as surrogates.
    texts = [turns[index].text.encode("utf-8", "surrogateescape") for index in chain]
    given = [answers[index] for index in chain[:-1]]
    return b"".join(text + answer for text, answer in zip(texts, (*given, b""), strict=True))


def _list_messages(
    system: str | None, turns: Sequence[Turn], answers: Sequence[bytes], chain: Sequence[int]
) -> tuple[Message, ...]:
    messages = [Message(role="system", text=system.encode("utf-8"))] if system is not None else []
    for index in chain:
        messages.append(Message(role=_ROLES[turns[index].kind], text=turns[index].text.encode("utf-8")))
        if index != chain[-1]:
            messages.append(Message(role="assistant", text=answers[index]))
    return tuple(messages)
