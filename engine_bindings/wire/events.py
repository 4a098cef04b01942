"""What the readers yield: values for everything an engine sends and everything a client sends."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from .counts import Hardware, Profile, Stat, Tiers

Protocol: TypeAlias = Literal["chat", "serve"]

# Codes of ERROR lines. An engine may send others; readers pass every code on as text.
BAD_REQUEST = "BAD_REQUEST"
SLOT_BUSY = "SLOT_BUSY"
DUPLICATE_ID = "DUPLICATE_ID"
EMPTY_PROMPT = "EMPTY_PROMPT"
CONTEXT_EXCEEDED = "CONTEXT_EXCEEDED"
BAD_FRAME = "BAD_FRAME"
NOT_FOUND = "NOT_FOUND"
CANCELLED = "CANCELLED"
ERROR_CODES = (
    BAD_REQUEST,
    SLOT_BUSY,
    DUPLICATE_ID,
    EMPTY_PROMPT,
    CONTEXT_EXCEEDED,
    BAD_FRAME,
    NOT_FOUND,
    CANCELLED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The stream ended where it may end. Nothing follows."""


# What an engine sends.


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """A line before READY, without its newline; bytes that are not UTF-8 are replaced."""

    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The engine is ready and the line after READY's STAT proved which protocol it speaks.

    `hardware` comes from serve mode's HWINFO, `tiers` from chat mode's TIERS; None when absent or unreadable.
    """

    protocol: Protocol
    stat: Stat
    evidence: str
    hardware: Hardware | None = None
    tiers: Tiers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Bytes of a chat reply as they came; they may split a UTF-8 character, never a sentinel. Never empty."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """The end of one chat reply. `newline` is True when the engine's own newline before END was taken off."""

    stat: Stat
    newline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A request passed validation; prefill starts now."""

    request_id: int
    prompt_tokens: int


class Data(NamedTuple):
    """One token of one request; the payload may be empty and may split a UTF-8 character."""

    request_id: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnProfile:
    """Time and forwards of the request whose Done comes next; the line itself names no request."""

    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line that belongs to no request: HWINFO, TIERS, EMAP, HITS or a kind this client does not know."""

    kind: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The end of a request that ran."""

    request_id: int
    stat: Stat


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An ERROR line. The id is 0 when the engine could not read it; CANCELLED ends a cancelled request."""

    request_id: int
    code: str
    arguments: tuple[str, ...] = ()


# What the engine's command line shows besides.


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """It talks to a server that runs already, and not to an engine of its own."""

    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedConversation:
    """It found a conversation of so many tokens in the model's directory, which its engine resumes."""

    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quit:
    """It gave up, in its own words. Nothing follows."""

    reason: str


# What a client sends in chat mode.


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An interactive line without its newline; empty text asks for an empty reply."""

    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Forget the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Continue the last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """An exact prompt with its own cap and sampling."""

    payload: bytes
    max_tokens: int
    temperature: float
    top_p: float
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BadPrompt:
    """A PROMPT that must be answered with an empty reply. The payload of a bad header comes as lines."""

    line: bytes
    reason: str


# What a client sends in serve mode.


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A new request. An empty grammar means none."""

    request_id: int
    slot: int
    prompt: bytes
    grammar: bytes
    max_tokens: int
    temperature: float
    top_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsLine:
    """An OPTIONS line of the extension, whole; only from a server that was told to take them."""

    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a request now, through its normal Done."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End a request now, with ERROR CANCELLED and no Done."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequest:
    """What must be answered with ERROR BAD_REQUEST; the id is 0 when it could not be read."""

    request_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFrame:
    """A payload that no newline followed: answer ERROR BAD_FRAME. The input counts as ended from here on."""

    request_id: int


ChatReply: TypeAlias = Banner | Ready | Note | Text | TurnEnd | Closed
ScreenReply: TypeAlias = Attached | Banner | SavedConversation | Text | TurnEnd | Quit | Closed
MuxReply: TypeAlias = Banner | Ready | Note | Accepted | Data | TurnProfile | Done | Refused | Closed
ChatCommand: TypeAlias = Line | Reset | More | Prompt | BadPrompt | Closed
MuxCommand: TypeAlias = Submit | OptionsLine | Stop | Cancel | BadRequest | BadFrame | Closed
