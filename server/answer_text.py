"""From the bytes of tokens to what a client sees: UTF-8, stop strings, reasoning, tool calls, in this order.

Streaming and non-streaming answers both come from here, so they cannot differ.
"""

import codecs
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from server.reasoning import ReasoningSplitter
from server.stop_strings import StopScanner
from server.tool_calls import CallArguments, CallStart, ContentText, ToolCallReader, ToolEvent


class ReasoningText(NamedTuple):
    """Text of the reasoning."""

    text: str


Delta = ReasoningText | ToolEvent


class AnswerText:
    """The text of one choice.

    ``reasoning`` is None where an answer is one plain text (the completions endpoint); ``tools`` is None
    where no call is expected, and then its markup stays text. Stop strings are looked for in the whole
    answer, reasoning and calls included.
    """

    def __init__(
        self, *, stops: Sequence[str], reasoning: ReasoningSplitter | None, tools: ToolCallReader | None
    ) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = StopScanner(stops)
        self._reasoning = reasoning
        self._tools = tools

    @property
    def stopped(self) -> bool:
        """True when a stop string was found; what follows is not part of the answer."""
        return self._stops.stopped

    @property
    def reasons(self) -> bool:
        """True while the answer is inside its reasoning."""
        return self._reasoning is not None and self._reasoning.reasoning

    @property
    def calls(self) -> int:
        """How many tool calls have begun."""
        return self._tools.calls if self._tools else 0

    def feed(self, payload: bytes) -> list[Delta]:
        """Take the bytes of one token; they may split a character."""
        text = self._stops.feed(self._decode(payload))
        return list(self._split(text)) if text else []

    def finish(self) -> list[Delta]:
        """Return what is left; a character that never became whole comes out as U+FFFD."""
        rest = "" if self.stopped else self._stops.feed(self._decode(b"", True)) + self._stops.finish()
        deltas = list(self._split(rest)) if rest else []
        if self._reasoning is not None:
            for channel, text in self._reasoning.finish():
                deltas += [ReasoningText(text)] if channel == "reasoning" else self._content(text)
        return deltas + (list(self._tools.finish()) if self._tools else [])

    def _split(self, text: str) -> Iterator[Delta]:
        if self._reasoning is None:
            yield from self._content(text)
            return
        for channel, piece in self._reasoning.feed(text):
            if channel == "reasoning":
                yield ReasoningText(piece)
            else:
                yield from self._content(piece)

    def _content(self, text: str) -> Iterator[Delta]:
        if self._tools is None:
            yield ContentText(text)
        else:
            yield from self._tools.feed(text)


__all__ = ["AnswerText", "CallArguments", "CallStart", "ContentText", "Delta", "ReasoningText"]
