"""What the two endpoints share in how an answer is written: whole, or as the chunks of a stream."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from server.engine_turn import Token
from server.job import Ended, Job, JobEvent, Piece, Started
from server.tokens import Tokens
from server.usage import timings_object, usage_object

Object = dict[str, Any]
DONE = b"data: [DONE]\n\n"


class AnswerFormat(ABC):
    """Writes one answer.

    A stream gives its chunks as they come; a whole answer is collected and read once.
    """

    def __init__(
        self, job: Job, vocabulary: Tokens, *, model: str, fingerprint: str, created: int, include_usage: bool
    ) -> None:
        self.job = job
        self.vocabulary = vocabulary
        self._frame = {"id": job.id, "created": created, "model": model, "system_fingerprint": fingerprint}
        self._include_usage = include_usage
        self._ended: list[Ended] = []
        self.text_offsets = [0] * job.choices

    @property
    @abstractmethod
    def object_names(self) -> tuple[str, str]:
        """The ``object`` of a whole answer and of a chunk."""

    @abstractmethod
    def start_choices(self, started: Started) -> Iterator[Object]:
        """Yield the choices of the chunks that open an answer."""

    @abstractmethod
    def piece_choice(self, piece: Piece) -> Object:
        """Return the choice of one chunk."""

    @abstractmethod
    def end_choice(self, ended: Ended) -> Object:
        """Return the choice of the chunk that carries the finish reason."""

    @abstractmethod
    def whole_choice(self, pieces: list[Piece], ended: Ended) -> Object:
        """Return one choice of a whole answer."""

    def chunks(self, event: JobEvent) -> Iterator[Object]:
        """Yield the chunks of one event."""
        if isinstance(event, Piece):
            yield self._chunk([self.piece_choice(event)])
        elif isinstance(event, Started):
            for choice in self.start_choices(event):
                yield self._chunk([choice]) | self._prompt_ids()
        else:
            self._ended.append(event)
            chunk = self._chunk([self.end_choice(event)])
            yield chunk | {"timings": timings_object(event)}

    def last_chunks(self) -> Iterator[Object]:
        """Yield what follows the last choice: the usage, when it was asked for."""
        if self._include_usage:
            yield self._chunk([]) | {"usage": usage_object(self._ended)}

    def whole(self, events: Iterable[JobEvent]) -> Object:
        """Return the whole answer."""
        pieces: dict[int, list[Piece]] = {}
        for event in events:
            if isinstance(event, Piece):
                pieces.setdefault(event.choice, []).append(event)
            elif isinstance(event, Ended):
                self._ended.append(event)
        choices = [self.whole_choice(pieces.get(ended.choice, []), ended) for ended in self._ended]
        answer = {**self._frame, "object": self.object_names[0], "choices": choices}
        numbers = {"usage": usage_object(self._ended), "timings": timings_object(self._ended[0])}
        return {**answer, **self._prompt_ids(), **numbers}

    def all_tokens(self, pieces: Iterable[Piece]) -> list[Token]:
        """Return the tokens of pieces in their order."""
        return [token for piece in pieces for token in piece.tokens]

    def _chunk(self, choices: list[Object]) -> Object:
        chunk = {**self._frame, "object": self.object_names[1], "choices": choices}
        return chunk | {"usage": None} if self._include_usage else chunk

    def _prompt_ids(self) -> Object:
        return {"prompt_token_ids": list(self.job.prompt.ids)} if self.job.token_ids else {}


def encode_event(value: Object) -> bytes:
    """Return a server-sent event that holds JSON."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
