"""GLM's chat form as text: what a server renders from messages and what chat mode adds to a typed line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "observation"]

PREFIX = "[gMASK]<sop>"
ANSWER_OPENING = "<|assistant|><think></think>"
ROLE_MARKERS: dict[Role, str] = {
    "system": "<|system|>",
    "user": "<|user|>",
    "assistant": ANSWER_OPENING,
    "observation": "<|observation|>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation: who speaks, and the text exactly as it stands in the prompt."""

    role: Role
    text: str


def render_messages(messages: Sequence[Message]) -> str:
    """Return the prompt that asks for the next assistant answer after ``messages``.

    No newline follows a role marker and answers are kept to the byte: chat mode's context holds exactly what was
    generated, so a stripped answer would end the shared prefix early.

    >>> render_messages([Message(role="user", text="Hi")])
    '[gMASK]<sop><|user|>Hi<|assistant|><think></think>'
    """
    turns = "".join(ROLE_MARKERS[message.role] + message.text for message in messages)
    return PREFIX + turns + ANSWER_OPENING
