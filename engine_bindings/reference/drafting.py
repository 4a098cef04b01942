"""Where drafts come from, and the guard that pauses them while too few are accepted."""

from engine_bindings.reference.rules import Rules
from engine_bindings.reference.slot import DraftModel, Slot

PAUSE_FORWARDS = 256
ABSORB_CHUNK_TOKENS = 256  # bounds the memory of the head's attention scores, as for the prompt


class NoDrafter:
    """Speculation switched off."""

    def propose(self, _slot: Slot, _token: int, _depth: int) -> list[int]:
        """Return nothing."""
        return []

    def follow(self, _slot: Slot) -> None:
        """Do nothing."""


class NgramDrafter:
    """Repeats what followed the newest two tokens when they last occurred; for models without a head."""

    def propose(self, slot: Slot, token: int, depth: int) -> list[int]:
        """Return the tokens behind the last earlier place where the newest pair stands."""
        text = [*slot.history, token]
        pair = text[-2:]
        for start in range(len(text) - 3, -1, -1):
            if text[start : start + 2] == pair:
                return text[start + 2 : start + 2 + depth]
        return []

    def follow(self, _slot: Slot) -> None:
        """Do nothing: the history is all there is to know."""


class MtpDrafter:
    """Drafts with the model's own multi-token-prediction head.

    Head row p pairs the main model's hidden row at p with the token at p + 1. All rows up to the newest token
    are filled from verified pairs before drafting, so the drafts depend on the tokens alone: not on how the
    prompt was cached, on pauses, or on drafts that were rejected.
    """

    def __init__(self, model: DraftModel, rules: Rules) -> None:
        self.model = model
        self.rules = rules

    def propose(self, slot: Slot, token: int, depth: int) -> list[int]:
        """Fill the head's rows up to the newest verified pair, then guess ``depth`` tokens."""
        end = slot.length
        start = self._absorb(slot, end - ABSORB_CHUNK_TOKENS)
        slot.draft_rows = end
        if start >= end:
            return []
        tokens_after = [*slot.history[start + 1 : end], token]
        hidden = slot.draft_hidden[self.rules.paired_rows(start, end)]
        position = self.rules.head_position(start, end, slot.rejections)
        return self.model.draft(slot.cache, tokens_after, hidden, position, depth)

    def follow(self, slot: Slot) -> None:
        """Fill the head's rows of all tokens whose successor is known."""
        slot.draft_rows = self._absorb(slot, slot.length - 1)

    def _absorb(self, slot: Slot, end: int) -> int:
        """Fill head rows below ``end`` in chunks and return the first position that is not filled."""
        start = max(self.rules.draft_base(slot.draft_rows, slot.length), slot.hidden_start)
        while start < end:
            stop = min(start + ABSORB_CHUNK_TOKENS, end)
            hidden = slot.draft_hidden[self.rules.paired_rows(start, stop)]
            self.model.absorb(slot.cache, slot.history[start + 1 : stop + 1], hidden, start)
            start = stop
        return start


class Guard:
    """Pauses drafting inside a turn when the acceptance since its start or its last pause is too low."""

    def __init__(self, percent: int, window_tokens: int) -> None:
        self.percent = percent
        self.window_tokens = window_tokens
        self.drafted = 0
        self.accepted = 0
        self.paused_forwards = 0

    def count(self, drafted: int, accepted: int) -> None:
        """Take in one verified forward."""
        self.drafted += drafted
        self.accepted += accepted

    def starts_pause(self) -> bool:
        """Return True when drafting pauses from this forward on; the pause begins with the call."""
        if self.paused_forwards or self.drafted < self.window_tokens:
            return False
        if self.accepted * 100 >= self.drafted * self.percent:
            return False
        self.paused_forwards = PAUSE_FORWARDS
        return True

    def skips_forward(self) -> bool:
        """Return True while the pause lasts, and count it down; acceptance is counted afresh behind it."""
        if not self.paused_forwards:
            return False
        self.paused_forwards -= 1
        if not self.paused_forwards:
            self.drafted = self.accepted = 0
        return True
