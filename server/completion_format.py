"""How a plain completion is written: one text, no roles."""

from collections.abc import Iterable, Iterator

from server.answer_format import AnswerFormat, Object
from server.answer_text import ContentText, Delta
from server.engine_turn import Token
from server.job import Ended, Piece, Started
from server.logprobs import completion_logprobs, token_ids


class CompletionFormat(AnswerFormat):
    """`text_completion`, the same object for the whole and for chunks."""

    @property
    def object_names(self) -> tuple[str, str]:
        """The ``object`` of a whole answer and of a chunk."""
        return "text_completion", "text_completion"

    def start_choices(self, started: Started) -> Iterator[Object]:
        """Yield a chunk before the first text only when it has prompt token ids to carry."""
        if self.job.token_ids:
            yield self._choice(started.choice, "", None)

    def piece_choice(self, piece: Piece) -> Object:
        """Return the choice with more text."""
        choice = self._choice(piece.choice, _join(piece.deltas), None)
        return choice | self._details(piece.choice, piece.tokens)

    def end_choice(self, ended: Ended) -> Object:
        """Return the choice with the finish reason and no text."""
        return self._choice(ended.choice, "", ended.finish_reason)

    def whole_choice(self, pieces: list[Piece], ended: Ended) -> Object:
        """Return a choice with its whole text."""
        text = _join(delta for piece in pieces for delta in piece.deltas)
        choice = self._choice(ended.choice, text, ended.finish_reason)
        return choice | self._details(ended.choice, self.all_tokens(pieces))

    def _choice(self, index: int, text: str, finish_reason: str | None) -> Object:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}

    def _details(self, choice: int, tokens: list[Token]) -> Object:
        details: Object = {}
        if self.job.logprobs is not None:
            entries = completion_logprobs(tokens, self.vocabulary, self.text_offsets[choice])
            self.text_offsets[choice] += sum(map(len, entries["tokens"]))
            details["logprobs"] = entries
        if self.job.token_ids:
            details["token_ids"] = token_ids(tokens)
        return details


def _join(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentText))
