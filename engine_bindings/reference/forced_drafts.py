"""Drafts of which verification accepts a chosen number, so that every shape of block can be had at will."""

from collections.abc import Callable

import numpy as np

from engine_bindings.reference.model import Segment
from engine_bindings.reference.settings import ForceAccept
from engine_bindings.reference.slot import MainModel, Slot

PATTERNS: dict[ForceAccept, Callable[[int, int], int]] = {
    "accept": lambda _forward, depth: depth,
    "reject": lambda _forward, _depth: 0,
    "alternate": lambda forward, depth: 0 if forward % 2 else depth,
    "cycle": lambda forward, depth: forward % (depth + 1),
}


class ForcedDrafter:
    """Looks ahead with the main model itself: right tokens as many as wanted, then wrong ones.

    Verification is the same as ever, so the emitted text is too. The look-ahead is greedy: in sampled turns
    the rejected drafts are still the least probable tokens, but the others are accepted only where the draw
    agrees.
    """

    def __init__(self, model: MainModel, pattern: ForceAccept) -> None:
        self.model = model
        self.pattern = PATTERNS[pattern]
        self.forwards = 0

    def propose(self, slot: Slot, token: int, depth: int) -> list[int]:
        """Return ``depth`` drafts; the rows that the look-ahead wrote are forgotten again."""
        wanted = self.pattern(self.forwards, depth)
        self.forwards += 1
        length = slot.cache.length
        drafts: list[int] = []
        right = token
        for place in range(depth):
            segment = Segment(cache=slot.cache, tokens=(right,), start=length + place)
            logits = self.model.forward([segment]).logits[0]
            right = int(logits.argmax())
            drafts.append(right if place < wanted else int(np.argmin(logits)))
        slot.cache.truncate(length)
        return drafts

    def follow(self, _slot: Slot) -> None:
        """Do nothing: the main model's rows are all there is to know."""
