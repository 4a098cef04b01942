"""One answer as it arrives: its deliveries, its token lengths, and where a stop string cuts it."""

from collections.abc import Sequence

from harness.scenario import cut_at_stop
from harness.transcript import Delivery

# An engine that does not stop is cut off here, far beyond what its cap allows: a token is at most 256
# bytes in the protocols, and going over the cap by a few tokens is a finding, not a reason to stop.
MAX_TOKEN_BYTES = 256
CAP_FACTOR = 2
CAP_SLACK_TOKENS = 1024


class Answer:
    """Collects an answer. A stop string may begin in one delivery and end in a later one."""

    def __init__(self, stop: Sequence[str], *, max_tokens: int) -> None:
        self.raw = bytearray()
        self.token_lengths: list[int] = []
        self.logprobs: list[float | None] = []
        self.deliveries: list[Delivery] = []
        self.stopped = False
        self._stop = tuple(stop)
        self._stop_bytes = tuple(word.encode() for word in stop)
        self._limit_tokens = CAP_FACTOR * max_tokens + CAP_SLACK_TOKENS
        self._longest_bytes = max(map(len, self._stop_bytes), default=0)

    def add_text(self, at_ns: int, data: bytes) -> None:
        """Take bytes that show no token boundaries."""
        if data:
            self.deliveries.append(Delivery(at_ns=at_ns, size_bytes=len(data)))
            self._extend(data)

    def add_tokens(self, at_ns: int, tokens: Sequence[bytes]) -> None:
        """Take the tokens that one read brought."""
        if tokens:
            self.token_lengths += map(len, tokens)
            data = b"".join(tokens)
            self.deliveries.append(Delivery(at_ns=at_ns, size_bytes=len(data), tokens=len(tokens)))
            self._extend(data)

    @property
    def pieces(self) -> int:
        """Tokens so far, or pieces of output where no tokens are shown."""
        return len(self.token_lengths) or len(self.deliveries)

    @property
    def is_endless(self) -> bool:
        """True when more has come than the cap can explain."""
        too_many = len(self.token_lengths) > self._limit_tokens or len(self.deliveries) > self._limit_tokens
        return too_many or len(self.raw) > self._limit_tokens * MAX_TOKEN_BYTES

    def visible_text(self) -> bytes:
        """Return the answer, cut before the first stop string."""
        whole = bytes(self.raw)
        cut = cut_at_stop(whole, self._stop)
        return whole if cut is None else cut

    def _extend(self, data: bytes) -> None:
        searched_from = max(0, len(self.raw) - self._longest_bytes + 1)
        self.raw += data
        if not self.stopped:
            self.stopped = any(self.raw.find(word, searched_from) >= 0 for word in self._stop_bytes)
