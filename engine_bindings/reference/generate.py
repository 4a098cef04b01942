"""The decode loop: ``Engine.step`` is the whole of speculative decoding over a set of turns."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine_bindings.reference.drafting import Drafter, Guard
from engine_bindings.reference.model import Segment
from engine_bindings.reference.rules import Block, Finish, Rules
from engine_bindings.reference.sampling import Draws, Margin, Sampling, choose_token, measure_margin
from engine_bindings.reference.slot import MainModel, Slot

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn that was asked for: the whole context it answers, and how.

    ``exact`` is False for an interactive line, which always continues what the slot holds.
    """

    request_id: int
    slot: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    speculate: bool = True
    exact: bool = True


class Turn:
    """A request while it is answered: what comes next, and what was counted."""

    def __init__(self, request: Request, slot: Slot, limit: int, draws: Draws, guard: Guard) -> None:
        self.request = request
        self.slot = slot
        self.limit = limit
        self.draws = draws
        self.guard = guard
        self.next_token = -1
        self.next_margin: Margin | None = None
        self.taken = -1
        self.cached_tokens = 0
        self.finish: Finish | None = None
        self.emitted = 0
        self.drafted = 0
        self.accepted = 0
        self.forward_s: list[float] = []
        self.started_s = time.perf_counter()
        self.prefilled_s = self.started_s
        self.ended_s = self.started_s

    @property
    def forwards(self) -> int:
        """Decode forwards that were run for this turn."""
        return len(self.forward_s)

    @property
    def prefill_tokens(self) -> int:
        """Positions of the prompt that were not in the KV."""
        return len(self.request.prompt) - self.cached_tokens

    @property
    def room(self) -> int:
        """How many more tokens the turn may emit."""
        return self.limit - self.emitted


class Listener(Protocol):
    """Who hears of what a turn does, at the moment it happens."""

    def on_prefix(self, turn: Turn, /) -> None:
        """Hear that the prompt was matched against the KV; prefill comes next."""
        ...

    def on_tokens(self, turn: Turn, tokens: Sequence[int], /) -> None:
        """Hear of tokens that were emitted together."""
        ...

    def on_margin(self, turn: Turn, margin: Margin, /) -> None:
        """Hear how close a greedy choice was (of a stop token too); only when margins are wanted."""
        ...

    def on_pause(self, turn: Turn, guard: Guard, /) -> None:
        """Hear that the guard pauses drafting."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds for every turn of an engine."""

    depth: int
    stops: frozenset[int]
    seed: int | None = None
    margins: bool = False
    guard_percent: int = 0
    guard_window_tokens: int = 24


@dataclass(slots=True, kw_only=True)
class Engine:
    """Slots, the turns that run on them, and one forward for all of them per step."""

    model: MainModel
    slots: tuple[Slot, ...]
    drafter: Drafter
    listener: Listener
    options: Options
    rules: Rules
    active: list[Turn] = field(default_factory=list)

    def start(self, request: Request) -> Turn:
        """Begin a turn: match the prompt with the slot's KV, compute the rest, choose the first token."""
        slot = self.slots[request.slot]
        rules, options = self.rules, self.options
        limit = rules.turn_limit(request.max_tokens, len(request.prompt), slot.context_tokens)
        draws = Draws.for_request(options.seed, request.prompt)
        turn = Turn(request, slot, limit, draws, Guard(options.guard_percent, options.guard_window_tokens))
        if limit < 1:
            turn.finish = "length"
        else:
            self._prefill(turn)
        turn.prefilled_s = time.perf_counter()
        self.active.append(turn)
        return turn

    def step(self) -> list[Turn]:
        """Advance every active turn by one forward and return the turns that ended.

        Each turn takes its next token and emits it, unless it is a stop. Drafts are appended, one forward
        computes all turns' rows, the leading drafts that the rows confirm are emitted, the rest is undone.
        """
        takers = [turn for turn in self.active if turn.finish is None and self._take(turn)]
        if takers:
            drafts = [self._draft(turn) for turn in takers]
            began = time.perf_counter()
            segments = [
                Segment(cache=turn.slot.cache, tokens=(turn.taken, *guess), start=turn.slot.length)
                for turn, guess in zip(takers, drafts, strict=True)
            ]
            rows = self.model.forward(segments)
            took_s = time.perf_counter() - began
            first = 0
            for turn, guess in zip(takers, drafts, strict=True):
                turn.forward_s.append(took_s)
                span = slice(first, first + 1 + len(guess))
                self._settle(turn, guess, rows.logits[span], rows.hidden[span])
                first = span.stop
        return self._retire()

    def end(self, turn: Turn, finish: Finish) -> None:
        """End an active turn from outside, between two steps; everything it emitted is in its KV."""
        turn.finish = turn.finish or finish
        turn.ended_s = time.perf_counter()
        self.active.remove(turn)

    def _prefill(self, turn: Turn) -> None:
        slot, prompt, rules = turn.slot, turn.request.prompt, self.rules
        turn.cached_tokens = rules.match_prefix(slot.history, prompt)
        self.listener.on_prefix(turn)
        spans = rules.prefill_spans(turn.cached_tokens, len(prompt))
        slot.truncate(spans[0][0], rules.draft_rows_kept(slot.draft_rows, spans[0][0]))
        for start, end in spans:
            segment = Segment(cache=slot.cache, tokens=prompt[start:end], start=start)
            rows = self.model.forward([segment], logits_for="last")
            slot.commit(prompt[start:end], rows.hidden, end)
            if turn.request.speculate:
                self.drafter.follow(slot)
        self._plan_next(turn, rows.logits[-1], self._choose(turn, rows.logits[-1:], len(prompt))[0])

    def _take(self, turn: Turn) -> bool:
        """Emit the chosen token; return whether a forward must take it in."""
        block = self.rules.cut_block((turn.next_token,), self.options.stops, turn.room)
        if turn.next_margin:
            self.listener.on_margin(turn, turn.next_margin)
        self._emit(turn, block)
        turn.taken = turn.next_token
        return self.rules.takes_in(block)

    def _draft(self, turn: Turn) -> list[int]:
        slot = turn.slot
        room_rows = slot.context_tokens - slot.length - 1
        depth = self.rules.draft_depth(self.options.depth, turn.room, room_rows)
        if not turn.request.speculate or not depth:
            return []
        if turn.guard.starts_pause():
            self.listener.on_pause(turn, turn.guard)
        if turn.guard.skips_forward():
            return []
        return self.drafter.propose(slot, turn.taken, depth)

    def _settle(self, turn: Turn, drafts: list[int], logits: FloatArray, hidden: FloatArray) -> None:
        """Accept the drafts that the verify rows confirm, emit them, and keep exactly their KV rows."""
        rules, slot = self.rules, turn.slot
        chosen = self._choose(turn, logits, slot.length + 1)
        accepted = rules.count_accepted(drafts, chosen)
        block = Block(tokens=(), finish=None)
        if accepted:
            block = rules.cut_block(drafts[:accepted], self.options.stops, turn.room)
        kept = len(block.tokens)
        for row in logits[: kept + (block.finish == "stop")] if self._wants_margins(turn) else ():
            self.listener.on_margin(turn, measure_margin(row))
        slot.commit((turn.taken, *block.tokens), hidden, rules.committed_tokens(slot.length, kept))
        self._emit(turn, block)
        turn.drafted += len(drafts)
        turn.accepted += kept
        turn.guard.count(len(drafts), kept)
        row = rules.next_row(kept)
        self._plan_next(turn, logits[row], chosen[row])

    def _choose(self, turn: Turn, logits: FloatArray, position: int) -> list[int]:
        """Choose one token from each row of ``logits`` [n, V], for ``position`` and the ones behind it."""
        sampling = turn.request.sampling
        if sampling.greedy:
            chosen: list[int] = logits.argmax(axis=1).tolist()
            return chosen
        return [choose_token(row, sampling, turn.draws.at(position + i)) for i, row in enumerate(logits)]

    def _plan_next(self, turn: Turn, logits: FloatArray, token: int) -> None:
        turn.next_token = token
        turn.next_margin = measure_margin(logits) if self._wants_margins(turn) else None

    def _emit(self, turn: Turn, block: Block) -> None:
        turn.finish = turn.finish or block.finish
        if block.tokens:
            turn.emitted += len(block.tokens)
            self.listener.on_tokens(turn, block.tokens)

    def _wants_margins(self, turn: Turn) -> bool:
        return self.options.margins and turn.request.sampling.greedy

    def _retire(self) -> list[Turn]:
        ended = [turn for turn in self.active if turn.finish is not None]
        for turn in ended:
            turn.ended_s = time.perf_counter()
            self.active.remove(turn)
        return ended
