"""Splitting an answer into its reasoning (`<think>` to `</think>`) and its content."""

from collections.abc import Generator, Iterator
from typing import Literal, NamedTuple

from server.markers import held_length

OPEN, CLOSE = "<think>", "</think>"
Channel = Literal["reasoning", "content"]


class ChannelText(NamedTuple):
    """A piece of the answer and where it belongs."""

    channel: Channel
    text: str


class ReasoningSplitter:
    """Takes the text of an answer in pieces.

    ``open`` says that the prompt ended with `<think>`, so that the answer starts inside the reasoning.
    Otherwise the answer reasons only when `<think>` is the very first thing in it.
    """

    def __init__(self, *, open: bool) -> None:  # noqa: A002 - the markup's own word
        self._state: Literal["start", "reasoning", "content"] = "reasoning" if open else "start"
        self._held = ""

    @property
    def reasoning(self) -> bool:
        """True while the answer is inside its reasoning."""
        return self._state == "reasoning"

    def feed(self, text: str) -> Iterator[ChannelText]:
        """Take more text and yield what is certain, never an empty piece."""
        text = self._held + text
        self._held = ""
        if self._state == "start":
            text = self._read_start(text)
        if self._state == "reasoning":
            text = yield from self._read_reasoning(text)
        if text and self._state == "content":
            yield ChannelText("content", text)

    def finish(self) -> Iterator[ChannelText]:
        """Yield what was held back."""
        held, self._held = self._held, ""
        if held:
            yield ChannelText("reasoning" if self._state == "reasoning" else "content", held)

    def _read_start(self, text: str) -> str:
        if text.startswith(OPEN):
            self._state = "reasoning"
            return text[len(OPEN) :]
        if OPEN.startswith(text):
            self._held = text
            return ""
        self._state = "content"
        return text

    def _read_reasoning(self, text: str) -> Generator[ChannelText, None, str]:
        reasoning, closed, rest = text.partition(CLOSE)
        if closed:
            self._state = "content"
        else:
            keep = len(text) - held_length(text, (CLOSE,))
            reasoning, self._held = text[:keep], text[keep:]
        if reasoning:
            yield ChannelText("reasoning", reasoning)
        return rest
