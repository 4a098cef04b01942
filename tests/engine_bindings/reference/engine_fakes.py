"""A model whose logits depend on every KV row below a position, so that one wrong row changes the text."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine_bindings.reference.constraint import UNGUIDED, Guide
from engine_bindings.reference.drafting import Guard, MtpDrafter
from engine_bindings.reference.generate import Engine, Options, Pick, Request, Turn
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.sampling import Margin, Sampling
from engine_bindings.reference.slot import Slot

GREEDY = Sampling(temperature=0.0, top_p=1.0)
VOCAB = 16
NO_STOPS: frozenset[int] = frozenset()


class FakeCache:
    """KV rows that are simply the tokens; rows beyond the length stay, as stale rows do."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.length = 0
        self.draft_rows: list[tuple[int, float]] = []

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)


class FakeRows:
    def __init__(self, hidden: np.ndarray, logits: np.ndarray) -> None:
        self.hidden = hidden
        self.logits = logits


class FakeModel:
    """Logits are a hash of the rows; the head guesses right except at some positions."""

    def __init__(self, *, vocab: int = VOCAB, miss_every: int = 3) -> None:
        self.vocab = vocab
        self.miss_every = miss_every
        self.forwards = 0
        self.known: dict[int, np.ndarray] = {}
        self.drafted_from: list[tuple[int, int]] = []

    def logits(self, rows: Sequence[int]) -> np.ndarray:
        seed = zlib.crc32(bytes(rows))
        if seed not in self.known:
            noise = np.random.default_rng(seed).standard_normal(self.vocab)
            self.known[seed] = noise.astype(np.float32) * 2
        return self.known[seed]

    def hidden(self, rows: Sequence[int]) -> float:
        return float(zlib.crc32(bytes(rows)) % 65521)

    def forward(self, segments: Sequence[Any], *, logits_for: str = "all") -> Any:
        self.forwards += 1
        hidden, logits = [], []
        for segment in segments:
            cache, end = segment.cache, segment.start + len(segment.tokens)
            assert segment.start <= cache.length
            cache.rows[segment.start : end] = segment.tokens
            cache.length = end
            prefixes = [cache.rows[: p + 1] for p in range(segment.start, end)]
            hidden += [[self.hidden(rows)] for rows in prefixes]
            logits += [self.logits(rows) for rows in (prefixes if logits_for == "all" else prefixes[-1:])]
        return FakeRows(np.array(hidden, np.float32), np.array(logits, np.float32))

    def absorb(self, cache: Any, tokens_after: Sequence[int], hidden: np.ndarray, start: int) -> None:
        """Check every pair: the hidden row of a position stands with the token after it."""
        assert len(tokens_after) == len(hidden) > 0
        assert start <= len(cache.draft_rows)
        pairs = zip(tokens_after, hidden[:, 0].tolist(), strict=True)
        cache.draft_rows[start:] = list(pairs)
        for position, (_, value) in enumerate(cache.draft_rows):
            assert value == self.hidden(cache.rows[: position + 1])
        followers = [token for token, _ in cache.draft_rows]
        assert followers[:-1] == cache.rows[1 : len(followers)]

    def draft(
        self, cache: Any, tokens_after: Sequence[int], hidden: np.ndarray, start: int, depth: int
    ) -> list[int]:
        self.absorb(cache, tokens_after, hidden, start)
        end = start + len(tokens_after)
        self.drafted_from.append((start, end))
        rows = [*cache.rows[:end], tokens_after[-1]]
        drafts: list[int] = []
        for _ in range(depth):
            token = int(self.logits(rows).argmax())
            if (len(rows) + zlib.crc32(bytes(rows))) % self.miss_every == 0:
                token = (token + 1) % self.vocab
            drafts.append(token)
            rows.append(token)
        return drafts

    def continue_greedily(self, prompt: Sequence[int], count: int) -> list[int]:
        rows = list(prompt)
        for _ in range(count):
            rows.append(int(self.logits(rows).argmax()))
        return rows[len(prompt) :]


class Recorder:
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.blocks: list[tuple[int, ...]] = []
        self.margins: list[Margin] = []
        self.pauses = 0
        self.picks: list[Pick] = []

    def on_prefix(self, turn: Turn) -> None:
        self.tokens[turn.request.request_id] = []

    def on_tokens(self, turn: Turn, tokens: Sequence[int], picks: Sequence[Pick]) -> None:
        self.tokens[turn.request.request_id] += tokens
        self.blocks.append(tuple(tokens))
        self.picks += picks

    def on_margin(self, turn: Turn, margin: Margin) -> None:
        self.margins.append(margin)

    def on_pause(self, turn: Turn, guard: Guard) -> None:
        self.pauses += 1


class Bench:
    """An engine on a fake model, and what a test asks of it."""

    def __init__(
        self,
        *,
        depth: int = 0,
        stops: frozenset[int] = NO_STOPS,
        context_tokens: int = 512,
        slots: int = 1,
        model: FakeModel | None = None,
        rules: Rules | None = None,
        seed: int | None = None,
        margins: bool = False,
        guard_percent: int = 0,
    ) -> None:
        self.model: Any = model or FakeModel()
        self.recorder = Recorder()
        rules = rules or Rules()
        self.engine = Engine(
            model=self.model,
            slots=tuple(self._build_slot(index, context_tokens) for index in range(slots)),
            drafter=MtpDrafter(self.model, rules),
            listener=self.recorder,
            options=Options(
                depth=depth,
                stops=stops,
                seed=seed,
                margins=margins,
                guard_percent=guard_percent,
                guard_window_tokens=24,
            ),
            rules=rules,
        )

    def _build_slot(self, index: int, context_tokens: int) -> Slot:
        cache: Any = FakeCache()
        return Slot(index=index, cache=cache, context_tokens=context_tokens, hidden_size=1)

    def start(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        request_id: int = 1,
        slot: int = 0,
        sampling: Sampling = GREEDY,
        guide: Guide = UNGUIDED,
        **details: Any,
    ) -> Turn:
        return self.engine.start(
            Request(
                request_id=request_id,
                slot=slot,
                prompt=tuple(prompt),
                max_tokens=max_tokens,
                sampling=sampling,
                **details,
            ),
            guide,
        )

    def answer(self, prompt: Sequence[int], max_tokens: int, *, sampling: Sampling = GREEDY) -> list[int]:
        """Run one turn to its end and return its tokens."""
        turn = self.start(prompt, max_tokens, sampling=sampling)
        while not self.engine.step():
            pass
        assert turn.finish is not None
        return self.recorder.tokens[1]

    def assert_kv_is(self, tokens: Sequence[int], *, slot: int = 0) -> None:
        """The slot holds exactly these tokens, in its history and in its KV."""
        found = self.engine.slots[slot]
        cache: Any = found.cache
        assert found.history == list(tokens)
        assert cache.rows[: cache.length] == list(tokens)
