"""The decode loop: ``Engine.step`` is the whole of speculative decoding over a set of turns."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine_bindings.reference.constraint import UNGUIDED, Draft, Guide, Origin
from engine_bindings.reference.drafting import Guard
from engine_bindings.reference.model import Segment
from engine_bindings.reference.rules import Block, Finish, Rules, Shape
from engine_bindings.reference.sampling import Draws, Margin, Sampling, Score, measure_margin, score_token
from engine_bindings.reference.slot import Drafter, MainModel, Slot

FloatArray = NDArray[np.float32]
PICKED: tuple[Origin] = ("p",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn that was asked for: the whole context it answers, and how.

    ``exact`` is False for an interactive line, which always continues what the slot holds. ``depth`` and
    ``seed`` None are the engine's. ``alternatives`` is how many other tokens every token is told with, None
    when nothing is told but the tokens.
    """

    request_id: int
    slot: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    speculate: bool = True
    exact: bool = True
    depth: int | None = None
    seed: int | None = None
    ignore_stops: bool = False
    alternatives: int | None = None


class Pick(NamedTuple):
    """An emitted token's score, and its origin: p a row's choice, d a draft, g forced by the grammar."""

    origin: Origin
    score: Score


class Turn:
    """A request while it is answered: what comes next, and what was counted.

    ``next_logits`` is the row that the next token was chosen from, before any constraint. The drafted and
    accepted counts hold all drafts; those that a grammar forced are also counted apart. ``matched_tokens`` of
    the prompt were in the KV; ``cached_tokens`` is what is reported of it.
    """

    def __init__(self, request: Request, slot: Slot, limit: int, draws: Draws, guard: Guard) -> None:
        self.request = request
        self.slot = slot
        self.limit = limit
        self.draws = draws
        self.guard = guard
        self.guide: Guide = UNGUIDED
        self.depth = 0
        self.stops: frozenset[int] = frozenset()
        self.next_token = -1
        self.next_margin: Margin | None = None
        self.next_logits: FloatArray = np.zeros(0, np.float32)
        self.taken = -1
        self.matched_tokens = 0
        self.cached_tokens = 0
        self.finish: Finish | None = None
        self.emitted = 0
        self.drafted = 0
        self.accepted = 0
        self.forced_drafted = 0
        self.forced_accepted = 0
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
        return len(self.request.prompt) - self.matched_tokens

    @property
    def room(self) -> int:
        """How many more tokens the turn may emit."""
        return self.limit - self.emitted

    def count(self, draft: Draft, kept: int, *, drafted: int, accepted: int) -> None:
        """Take in a verified draft of which ``kept`` tokens were emitted, and what is counted of it."""
        guessed_kept = draft.count_guessed(kept)
        self.drafted += drafted
        self.accepted += accepted
        self.forced_drafted += len(draft.tokens) - draft.guessed
        self.forced_accepted += kept - guessed_kept
        self.guard.count(draft.guessed, guessed_kept)


class Listener(Protocol):
    """Who hears of what a turn does, at the moment it happens."""

    def on_prefix(self, turn: Turn, /) -> None:
        """Hear that the prompt was matched against the KV; prefill comes next."""
        ...

    def on_tokens(self, turn: Turn, tokens: Sequence[int], picks: Sequence[Pick], /) -> None:
        """Hear of tokens that were emitted together; there are no picks unless the request wants them."""
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
    """Slots, the turns that run on them, and one forward for all of them per step.

    ``interrupt`` is asked between two chunks of a prompt; what it returns ends the turn there.
    """

    model: MainModel
    slots: tuple[Slot, ...]
    drafter: Drafter
    listener: Listener
    options: Options
    rules: Rules
    active: list[Turn] = field(default_factory=list)
    interrupt: Callable[[Turn], Finish | None] = lambda _turn: None

    def start(self, request: Request, guide: Guide = UNGUIDED) -> Turn:
        """Begin a turn: match the prompt with the slot's KV, compute the rest, choose the first token."""
        slot = self.slots[request.slot]
        rules, options = self.rules, self.options
        limit = rules.turn_limit(request.max_tokens, len(request.prompt), slot.context_tokens)
        draws = rules.draw_numbers(options.seed if request.seed is None else request.seed, request.prompt)
        turn = Turn(request, slot, limit, draws, Guard(options.guard_percent, options.guard_window_tokens))
        turn.guide = guide
        turn.stops = rules.turn_stops(options.stops, guide.ends, ignore=request.ignore_stops)
        turn.depth = rules.turn_depth(options.depth, request.depth) if request.speculate else 0
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
            segments = [build_segment(turn, draft) for turn, draft in zip(takers, drafts, strict=True)]
            rows = self.model.forward(segments)
            took_s = time.perf_counter() - began
            spans = self.rules.row_spans([len(segment.tokens) for segment in segments])
            for turn, draft, span in zip(takers, drafts, spans, strict=True):
                turn.forward_s.append(took_s)
                shape = Shape(len(rows.logits), len(takers), turn.matched_tokens)
                logits = self.rules.seen_logits(rows.logits[span], shape)
                self._settle(turn, draft, logits, rows.hidden[span])
        return self._retire()

    def end(self, turn: Turn, finish: Finish) -> None:
        """End an active turn from outside, between two steps; everything it emitted is in its KV."""
        turn.finish = turn.finish or finish
        turn.ended_s = time.perf_counter()
        self.active.remove(turn)

    def _prefill(self, turn: Turn) -> None:
        slot, prompt, rules = turn.slot, turn.request.prompt, self.rules
        turn.matched_tokens = rules.match_prefix(slot.history, prompt)
        turn.cached_tokens = rules.reported_cached(turn.matched_tokens)
        self.listener.on_prefix(turn)
        spans = rules.prefill_spans(turn.matched_tokens, len(prompt))
        rules.adopt_prefix(slot, spans[0][0])
        for start, end in spans:
            segment = Segment(cache=slot.cache, tokens=prompt[start:end], start=start)
            rows = self.model.forward([segment], logits_for="last")
            slot.commit(prompt[start:end], rows.hidden)
            if turn.depth:
                self.drafter.follow(slot)
            if end < len(prompt):
                turn.finish = self.interrupt(turn)
            if turn.finish:
                return
        shape = Shape(len(prompt) - turn.matched_tokens, 1, turn.matched_tokens)
        logits = rules.seen_logits(rules.opening_row(rows.logits), shape)
        limited = turn.guide.limit(logits, ())
        if turn.guide.failure:
            turn.finish = "failed"
            return
        self._plan_next(turn, logits[0], limited[0], self._choose(turn, limited, len(prompt), ())[0])

    def _take(self, turn: Turn) -> bool:
        """Emit the chosen token; return whether a forward must take it in."""
        block = self.rules.cut_block((turn.next_token,), turn.stops, turn.room)
        if turn.next_margin:
            self.listener.on_margin(turn, turn.next_margin)
        self._emit(turn, block, turn.next_logits[None], PICKED)
        turn.taken = turn.next_token
        return self.rules.takes_in(block)

    def _draft(self, turn: Turn) -> Draft:
        """Return what is forced behind the token that was just taken, else guesses that may come there."""
        rules, slot = self.rules, turn.slot
        room_rows = slot.context_tokens - slot.cache.length - 1
        span = rules.forced_depth(turn.depth, turn.guide.span_tokens)
        forced = turn.guide.force(rules.draft_depth(span, turn.room, room_rows))
        depth = rules.draft_depth(turn.depth, turn.room, room_rows)
        if forced.tokens or not depth:
            return forced
        if turn.guard.starts_pause():
            self.listener.on_pause(turn, turn.guard)
        if turn.guard.skips_forward():
            return turn.guide.check((), depth)
        return turn.guide.check(self.drafter.propose(slot, turn.taken, depth), depth)

    def _settle(self, turn: Turn, draft: Draft, logits: FloatArray, hidden: FloatArray) -> None:
        """Accept the drafts that the verify rows confirm, emit them, and keep exactly their KV rows."""
        rules, slot = self.rules, turn.slot
        limited = turn.guide.limit(logits, rules.grammar_drafts(draft.tokens))
        if turn.guide.failure:
            # Nothing may be chosen from these rows; the token that was taken is emitted and stays.
            self._keep(turn, (), hidden)
            turn.finish = turn.finish or "failed"
            turn.count(draft, 0, drafted=rules.counted_drafts(draft.tokens), accepted=0)
            return
        chosen = self._choose(turn, limited, slot.length + 1, draft.tokens)
        accepted = rules.count_accepted(draft.tokens, chosen)
        block = Block(tokens=(), finish=None)
        if accepted:
            block = rules.cut_accepted(draft.tokens[:accepted], turn.stops, turn.room)
        kept = len(block.tokens)
        for margin_row in limited[: kept + (block.finish == "stop")] if self._wants_margins(turn) else ():
            self.listener.on_margin(turn, measure_margin(margin_row))
        self._keep(turn, rules.kept_drafts(draft.tokens[:accepted], block), hidden)
        self._emit(turn, block, logits, draft.origins, draft.tokens[kept:])
        slot.rejections += kept < len(draft.tokens)
        drafted = rules.counted_drafts(draft.tokens)
        turn.count(draft, kept, drafted=drafted, accepted=rules.counted_accepted(draft.tokens, chosen, kept))
        row = rules.next_row(kept)
        self._plan_next(turn, logits[row], limited[row], chosen[row])

    def _keep(self, turn: Turn, drafts: Sequence[int], hidden: FloatArray) -> None:
        """Take the token and the ``drafts`` that stay into the context, and undo a forward's other rows."""
        rules, slot = self.rules, turn.slot
        start = slot.cache.length - len(hidden)
        rules.roll_back(slot, rules.committed_tokens(start, len(drafts), len(hidden)))
        slot.commit((turn.taken, *drafts), hidden)

    def _choose(self, turn: Turn, logits: FloatArray, position: int, drafts: Sequence[int]) -> list[int]:
        return self.rules.choose(logits, turn.request.sampling, turn.draws, position, drafts)

    def _plan_next(self, turn: Turn, logits: FloatArray, limited: FloatArray, token: int) -> None:
        turn.next_token = token
        turn.next_logits = logits
        turn.next_margin = measure_margin(limited) if self._wants_margins(turn) else None

    def _emit(
        self,
        turn: Turn,
        block: Block,
        logits: FloatArray,
        origins: Sequence[Origin],
        rejected: Sequence[int] = (),
    ) -> None:
        """Emit a block whose tokens were chosen from the rows ``logits``; ``rejected`` drafts followed it."""
        turn.finish = turn.finish or block.finish
        turn.guide.take(self.rules.grammar_takes(block.tokens, rejected))
        if turn.guide.failure:
            turn.finish = turn.finish or "failed"
        if block.tokens:
            tokens = self.rules.once(block.tokens, turn.emitted)
            turn.emitted += len(tokens)
            shown = self.rules.shown_tokens(tokens)
            self.listener.on_tokens(turn, shown, self._explain(turn, shown, logits, origins))

    def _explain(
        self, turn: Turn, tokens: Sequence[int], logits: FloatArray, origins: Sequence[Origin]
    ) -> tuple[Pick, ...]:
        count = turn.request.alternatives
        if count is None:
            return ()
        rows = zip(origins, tokens, logits, strict=False)
        return tuple(
            Pick(origin, self.rules.reported_score(score_token(row, token, count), drafted=origin == "d"))
            for origin, token, row in rows
        )

    def _wants_margins(self, turn: Turn) -> bool:
        return self.options.margins and turn.request.sampling.greedy

    def _retire(self) -> list[Turn]:
        ended = [turn for turn in self.active if turn.finish is not None]
        for turn in ended:
            turn.ended_s = time.perf_counter()
            self.active.remove(turn)
        return ended


def build_segment(turn: Turn, draft: Draft) -> Segment:
    """Return the rows that a turn adds to a forward: the token that was taken, and drafts to verify."""
    cache = turn.slot.cache
    return Segment(cache=cache, tokens=(turn.taken, *draft.tokens), start=cache.length)
