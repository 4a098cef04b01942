"""The stdio protocols of the engine, without any IO: bytes in, events out, for both ends.

`ChatClient` and `MuxClient` talk to an engine in chat and in serve mode; `ChatServer` and `MuxServer` are the
other ends, used by the reference engine. `stderr_lines` reads what an engine says on the side.
"""

from .chat_protocol import ChatClient, ChatServer
from .counts import ExpertHits, ExpertMap, Hardware, Profile, Stat, Tiers
from .errors import LocalProtocolError, ProtocolError, RemoteProtocolError, WrongProtocol
from .events import (
    Accepted,
    BadFrame,
    BadPrompt,
    BadRequest,
    Banner,
    Cancel,
    ChatCommand,
    ChatReply,
    Closed,
    Data,
    Done,
    Line,
    More,
    MuxCommand,
    MuxReply,
    Note,
    Prompt,
    Ready,
    Refused,
    Reset,
    Stop,
    Submit,
    Text,
    TurnEnd,
    TurnProfile,
)
from .limits import DEFAULT_LIMITS, Limits
from .mux_protocol import MuxClient, MuxServer

__all__ = [
    "DEFAULT_LIMITS",
    "Accepted",
    "BadFrame",
    "BadPrompt",
    "BadRequest",
    "Banner",
    "Cancel",
    "ChatClient",
    "ChatCommand",
    "ChatReply",
    "ChatServer",
    "Closed",
    "Data",
    "Done",
    "ExpertHits",
    "ExpertMap",
    "Hardware",
    "Limits",
    "Line",
    "LocalProtocolError",
    "More",
    "MuxClient",
    "MuxCommand",
    "MuxReply",
    "MuxServer",
    "Note",
    "Profile",
    "Prompt",
    "ProtocolError",
    "Ready",
    "Refused",
    "RemoteProtocolError",
    "Reset",
    "Stat",
    "Stop",
    "Submit",
    "Text",
    "Tiers",
    "TurnEnd",
    "TurnProfile",
    "WrongProtocol",
]
