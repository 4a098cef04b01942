"""What a grammar does in a turn: nothing, a source of drafts, or a real constraint on every choice.

The decode loop talks to a ``Guide`` and does not know which of the three it is. A guide has taken exactly the
tokens that were emitted; what it tries for a draft or a verify row is undone before it returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from engine_bindings.reference.grammar import Matcher

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
Origin = Literal["p", "d", "g"]

# The logit of a token that must not come. Finite, so that a margin to it is a number that can be printed.
FORBIDDEN = np.finfo(np.float32).min
STUCK = "the grammar allows no token here and no end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Tokens to verify: the first ``guessed`` come from the drafter, those behind them from the grammar."""

    tokens: tuple[int, ...] = ()
    guessed: int = 0

    @property
    def origins(self) -> list[Origin]:
        """Where each token comes from: d the drafter, g the grammar."""
        return ["d" if place < self.guessed else "g" for place in range(len(self.tokens))]

    def count_guessed(self, kept: int) -> int:
        """Return how many of the first ``kept`` tokens are the drafter's."""
        return min(kept, self.guessed)


class Guide(Protocol):
    """What the decode loop asks of a grammar.

    ``ends`` are the tokens that end a constrained turn; empty when the guide constrains nothing.
    ``span_tokens`` is the most forced tokens of one draft, None for the turn's draft depth.
    ``failure`` names what broke the guide, empty while nothing did.
    """

    @property
    def ends(self) -> frozenset[int]:
        """See above."""
        ...

    @property
    def span_tokens(self) -> int | None:
        """See above."""
        ...

    @property
    def failure(self) -> str:
        """See above."""
        ...

    def take(self, tokens: Sequence[int], /) -> None:
        """Take in tokens that were emitted."""
        ...

    def force(self, count: int, /) -> Draft:
        """Return at most ``count`` tokens that must come next; nothing when guesses may do better."""
        ...

    def check(self, guesses: Sequence[int], count: int, /) -> Draft:
        """Return the leading guesses that may come, and what is forced behind them, ``count`` at most."""
        ...

    def limit(self, logits: FloatArray, drafts: Sequence[int], /) -> FloatArray:
        """Return logits [n, V] without the tokens that must not come; row i stands behind i drafts."""
        ...


class Unguided:
    """A turn without a grammar."""

    ends: frozenset[int] = frozenset()
    span_tokens: int | None = 0
    failure = ""

    def take(self, _tokens: Sequence[int], /) -> None:
        """Do nothing."""

    def force(self, _count: int, /) -> Draft:
        """Return nothing."""
        return Draft()

    def check(self, guesses: Sequence[int], _count: int, /) -> Draft:
        """Return all guesses."""
        return Draft(tokens=tuple(guesses), guessed=len(guesses))

    def limit(self, logits: FloatArray, _drafts: Sequence[int], /) -> FloatArray:
        """Return the logits as they are."""
        return logits


UNGUIDED = Unguided()


class DraftSource(Unguided):
    """A grammar that only guesses: where it forces the text, it drafts ``span_tokens`` at most.

    Text before the grammar's beginning is skipped; text that leaves the grammar starts it over.
    """

    def __init__(self, matcher: Matcher, *, span_tokens: int) -> None:
        self.span_tokens = span_tokens
        self._matcher = matcher
        self._inside = False

    def take(self, tokens: Sequence[int], /) -> None:
        """Follow the text."""
        for token in tokens:
            followed = self._follow(token)
            if self._inside and not followed:
                self._matcher.reset()
                followed = self._follow(token)
            self._inside = followed

    def force(self, count: int, /) -> Draft:
        """Return the forced span, once the text is inside the grammar."""
        if not self._inside or count < 1:
            return Draft()
        return Draft(tokens=tuple(self._matcher.compute_ff_tokens()[:count]))

    def _follow(self, token: int) -> bool:
        return self._matcher.try_consume_tokens([token]) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Free text before the grammar: up to and with the token ``closing``, and with no token of ``barred``."""

    closing: int
    barred: frozenset[int]


class Constraint:
    """A grammar that the answer obeys: every row is chosen among the tokens that may stand there.

    A token of ``ends`` may come where the grammar may end, and nothing else may where it must. With
    ``to_the_last`` it may come only where it must. A grammar cannot use such a token as text.
    """

    span_tokens: int | None = None

    def __init__(
        self,
        matcher: Matcher,
        *,
        vocab_size: int,
        ends: frozenset[int],
        opening: Opening | None = None,
        to_the_last: bool = False,
    ) -> None:
        self.ends = ends
        self.failure = ""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._ends = np.array(sorted(ends), np.intp)
        self._to_the_last = to_the_last
        self._opening = opening
        self._taken = 0
        self._started: int | None = None if opening else 0
        self._opening_mask = self._build_opening_mask(opening)

    def take(self, tokens: Sequence[int], /) -> None:
        """Take in tokens that were emitted; all of them were chosen under this constraint."""
        for token in tokens:
            if not self._push(token):
                self.failure = self.failure or f"token {token} was emitted against the grammar"
                return

    def force(self, count: int, /) -> Draft:
        """Return the forced span when it leaves no room for guesses; else ``check`` has it too."""
        forced = self._forced(count)
        return Draft(tokens=tuple(forced)) if len(forced) == count else Draft()

    def check(self, guesses: Sequence[int], count: int, /) -> Draft:
        """Return the guesses up to the first that the grammar refuses, then what it forces there."""
        guessed = 0
        for token in guesses[:count]:
            if not self._push(token):
                break
            guessed += 1
        forced = self._forced(count - guessed)
        self._pop(guessed)
        return Draft(tokens=(*guesses[:guessed], *forced), guessed=guessed)

    def limit(self, logits: FloatArray, drafts: Sequence[int], /) -> FloatArray:
        """Return the rows with every token that must not come at ``FORBIDDEN``.

        A draft that the grammar refuses must not come in its row; the rows behind it mean nothing.
        """
        allowed = [self._allowed()]
        pushed = 0
        for token in drafts:
            if not self._push(token):
                allowed[-1] = self._without(allowed[-1], token)
                break
            pushed += 1
            allowed.append(self._allowed())
        self._pop(pushed)
        allowed += [allowed[-1]] * (len(drafts) - pushed)
        limited: FloatArray = np.where(np.array(allowed), logits, FORBIDDEN)
        return limited

    def _push(self, token: int) -> bool:
        """Take one token, or return False and change nothing when it must not come."""
        if self._started is None:
            if not self._opening_mask[token]:
                return False
        elif token in self.ends or self._matcher.try_consume_tokens([token]) != 1:
            self._note_error()
            return False
        self._taken += 1
        if self._started is None and self._opening and token == self._opening.closing:
            self._started = self._taken
        return True

    def _pop(self, count: int) -> None:
        """Undo the last ``count`` tokens; the grammar has not begun when its opening is open again."""
        taken = self._taken - count
        if self._started is not None:
            self._matcher.rollback(self._taken - max(taken, self._started))
            if taken < self._started:
                self._started = None
        self._taken = taken

    def _forced(self, count: int) -> list[int]:
        if self._started is None or count < 1:
            return []
        tokens = self._matcher.compute_ff_tokens()[:count]
        self._note_error()
        return next((tokens[:i] for i, token in enumerate(tokens) if token in self.ends), tokens)

    def _allowed(self) -> BoolArray:
        """Return which tokens [V] may come next; at least one may. A grammar that is stuck is a failure."""
        if self._started is None:
            return self._opening_mask
        bits = np.frombuffer(self._matcher.compute_bitmask() or bytes(-(-self._vocab_size // 8)), np.uint8)
        self._note_error()
        allowed: BoolArray = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        allowed[self._ends] = False
        if not allowed.any():
            if not self._matcher.is_accepting():
                self.failure = self.failure or STUCK
            allowed[self._ends] = True
        elif not self._to_the_last and self._matcher.is_accepting():
            allowed[self._ends] = True
        return allowed

    def _without(self, allowed: BoolArray, token: int) -> BoolArray:
        """Return a row's mask without a token that was refused; a row that allowed nothing else is stuck."""
        rest = allowed.copy()
        rest[token] = False
        if not rest.any():
            self.failure = self.failure or STUCK
        return rest

    def _note_error(self) -> None:
        self.failure = self.failure or self._matcher.get_error().partition("\n")[0]

    def _build_opening_mask(self, opening: Opening | None) -> BoolArray:
        mask = np.ones(self._vocab_size, np.bool_)
        if opening:
            mask[sorted(opening.barred - {opening.closing})] = False
        return mask
