"""One answer of a server as it arrives: its text in one form for all paths, its deliveries, counts and
margins.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine_bindings.wire.answer_events import (
    AnswerEnd,
    AnswerEvent,
    AnswerToken,
    CallPiece,
    Candidate,
    Counts,
    Finish,
    Piece,
    ServerFault,
)
from harness.drivers.answer import CAP_FACTOR, CAP_SLACK_TOKENS, MAX_TOKEN_BYTES
from harness.scenario import cut_at_stop
from harness.transcript import Delivery, Margin
from harness.transcript import Finish as FinishWord

THINK = (b"<think>", b"</think>")
CALL = (b"<tool_call>", b"</tool_call>")
FINISHES: dict[str, FinishWord] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
}


@dataclass(slots=True)
class _Call:
    name: str = ""
    arguments: str = ""
    call_id: str = ""


class HttpAnswer:
    """Collects an answer. Pieces are never taken for tokens."""

    def __init__(self, stop: Sequence[str], *, max_tokens: int) -> None:
        self.deliveries: list[Delivery] = []
        self.counts = Counts()
        self.fault: ServerFault | None = None
        self._finish = Finish(reason="")
        self.remarks: tuple[str, ...] = ()
        self.complete = False
        self._stop = tuple(stop)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._tokens: list[AnswerToken] | None = None
        self._size_bytes = 0
        self._limit_tokens = CAP_FACTOR * max_tokens + CAP_SLACK_TOKENS

    def add_events(self, at_ns: int, events: Sequence[AnswerEvent]) -> None:
        """Take what one read brought: its pieces are one delivery."""
        pieces = []
        for event in events:
            match event:
                case Piece():
                    pieces.append(event)
                case Finish():
                    self._finish = event
                case Counts():
                    self.counts = self.counts.join(event)
                case ServerFault():
                    self.fault = event
                case AnswerEnd():
                    self.complete = True
                    self.remarks = event.remarks
                case _:
                    pass
        self._add_pieces(at_ns, pieces)

    def _add_pieces(self, at_ns: int, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._content.append(piece.content)
            self._reasoning.append(piece.reasoning)
            for call in piece.calls:
                self._add_call(call)
            if piece.tokens is not None:
                self._tokens = [*(self._tokens or ()), *piece.tokens]
        shown = [piece for piece in pieces if piece.is_output or piece.token_count]
        if shown:
            size_bytes = sum(map(_measure, shown))
            known = [piece.token_count for piece in shown if piece.token_count is not None]
            counted = sum(known) if len(known) == len(shown) else None
            self.deliveries.append(Delivery(at_ns=at_ns, size_bytes=size_bytes, tokens=counted))
            self._size_bytes += size_bytes

    def _add_call(self, piece: CallPiece) -> None:
        call = self._calls.setdefault(piece.index, _Call())
        call.name += piece.name
        call.arguments += piece.arguments
        call.call_id = call.call_id or piece.call_id

    @property
    def pieces(self) -> int:
        """Tokens so far where they are shown, else deliveries."""
        counts = [delivery.tokens for delivery in self.deliveries]
        known = [count for count in counts if count is not None]
        return sum(known) if known and len(known) == len(counts) else len(counts)

    @property
    def is_endless(self) -> bool:
        """True when more has come than the cap can explain."""
        return self.pieces > self._limit_tokens or self._size_bytes > self._limit_tokens * MAX_TOKEN_BYTES

    def whole_text(self) -> bytes:
        """Return reasoning, content and calls in this order, whatever the order in which they came."""
        parts = []
        if reasoning := "".join(self._reasoning):
            parts += [THINK[0], _encode(reasoning), THINK[1]]
        parts.append(_encode("".join(self._content)))
        for _, call in sorted(self._calls.items()):
            parts += [CALL[0], _encode(call.name), b"\n", _encode(call.arguments), CALL[1]]
        return b"".join(parts)

    def visible_text(self) -> bytes:
        """Return the answer, cut before the first stop string that the server left in it."""
        whole = self.whole_text()
        cut = cut_at_stop(whole, self._stop)
        return whole if cut is None else cut

    @property
    def stopped(self) -> bool:
        """True when the server left a stop string in its answer."""
        return cut_at_stop(self.whole_text(), self._stop) is not None

    def message(self) -> dict[str, Any]:
        """Return the answer as the message to send back in the next turn."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if reasoning := "".join(self._reasoning):
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id or f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in sorted(self._calls.items())
            ]
        return message

    def finish(self) -> FinishWord:
        """Return how the answer ended; a word that we do not know is no reason that is reported.

        Where stop strings were asked for and the server does not tell them from stop tokens, it may have been
        one: how far the engine went on behind it is then not known.
        """
        reason, stop_string = self._finish.reason, self._finish.stop_string
        may_be = bool(self._stop) if stop_string is None else stop_string
        if self.stopped or (reason == "stop" and may_be):
            return "stop-string"
        return FINISHES.get(reason, "unreported")

    def token_lengths(self) -> tuple[int, ...] | None:
        """Return the bytes of each token, where the server shows tokens that make up exactly this answer."""
        if self._tokens is None:
            return None
        lengths = [len(token.data) for token in self._tokens if token.data is not None]
        shown = b"".join(token.data for token in self._tokens if token.data is not None)
        whole = self.whole_text()
        return tuple(lengths) if len(lengths) == len(self._tokens) and shown == whole else None

    def logprobs(self) -> tuple[float | None, ...] | None:
        """Return the log probability of each token, None where the server shows none."""
        values = tuple(token.logprob for token in self._tokens or ())
        return values if any(value is not None for value in values) else None

    def margins(self) -> tuple[Margin, ...] | None:
        """Return the two best candidates of each token, where they are told for all of them.

        Log probabilities differ from logits by one constant for all candidates, so their gap is that of the
        logits. A token goes by its id, or by the checksum of its text where the API names no ids.
        """
        if not self._tokens or any(len(token.candidates) < 2 for token in self._tokens):
            return None
        margins = tuple(_margin(token) for token in self._tokens)
        return margins if all(math.isfinite(margin.gap) for margin in margins) else None


def _margin(token: AnswerToken) -> Margin:
    best, second = token.candidates[:2]
    gap = best.logprob - second.logprob
    return Margin(best=_name(best), second=_name(second), gap=gap)


def _name(candidate: Candidate) -> int:
    return zlib.crc32(candidate.token) if candidate.token_id is None else candidate.token_id


def _measure(piece: Piece) -> int:
    calls = sum(len(_encode(call.name + call.arguments)) for call in piece.calls)
    return len(_encode(piece.content)) + len(_encode(piece.reasoning)) + calls


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
