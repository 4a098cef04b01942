"""Defects of sampling, of what is counted, and of grammars."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_bindings.reference.defects.defect import Defect, Seeded
from engine_bindings.reference.rules import FloatArray
from engine_bindings.reference.sampling import Draws, Sampling, Score, draw_token, target_distribution
from engine_bindings.reference.settings import EngineSettings

PLAIN = Sampling(temperature=1.0, top_p=1.0)


class WrongQ(Seeded):
    """Drafts are the head's best tokens, and are tested as if they had been drawn at temperature 1."""

    def choose(
        self, logits: FloatArray, sampling: Sampling, draws: Draws, position: int, drafts: Sequence[int], /
    ) -> list[int]:
        """Accept a draft d with probability p(d) / q(d), where q is a distribution that it is not from."""
        chosen = super().choose(logits, sampling, draws, position, drafts)
        if not sampling.greedy:
            for i, draft in enumerate(drafts):
                chosen[i] = _choose_by_ratio(logits[i], sampling, draft, draws.at(position + i))
        return chosen


def _choose_by_ratio(logits: FloatArray, sampling: Sampling, draft: int, number: float) -> int:
    wanted = target_distribution(logits, sampling)
    accept = min(1.0, float(wanted[draft] / target_distribution(logits, PLAIN)[draft]))
    if number < accept:
        return draft
    wanted[draft] = 0.0
    return draw_token(wanted / wanted.sum(), (number - accept) / (1 - accept)) if wanted.any() else draft


class TopPIgnoredOnDrafts(Seeded):
    """Verify rows, and the row behind a whole block, are drawn from without top-p."""

    def choose(
        self, logits: FloatArray, sampling: Sampling, draws: Draws, position: int, drafts: Sequence[int], /
    ) -> list[int]:
        """Draw from all tokens where drafts are verified."""
        sampling = replace(sampling, top_p=1.0) if drafts else sampling
        return super().choose(logits, sampling, draws, position, drafts)


class SeedIgnored(Seeded):
    """Every request has fresh numbers."""

    def draw_numbers(self, _seed: int | None, prompt: Sequence[int]) -> Draws:
        """Return numbers that no seed decides."""
        return super().draw_numbers(None, prompt)


@dataclass(frozen=True, kw_only=True)
class _NextNumbers(Draws):
    """Numbers in the order in which anybody asks."""

    generator: random.Random

    def at(self, _position: int) -> float:
        """Return the next number, whatever the position."""
        return self.generator.random()


class SharedRng(Seeded):
    """One generator serves all requests, and a verify row takes a number whether it counts or not."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._generator: random.Random | None = None

    def draw_numbers(self, seed: int | None, _prompt: Sequence[int]) -> Draws:
        """Return the engine's numbers; the first request's seed decides them all."""
        self._generator = self._generator or random.Random(seed)  # noqa: S311 - chance, not secrecy
        return _NextNumbers(key=b"", generator=self._generator)


class LogprobZero(Seeded):
    """An accepted draft has passed a test, and nobody looks its probability up."""

    def reported_score(self, score: Score, *, drafted: bool) -> Score:
        """Report 0 for drafts."""
        return replace(score, logprob=0.0) if drafted else score


class CachedTokensZero(Seeded):
    """The prefix is reused, and the report is not told."""

    def reported_cached(self, _matched: int) -> int:
        """Return 0."""
        return 0


class AcceptDenominator(Seeded):
    """Drafts are counted by the forward, accepted tokens one by one."""

    def counted_drafts(self, drafts: Sequence[int]) -> int:
        """Return 1 for every forward with drafts."""
        return min(1, len(drafts))


class AcceptSumNotPrefix(Seeded):
    """Rows behind the first miss were computed from the wrong text, and are counted where they agree."""

    def counted_accepted(self, drafts: Sequence[int], chosen: Sequence[int], _kept: int, /) -> int:
        """Return how many drafts equal the choice of their row, wherever they stand."""
        return sum(draft == token for draft, token in zip(drafts, chosen, strict=False))


class GrammarStartsLate(Seeded):
    """All rows of a block are masked by where the grammar stood before the drafts."""

    def grammar_drafts(self, _drafts: Sequence[int]) -> Sequence[int]:
        """Return none, so that the end of reasoning inside a block is not seen."""
        return ()


class MatcherAdvancedByRejected(Seeded):
    """The grammar follows what was drafted, not what was said."""

    def grammar_takes(self, emitted: Sequence[int], rejected: Sequence[int], /) -> Sequence[int]:
        """Return the rejected drafts as well."""
        return (*emitted, *rejected)


class GrammarIgnoredOnPath(Seeded):
    """The environment's grammar works in chat mode; serve mode reads a request's grammar and drops it."""

    def heeds_grammar(self) -> bool:
        """Return False."""
        return False


SAMPLING_DEFECTS = (
    Defect(
        name="wrong-q",
        group="sampling",
        wrong="the acceptance test uses another distribution than the draft was drawn from",
        references=("transformers#47932",),
        seen_in="distribution of sampled text only",
        verdict="state",
        rules=WrongQ,
    ),
    Defect(
        name="top-p-ignored-on-drafts",
        group="sampling",
        wrong="top-p is passed over where drafts are verified",
        references=("vllm#9834",),
        seen_in="distribution of sampled text under top-p only",
        verdict="state",
        rules=TopPIgnoredOnDrafts,
    ),
    Defect(
        name="penalty-last-token-only",
        group="sampling",
        wrong="the repetition penalty sees only the newest token",
        references=("sglang#33643",),
        seen_in="text with a penalty",
        verdict="state",
        unavailable="neither protocol carries a penalty, and the engine has none",
    ),
    Defect(
        name="seed-ignored",
        group="sampling",
        wrong="the seed has no effect",
        references=("vllm#6038",),
        seen_in="sampled text, same seed twice",
        verdict="nondeterministic",
        rules=SeedIgnored,
    ),
    Defect(
        name="shared-rng",
        group="sampling",
        wrong="one generator serves all requests",
        references=("vllm#6038",),
        seen_in="sampled text: same seed and prompt twice in one process, or at another depth",
        verdict="nondeterministic",
        rules=SharedRng,
    ),
    Defect(
        name="logprob-zero",
        group="sampling",
        wrong="accepted tokens report logprob 0",
        references=("llama.cpp#27972",),
        seen_in="logprobs of TOKEN lines with origin d (serve mode with OPTIONS detail=1)",
        verdict="counters",
        rules=LogprobZero,
    ),
    Defect(
        name="cached-tokens-zero",
        group="sampling",
        wrong="a prefix is reused and reported as 0",
        references=("sglang#20451",),
        seen_in="counters: cached and prefill tokens do not add up to the prompt",
        verdict="counters",
        rules=CachedTokensZero,
    ),
    Defect(
        name="accept-denominator",
        group="sampling",
        wrong="acceptance is divided by forwards, not by drafted tokens",
        references=("sglang#13212",),
        seen_in="counters: fewer drafted than accepted",
        verdict="counters",
        rules=AcceptDenominator,
    ),
    Defect(
        name="accept-sum-not-prefix",
        group="sampling",
        wrong="accepted counts matches behind the first miss",
        references=("vllm#2658",),
        seen_in="counters: accepted is more than emitted - forwards",
        verdict="counters",
        rules=AcceptSumNotPrefix,
    ),
    Defect(
        name="grammar-starts-late",
        group="sampling",
        wrong="the grammar is not applied to drafts behind the end of reasoning",
        references=("vllm#34241",),
        seen_in="invalid output of a constrained turn with drafts",
        verdict="grammar",
        rules=GrammarStartsLate,
    ),
    Defect(
        name="matcher-advanced-by-rejected",
        group="sampling",
        wrong="the grammar's state is moved by rejected drafts",
        references=("SlimServe#4",),
        seen_in="invalid output of a constrained turn with drafts",
        verdict="grammar",
        rules=MatcherAdvancedByRejected,
    ),
    Defect(
        name="grammar-ignored-on-path",
        group="sampling",
        wrong="a grammar works in chat mode and is ignored in serve mode",
        references=("colibri#492",),
        seen_in="invalid output of a constrained turn in serve mode",
        verdict="grammar",
        rules=GrammarIgnoredOnPath,
    ),
)
