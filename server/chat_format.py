"""How a chat answer is written: messages, deltas, reasoning and tool calls."""

from collections.abc import Iterable, Iterator

from server.answer_format import AnswerFormat, Object
from server.answer_text import CallStart, ContentText, Delta, ReasoningText
from server.engine_turn import Token
from server.job import Ended, Piece, Started
from server.logprobs import chat_logprobs, token_ids


class ChatFormat(AnswerFormat):
    """`chat.completion` and its chunks. The first chunk of a choice has the role and nothing else."""

    @property
    def object_names(self) -> tuple[str, str]:
        """The ``object`` of a whole answer and of a chunk."""
        return "chat.completion", "chat.completion.chunk"

    def start_choices(self, started: Started) -> Iterator[Object]:
        """Yield the choice with the role."""
        yield self._choice(started.choice, {"role": "assistant", "content": ""}, None)

    def piece_choice(self, piece: Piece) -> Object:
        """Return the choice with what became visible."""
        choice = self._choice(piece.choice, merge_deltas(piece.deltas), None)
        return choice | self._details(piece.tokens)

    def end_choice(self, ended: Ended) -> Object:
        """Return the choice with the finish reason and an empty delta."""
        return self._choice(ended.choice, {}, ended.finish_reason)

    def whole_choice(self, pieces: list[Piece], ended: Ended) -> Object:
        """Return a choice with its message."""
        merged = merge_deltas(delta for piece in pieces for delta in piece.deltas)
        message: Object = {"role": "assistant", "content": merged.get("content"), "refusal": None}
        if "reasoning_content" in merged:
            message["reasoning_content"] = merged["reasoning_content"]
        if "tool_calls" in merged:
            message["tool_calls"] = [_without_index(call) for call in merged["tool_calls"]]
        elif message["content"] is None:
            message["content"] = ""
        choice = {"index": ended.choice, "message": message, "logprobs": None}
        tokens = self.all_tokens(pieces)
        return {**choice, **self._details(tokens), "finish_reason": ended.finish_reason}

    def _choice(self, index: int, delta: Object, finish_reason: str | None) -> Object:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def _details(self, tokens: list[Token]) -> Object:
        details: Object = {}
        if self.job.logprobs is not None:
            details["logprobs"] = chat_logprobs(tokens, self.vocabulary)
        if self.job.token_ids:
            details["token_ids"] = token_ids(tokens)
        return details


def merge_deltas(deltas: Iterable[Delta]) -> Object:
    """Return OpenAI's delta, or a message, for several deltas in a row."""
    merged: Object = {}
    calls: dict[int, Object] = {}
    for delta in deltas:
        if isinstance(delta, ContentText):
            merged["content"] = merged.get("content", "") + delta.text
        elif isinstance(delta, ReasoningText):
            merged["reasoning_content"] = merged.get("reasoning_content", "") + delta.text
        elif isinstance(delta, CallStart):
            function = {"name": delta.name, "arguments": ""}
            calls[delta.call] = {
                "index": delta.call, "id": delta.call_id, "type": "function", "function": function
            }  # fmt: skip
        else:
            call = calls.setdefault(delta.call, {"index": delta.call, "function": {"arguments": ""}})
            call["function"]["arguments"] += delta.text
    return merged | {"tool_calls": list(calls.values())} if calls else merged


def _without_index(call: Object) -> Object:
    return {name: value for name, value in call.items() if name != "index"}
