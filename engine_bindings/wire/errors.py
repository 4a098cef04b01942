"""Errors of the stdio protocols: what we must not send, and what the other side must not have sent."""

MAX_EXCERPT_BYTES = 64


class ProtocolError(Exception):
    """Base of both; a caller that does not care whose fault it is catches this one."""


class LocalProtocolError(ProtocolError):
    """We were asked to send something that the protocol does not allow, or not now. Nothing was encoded."""


class RemoteProtocolError(ProtocolError):
    """The other side sent bytes that the protocol does not allow, or ended in the middle.

    Attributes:
        offset: where the offending line or frame part starts, in bytes from the start of the stream.
        excerpt: the offending bytes, at most 64 of them; empty when bytes are missing.
    """

    def __init__(self, message: str, *, offset: int, excerpt: bytes) -> None:
        excerpt = excerpt[:MAX_EXCERPT_BYTES]
        at = f"{message} at byte {offset}"
        super().__init__(f"{at}: {excerpt!r}" if excerpt else at)
        self.offset = offset
        self.excerpt = excerpt


class WrongProtocol(RemoteProtocolError):  # noqa: N818 - a finding, proven by the READY block
    """The READY block is that of the other stdio protocol; seen before anything can be sent.

    Attributes:
        expected: ``chat`` or ``serve``, what this client speaks.
        seen: what the engine speaks.
        evidence: the line that proves it.
    """

    def __init__(self, *, expected: str, seen: str, line: bytes, offset: int) -> None:
        message = f"expected the READY block of {expected} mode, got that of {seen} mode"
        super().__init__(message, offset=offset, excerpt=line)
        self.expected = expected
        self.seen = seen
        self.evidence = line.decode("utf-8", "replace")
