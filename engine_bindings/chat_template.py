"""GLM's chat form: what a server renders from messages, and what chat mode adds to a typed line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "observation"]

PREFIX = b"[gMASK]<sop>"
ANSWER_OPENING = b"<|assistant|><think></think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation.

    ``text`` is bytes because an answer that ended at a cap may end inside a UTF-8 character, and the next
    prompt has to repeat it exactly.
    """

    role: Role
    text: bytes


def render_message(message: Message) -> bytes:
    """Return one message with its role marker; no newline follows a marker."""
    if message.role == "assistant":
        return ANSWER_OPENING + message.text
    if message.role == "observation":
        return b"<|observation|><tool_response>" + message.text + b"</tool_response>"
    return b"<|" + message.role.encode() + b"|>" + message.text


def render_messages(messages: Sequence[Message]) -> bytes:
    """Return the prompt that asks for the assistant's next answer after ``messages``.

    Answers are kept to the byte: chat mode's context holds exactly what was generated, so a stripped answer
    would end the shared prefix early.

    >>> render_messages([Message(role="user", text=b"Hi")])
    b'[gMASK]<sop><|user|>Hi<|assistant|><think></think>'
    """
    return PREFIX + b"".join(map(render_message, messages)) + ANSWER_OPENING
