"""Named limits on everything that a peer can make us hold in memory."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one item of a stream may hold. A peer that goes beyond raises `RemoteProtocolError`.

    Attributes:
        max_line_bytes: one line without its newline. The longest known is EMAP of a 744B model, 92 rows of
            256 experts in two hex digits each, 46 KiB; 20 times that leaves room and still bounds memory.
        max_data_bytes: payload of one DATA frame. The engine sends one token of at most 256 bytes.
        max_payload_bytes: one prompt, the engine's own limit.
        max_grammar_bytes: one grammar, the engine's own limit.
        max_chat_line_bytes: one interactive line. The engine builds the templated line in 64 KiB and
            overruns it when a line is longer.
        max_banner_bytes: everything before READY. The engine writes two lines; wrappers may add their own.
        max_ready_notes: lines of unknown kind between READY's STAT and the line that proves the protocol.
    """

    max_line_bytes: int = MIB
    max_data_bytes: int = MIB
    max_payload_bytes: int = 16 * MIB
    max_grammar_bytes: int = MIB
    max_chat_line_bytes: int = 65_000
    max_banner_bytes: int = MIB
    max_ready_notes: int = 64


DEFAULT_LIMITS = Limits()
