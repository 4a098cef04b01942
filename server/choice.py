"""One choice while it is being answered: tokens in, pieces out, counted."""

from collections.abc import Iterator

from server.answer_text import AnswerText, Delta
from server.constraints import properties_of
from server.engine_turn import EngineTurn, Token, TurnOutcome
from server.job import ChoiceCounts, Ended, FinishReason, Job, Piece, Timings
from server.reasoning import ReasoningSplitter
from server.tool_calls import Properties, ToolCallReader

NS_PER_MS = 1e6


class Choice:
    """Follows one turn of the engine; ``speculates`` says that it runs with MTP.

    Tokens that arrive after a stop string was found belong to the slot's history, but neither to the answer
    nor to its counts.
    """

    def __init__(self, job: Job, index: int, *, speculates: bool) -> None:
        self.index = index
        self.ids: list[int] = []
        self._job = job
        self._speculates = speculates
        self._text = AnswerText(
            stops=job.stops,
            reasoning=ReasoningSplitter(open=job.prompt.reasons) if job.splits_reasoning else None,
            tools=self._tool_reader() if job.functions is not None else None,
        )
        self._pending: list[Token] = []
        self._tokens = self._reasoning_tokens = self._accepted = 0
        self._first_tokens = 0
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    @property
    def stopped(self) -> bool:
        """True when a stop string ended the answer."""
        return self._text.stopped

    def take(self, token: Token) -> Piece | None:
        """Take a token; return what it makes visible, None when it is held back."""
        if token.detail is not None:
            self.ids.append(token.detail.token_id)
        if self._text.stopped:
            return None
        self._count(token)
        deltas = self._text.feed(token.payload)
        self._pending.append(token)
        return self._piece(deltas) if deltas else None

    def finish(self) -> Piece | None:
        """Return what was held back until the end."""
        deltas = self._text.finish()
        return self._piece(deltas) if deltas or self._pending else None

    def end(self, turn: EngineTurn, outcome: TurnOutcome) -> Ended:
        """Return the end of the choice."""
        return Ended(
            self.index, self._finish_reason(outcome), self._counts(turn, outcome), self._timings(turn)
        )

    def _count(self, token: Token) -> None:
        self._tokens += 1
        self._reasoning_tokens += self._text.reasons
        self._accepted += token.detail is not None and token.detail.origin == "d"
        self._first_ns = self._first_ns or token.at_ns
        self._first_tokens += token.at_ns == self._first_ns
        self._last_ns = token.at_ns

    def _piece(self, deltas: list[Delta]) -> Piece:
        tokens, self._pending = self._pending, []
        return Piece(self.index, deltas, tokens)

    def _finish_reason(self, outcome: TurnOutcome) -> FinishReason:
        if not self._text.stopped and outcome.stat.length_limited:
            return "length"
        return "tool_calls" if self._text.calls else "stop"

    def _counts(self, turn: EngineTurn, outcome: TurnOutcome) -> ChoiceCounts:
        spec, profile = outcome.speculation, outcome.profile
        drafted = spec.drafted_tokens if spec else None
        return ChoiceCounts(
            prompt_tokens=turn.prompt_tokens or 0,
            cached_tokens=spec.cached_tokens if spec else None,
            completion_tokens=self._tokens,
            reasoning_tokens=self._reasoning_tokens,
            drafted_tokens=drafted,
            accepted_tokens=self._accepted if spec else self._inferred(outcome),
            rejected_tokens=spec.drafted_tokens - spec.accepted_tokens if spec else None,
            forwards=spec.forwards if spec else profile.forwards if profile else None,
        )

    def _inferred(self, outcome: TurnOutcome) -> int | None:
        """Return the accepted drafts of an engine that does not report them: tokens without a forward."""
        if not self._speculates or outcome.profile is None or self._text.stopped:
            return None
        return max(0, outcome.stat.emitted_tokens - outcome.profile.forwards)

    def _timings(self, turn: EngineTurn) -> Timings:
        if self._first_ns is None or self._last_ns is None or turn.accepted_ns is None:
            return Timings(prompt_ms=None, predicted_ms=None, timed_tokens=0)
        # An engine may write both at once; then all that is known is when it was asked.
        together = turn.accepted_ns == self._first_ns
        return Timings(
            prompt_ms=(self._first_ns - (turn.sent_ns if together else turn.accepted_ns)) / NS_PER_MS,
            predicted_ms=(self._last_ns - self._first_ns) / NS_PER_MS,
            timed_tokens=self._tokens - self._first_tokens,
        )

    def _tool_reader(self) -> ToolCallReader:
        functions = self._job.functions or {}

        def find_properties(name: str) -> Properties | None:
            return properties_of(functions[name]) if name in functions else None

        prefix = self._job.id.rpartition("-")[2]
        return ToolCallReader(
            parameters=find_properties, new_id=lambda call: f"call_{prefix}_{self.index}_{call}"
        )


def pieces_of(choice: Choice, batch: list[Token]) -> Iterator[Piece]:
    """Yield what a batch of tokens makes visible."""
    for token in batch:
        piece = choice.take(token)
        if piece is not None:
            yield piece
