"""Delta debugging of a failing case: offers ever smaller cases and keeps those that fail in the same way.

It runs nothing itself: :meth:`Minimizer.search` yields cases and is sent what became of each.
"""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine_bindings.errors import ScenarioError
from harness.failing import Failing
from harness.scenario import Conversation, Scenario, Turn, list_chain, parse_scenario
from harness.scenario_text import render_scenario

T = TypeVar("T")

# Of an answer that is put into the prompt, the end that is left to answer doubles from here.
FIRST_LEFT_BYTES = 8
# A pass over everything may open a way for another one; in practice the second or third changes nothing.
MAX_PASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something to run: one scenario, the depth of the arms that speculate, and settings of the user."""

    scenario: Scenario
    depth: int
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def prompt_bytes(self) -> int:
        """Bytes of all texts."""
        turns = [turn for conversation in self.scenario.conversations for turn in conversation.turns]
        systems = [conversation.system or "" for conversation in self.scenario.conversations]
        return sum(len(text.encode()) for text in (*systems, *(turn.text for turn in turns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A case on offer, and what it tries."""

    name: str
    case: Case


Search = Generator[Step, Failing | None, None]
Trial = Generator[Step, Failing | None, bool]


class Minimizer:
    """Shrinks a failing case; ``best`` is the smallest that was seen to fail, None before the first."""

    def __init__(self, case: Case, failing: Failing) -> None:
        self.best: Case | None = None
        self.failing = failing
        scenario = strip_expectations(case.scenario, keep_prefix=failing.verdict_class == "prefix-reuse")
        self._whole = replace(case, scenario=scenario)
        self._offered: set[Case] = set()

    def search(self) -> Search:
        """Yield cases to run; to be sent how each fails in the same way as the first, or None."""
        yield from self._reproduce()
        for _ in range(MAX_PASSES if self.best else 0):
            before = self.best
            yield from self._drop_conversations()
            yield from self._drop_turns()
            yield from self._lower_caps()
            yield from self._join_history()
            yield from self._fold_answer()
            yield from self._shorten_texts()
            yield from self._drop_settings()
            if self.best == before:
                return

    def _reproduce(self) -> Search:
        """Find the part of the whole case that fails, from the least that could to all of it."""
        scenario = self._whole.scenario
        ids = [conversation.id for conversation in scenario.conversations]
        last = ids.index(self.failing.conversation)
        own = scenario.conversations[last]
        cut = keep_turns(own, range(self.failing.turn + 1)) or own
        until = (*scenario.conversations[:last], cut)
        for name, conversations in (
            ("its conversation alone", (cut,)),
            ("all up to its turn", until),
            ("the whole scenario", scenario.conversations),
        ):
            case = replace(self._whole, scenario=replace(scenario, conversations=conversations))
            if (yield from self._try(name, case)):
                return

    def _try(self, name: str, case: Case | None) -> Trial:
        """Offer a case that is new and valid; keep it when it fails."""
        if case is None or case in self._offered or not self._is_sound(case):
            return False
        self._offered.add(case)
        failing = yield Step(name=name, case=case)
        if failing is None:
            return False
        self.best, self.failing = case, failing
        return True

    def _is_sound(self, case: Case) -> bool:
        """Say whether a case can be run and shows something: with no room for drafts no engine makes any."""
        needs_drafts = self.failing.symptom == "void" and self.failing.contrast.a.depth
        if needs_drafts and case.scenario.cap_tokens < case.depth + 2:
            return False
        return is_valid(case.scenario)

    @property
    def _case(self) -> Case:
        assert self.best is not None, "search goes on only when something failed"  # noqa: S101
        return self.best

    def _drop_conversations(self) -> Search:
        def build(kept: Sequence[Conversation]) -> Case | None:
            case = self._case
            return replace(case, scenario=replace(case.scenario, conversations=tuple(kept))) if kept else None

        yield from self._reduce("conversations", self._case.scenario.conversations, build)

    def _drop_turns(self) -> Search:
        for index in reversed(range(len(self._case.scenario.conversations))):
            conversation = self._case.scenario.conversations[index]

            def build(
                kept: Sequence[int], index: int = index, conversation: Conversation = conversation
            ) -> Case | None:
                smaller = keep_turns(conversation, kept)
                return _with_conversation(self._case, index, smaller) if smaller else None

            yield from self._reduce("turns", range(len(conversation.turns)), build)
            own = self._case.scenario.conversations[index]
            if own.system is not None:
                bare = _with_conversation(self._case, index, replace(own, system=None))
                yield from self._try("system message", bare)

    def _join_history(self) -> Search:
        """Put the exact prompt of the failing turn in place of the turns before it."""
        for index, conversation in enumerate(self._case.scenario.conversations):
            prompt = self.failing.prompt
            if conversation.id != self.failing.conversation or prompt is None or not _is_text(prompt):
                continue
            turn = conversation.turns[self.failing.turn]
            alone = replace(turn, kind="prompt", text=prompt.decode(), after=None, same_as=())
            if len(conversation.turns) > 1 and self._case.scenario.entry == "prompt":
                joined = replace(conversation, system=None, turns=(alone,))
                yield from self._try("history in one prompt", _with_conversation(self._case, index, joined))
            return

    def _fold_answer(self) -> Search:
        """Put what both arms answer alike into the prompt, so that they need not give it again."""
        for index, conversation in enumerate(self._case.scenario.conversations):
            number = self.failing.turn
            if conversation.id != self.failing.conversation or conversation.turns[number].kind != "prompt":
                continue
            text, common = conversation.turns[number].text, self.failing.common
            # From all of it to none: the least that is left to answer comes first.
            left = 0
            while left < len(common):
                folded = common[: len(common) - left].decode("utf-8", "ignore")
                if folded and (
                    yield from self._try("answer", _with_turn(self._case, index, number, text=text + folded))
                ):
                    yield from self._lower_cap(index, number)
                    return
                left = 2 * left or FIRST_LEFT_BYTES
            return

    def _shorten_texts(self) -> Search:
        for index, conversation in enumerate(self._case.scenario.conversations):
            for number in range(len(conversation.turns)):
                yield from self._shorten(index, number)

    def _shorten(self, index: int, number: int) -> Search:
        for name, pieces in (("lines", _split_lines), ("words", _split_words)):

            def build(kept: Sequence[str]) -> Case:
                return _with_turn(self._case, index, number, text="".join(kept))

            text = self._case.scenario.conversations[index].turns[number].text
            yield from self._reduce(name, pieces(text), build)

    def _lower_caps(self) -> Search:
        for index in reversed(range(len(self._case.scenario.conversations))):
            if any(turn.same_as for turn in self._case.scenario.conversations[index].turns):
                yield from self._lower_caps_together(index)
            for number in reversed(range(len(self._case.scenario.conversations[index].turns))):
                yield from self._lower_cap(index, number)

    def _lower_caps_together(self, index: int) -> Search:
        """Halve the way to the lowest limit on all caps of a conversation that fails.

        A prompt that is asked twice is one request only under one cap, so one cap alone cannot be lowered.
        """
        low, high = 1, max(turn.max_tokens for turn in self._case.scenario.conversations[index].turns)
        while low < high:
            middle = (low + high) // 2
            conversation = self._case.scenario.conversations[index]
            turns = tuple(
                replace(
                    turn, max_tokens=min(turn.max_tokens, max(middle, (turn.cancel_after_tokens or 0) + 1))
                )
                for turn in conversation.turns
            )
            case = _with_conversation(self._case, index, replace(conversation, turns=turns))
            if (yield from self._try("caps", case)):
                high = middle
            else:
                low = middle + 1

    def _lower_cap(self, index: int, number: int) -> Search:
        """Halve the way to the lowest cap that fails, or to some low one where more tokens may fail less."""
        turn = self._case.scenario.conversations[index].turns[number]
        low, high = (turn.cancel_after_tokens or 0) + 1, turn.max_tokens
        shown = self._tokens_to_show(index, number)
        if shown < high:
            enough = _with_turn(self._case, index, number, max_tokens=shown)
            high = shown if (yield from self._try("cap", enough)) else high
        while low < high:
            middle = (low + high) // 2
            if (yield from self._try("cap", _with_turn(self._case, index, number, max_tokens=middle))):
                high = middle
            else:
                low = middle + 1

    def _tokens_to_show(self, index: int, number: int) -> int:
        """Return the tokens that the failing turn needs to show its difference, as far as that is known."""
        turn = self._case.scenario.conversations[index].turns[number]
        place = (self._case.scenario.conversations[index].id, number)
        difference = self.failing.difference
        if place != (self.failing.conversation, self.failing.turn) or difference is None:
            return turn.max_tokens
        return turn.max_tokens if difference.token_index is None else difference.token_index + 1

    def _drop_settings(self) -> Search:
        for index, conversation in enumerate(self._case.scenario.conversations):
            for number, turn in enumerate(conversation.turns):
                for key, plain in (("stop", ()), ("cancel_after_tokens", None), ("same_as", ())):
                    if getattr(turn, key) != plain:
                        yield from self._try(key, _with_turn(self._case, index, number, **{key: plain}))
        if self._case.scenario.context_tokens is not None:
            scenario = replace(self._case.scenario, context_tokens=None)
            yield from self._try("context size", replace(self._case, scenario=scenario))
        for setting in self._case.settings:
            kept = tuple(other for other in self._case.settings if other != setting)
            yield from self._try(f"setting {setting[0]}", replace(self._case, settings=kept))
        speculates = self.failing.contrast.a.depth or self.failing.contrast.b.depth
        for depth in range(1, self._case.depth if speculates else 1):
            if (yield from self._try("depth", replace(self._case, depth=depth))):
                return

    def _reduce(
        self, name: str, items: Sequence[T], build: Callable[[Sequence[T]], Case | None]
    ) -> Generator[Step, Failing | None, None]:
        """Drop ever smaller runs of ``items`` while what is left still fails (ddmin, by complements)."""
        kept = list(items)
        size = len(kept) // 2
        while size:
            start = 0
            while start < len(kept) and len(kept) > 1:
                smaller = kept[:start] + kept[start + size :]
                if smaller and (yield from self._try(name, build(smaller))):
                    kept = smaller
                else:
                    start += size
            size //= 2


def strip_expectations(scenario: Scenario, *, keep_prefix: bool = False) -> Scenario:
    """Return the scenario without what is only known of its answers, which no engine sees.

    ``keep_prefix`` keeps what is declared of prefixes; it holds only for prompts of the declared length.
    """

    def strip(turn: Turn) -> Turn:
        turn = replace(turn, expect=())
        return turn if keep_prefix else replace(turn, expect_prompt_tokens=None, expect_cached_tokens=None)

    conversations = tuple(
        replace(conversation, turns=tuple(map(strip, conversation.turns)))
        for conversation in scenario.conversations
    )
    return replace(scenario, conversations=conversations)


def is_valid(scenario: Scenario) -> bool:
    """Say whether the scenario can be written to a file and read again as the same."""

    def read_grammar(_: str) -> str:
        return scenario.grammar.text if scenario.grammar else ""

    try:
        return parse_scenario(render_scenario(scenario), "", read_grammar) == scenario
    except ScenarioError:
        return False


def keep_turns(conversation: Conversation, kept: Sequence[int]) -> Conversation | None:
    """Return the conversation with the turns ``kept`` (indexes, rising); None without any.

    A turn whose parent is dropped builds on the closest turn before that one which is kept. A relation that
    needs a dropped turn is dropped with it.
    """
    numbers = {index: number for number, index in enumerate(kept, start=1)}
    turns: list[Turn] = []
    for index in kept:
        ancestors = list_chain(conversation.turns, index)[:-1]
        parent = next((numbers[i] for i in reversed(ancestors) if i in numbers), 0)
        natural = parent == len(turns) or conversation.turns[index].kind == "prompt"
        same_as = tuple(numbers.get(number - 1, 0) for number in conversation.turns[index].same_as)
        turns.append(
            replace(
                conversation.turns[index],
                after=None if natural else parent,
                same_as=same_as if all(same_as) else (),
            )
        )
    return replace(conversation, turns=tuple(turns)) if turns else None


def _with_conversation(case: Case, index: int, conversation: Conversation) -> Case:
    conversations = list(case.scenario.conversations)
    conversations[index] = conversation
    return replace(case, scenario=replace(case.scenario, conversations=tuple(conversations)))


def _with_turn(case: Case, index: int, number: int, **changes: object) -> Case:
    conversation = case.scenario.conversations[index]
    turns = list(conversation.turns)
    turns[number] = replace(turns[number], **changes)  # type: ignore[arg-type]
    return _with_conversation(case, index, replace(conversation, turns=tuple(turns)))


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _split_lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _split_words(text: str) -> list[str]:
    """Split before each word and each special token; joined again they are the text."""
    return [piece for piece in re.split(r"(?=<\||\[gMASK\]|<sop>|(?<=\S)\s)", text) if piece]
