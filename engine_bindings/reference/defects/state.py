"""Defects of the state: KV rows, histories, hidden rows and the head's rows are not what they should be."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine_bindings.reference.defects.defect import Defect, Seeded
from engine_bindings.reference.rules import Block, FloatArray
from engine_bindings.reference.settings import EngineSettings
from engine_bindings.reference.slot import Slot

COARSE_BITS = np.uint32(0xFFF80000)  # sign, exponent and 4 bits of the fraction: one more than float8 has
CHUNK_TOKENS = 16
STEP_TOKENS = 256


class KeepRejectedKv(Seeded):
    """Later tokens see the rows of drafts that were never said."""

    def committed_tokens(self, start: int, _kept: int, computed: int, /) -> int:
        """Keep every computed row."""
        return start + computed


class RestoreRoundedKv(Seeded):
    """A state that was read back from a smaller copy is close, and close adds up."""

    def roll_back(self, slot: Slot, length: int) -> None:
        """Round the rows that stay whenever others go."""
        rejected = slot.cache.length > length
        super().roll_back(slot, length)
        if rejected:
            bits = slot.cache.keys[:-1, :, :length].view(np.uint32)
            bits &= COARSE_BITS


class WrongLogitsRow(Seeded):
    """The row behind the last accepted draft is one further than the count of accepted ones suggests."""

    def next_row(self, accepted: int) -> int:
        """Return row k - 1 after k accepted drafts, unless all were."""
        return accepted if accepted >= self.depth else max(0, accepted - 1)


class ReplayBaseMinusOne(Seeded):
    """Accepted rows are handed to the head once more, counted from one position too low."""

    def paired_rows(self, start: int, end: int) -> slice:
        """Return the rows one position too early where there are several to replay."""
        return slice(start - 1, end - 1) if start and end - start > 1 else slice(start, end)


class DuplicateBoundaryToken(Seeded):
    """The loop with drafts is entered anew every few tokens, and says the token it left off with."""

    def once(self, emitted: Sequence[int], before: int, /) -> Sequence[int]:
        """Repeat the token at a chunk's boundary."""
        place = -before % CHUNK_TOKENS
        if not self.depth or not before or place >= len(emitted):
            return emitted
        return [*emitted[: place + 1], *emitted[place:]]


class CapTokenNotCommitted(Seeded):
    """The loop ends before the forward of the last token that the cap allows."""

    def takes_in(self, block: Block) -> bool:
        """Leave the token at the cap out of the KV."""
        return super().takes_in(block) and block.finish != "length"


class PostStopTokenKept(Seeded):
    """What verification accepted is kept, whatever was emitted of it."""

    def kept_drafts(self, accepted: Sequence[int], _block: Block, /) -> Sequence[int]:
        """Keep the stop and what stands behind it."""
        return accepted


class StaleHiddenState(Seeded):
    """The head is given the hidden row that belongs to the token before."""

    def paired_rows(self, start: int, end: int) -> slice:
        """Return the rows one position too early."""
        return slice(start - 1, end - 1) if start else slice(start, end)


class DraftOverTrim(Seeded):
    """Every rejection takes one row of the head too many, so its rows slide ever further down."""

    def head_position(self, start: int, _end: int, rejections: int, /) -> int:
        """Return a position that is too low by the rejections so far."""
        return max(0, start - rejections)


class DraftRowMissing(Seeded):
    """The head's row of the first accepted draft is never made."""

    def draft_base(self, draft_rows: int, length: int, /) -> int:
        """Skip one position where several are missing."""
        return min(draft_rows + 1, length - 1) if length - draft_rows > 1 else draft_rows


class SlotZeroHardCoded(Seeded):
    """The head reads the hidden rows of slot 0 for every slot."""

    def draft_state_slot(self, _slot: int) -> int:
        """Return slot 0."""
        return 0


class DraftKvNotTrimmedOnReuse(Seeded):
    """The main KV is cut to the common prefix, the head's is not."""

    def draft_rows_kept(self, draft_rows: int, _length: int) -> int:
        """Keep the rows of the answer that was given up."""
        return draft_rows


class FirstDraftUnverified(Seeded):
    """The first draft is taken for the main model's own word."""

    def count_accepted(self, drafts: Sequence[int], chosen: Sequence[int]) -> int:
        """Accept the first draft in any case."""
        return max(super().count_accepted(drafts, chosen), min(1, len(drafts)))


class CrossRequestState(Seeded):
    """With drafts on, a request begins from the state that the request before it left."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._left: FloatArray | None = None

    def opening_row(self, logits: FloatArray) -> FloatArray:
        """Return the row of the request before."""
        left, self._left = self._left, super().opening_row(logits).copy()
        return left if self.depth and left is not None else self._left


class RowPermutation(Seeded):
    """Two turns of a batch get each other's rows."""

    def row_spans(self, widths: Sequence[int]) -> list[slice]:
        """Swap the first two turns' rows when they have equally many."""
        spans = super().row_spans(widths)
        if len(spans) > 1 and widths[0] == widths[1]:
            spans[:2] = spans[1], spans[0]
        return spans


class PoisonedPrefix(Seeded):
    """Rows of rejected drafts go into the store that later requests take their prefix from.

    The running turn has its own rows and stays right. A later turn is known by the rows that a prompt put
    between two forwards; it gets the stored rows of every prefix that it shares.
    """

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._ends: dict[int, int] = {}
        self._stored: defaultdict[int, list[_StoredRows]] = defaultdict(list)

    def roll_back(self, slot: Slot, length: int) -> None:
        """Store the rejected rows, and hand the stored ones to a turn that has just begun."""
        if slot.length != self._ends.get(slot.index):
            for rows in self._stored.pop(slot.index, ()):
                rows.write(slot)
        rejected = slot.cache.length - length
        super().roll_back(slot, length)
        if rejected:
            self._stored[slot.index].append(_StoredRows(slot, length, rejected))
        self._ends[slot.index] = length


class _StoredRows:
    """The KV rows of rejected drafts behind a prefix."""

    def __init__(self, slot: Slot, start: int, count: int) -> None:
        self.prefix = tuple(slot.history)
        self.start = start
        self.columns: NDArray[np.float32] = slot.cache.keys[:-1, :, start : start + count].copy()

    def write(self, slot: Slot) -> None:
        """Put the rows in their places if the slot's context begins with the prefix."""
        count = min(self.columns.shape[2], slot.length - self.start)
        if count > 0 and tuple(slot.history[: len(self.prefix)]) == self.prefix:
            slot.cache.keys[:-1, :, self.start : self.start + count] = self.columns[:, :, :count]


class AdoptOneRowTooMany(Seeded):
    """The first row that differs is taken over with the prefix."""

    def match_prefix(self, history: Sequence[int], prompt: Sequence[int]) -> int:
        """Return one token more than both have in common, where the context has one."""
        matched = super().match_prefix(history, prompt)
        return min(matched + 1, len(history), len(prompt)) if matched else 0


class LongPrefixNotCut(Seeded):
    """A context is cut for a new prompt only where both have no more than an allocation step in common."""

    def match_prefix(self, history: Sequence[int], prompt: Sequence[int]) -> int:
        """Take all of the context for a prefix once that much of it is one."""
        matched = super().match_prefix(history, prompt)
        return min(len(history), len(prompt)) if matched > STEP_TOKENS else matched


class PrefixDroppedOnHit(Seeded):
    """A reused prefix counts, but no new token attends to it."""

    def adopt_prefix(self, slot: Slot, length: int) -> None:
        """Blank the columns of the prefix: their weight in every attention sum is zero."""
        super().adopt_prefix(slot, length)
        keys = slot.cache.keys[:-1]
        keys[:, -1] = 1.0  # columns that an earlier prefix blanked are written again
        keys[:, :, :length] = 0.0


STATE_DEFECTS = (
    Defect(
        name="keep-rejected-kv",
        group="state",
        wrong="KV rows of rejected drafts stay in the cache",
        references=("mlx-lm#1109", "llama.cpp#20075"),
        seen_in="text after the first rejection",
        verdict="state",
        rules=KeepRejectedKv,
    ),
    Defect(
        name="restore-rounded-kv",
        group="state",
        wrong="after a rejection the state is restored from a copy of lower precision",
        references=("atlas-recipes#16",),
        seen_in="text, up to hundreds of tokens later",
        verdict="state",
        rules=RestoreRoundedKv,
    ),
    Defect(
        name="wrong-logits-row",
        group="state",
        wrong="after a partial accept of k drafts the logits of row k-1 are used, not of row k",
        references=("ds4#750",),
        seen_in="text; the place moves with the depth",
        verdict="state",
        rules=WrongLogitsRow,
    ),
    Defect(
        name="replay-base-minus-one",
        group="state",
        wrong="accepted rows are replayed into the draft state from one position too low",
        references=("ik_llama.cpp#1799",),
        seen_in="acceptance",
        verdict="counters",
        rules=ReplayBaseMinusOne,
    ),
    Defect(
        name="duplicate-boundary-token",
        group="state",
        wrong="the token at a boundary is emitted twice where a turn is cut in chunks",
        references=("imp#683", "colibri#581"),
        seen_in="text",
        verdict="state",
        rules=DuplicateBoundaryToken,
    ),
    Defect(
        name="cap-token-not-committed",
        group="state",
        wrong="the token emitted at max_tokens never enters the KV",
        references=("colibri#567",),
        seen_in="turn 2: prefill one too many, or text",
        verdict="prefix-reuse",
        rules=CapTokenNotCommitted,
    ),
    Defect(
        name="post-stop-token-kept",
        group="state",
        wrong="tokens accepted with a stop stay in the history",
        references=("llama.cpp#28049", "ds4#1000"),
        seen_in="turn 2: prefill, or text",
        verdict="prefix-reuse",
        rules=PostStopTokenKept,
    ),
    Defect(
        name="stale-hidden-state",
        group="state",
        wrong="the hidden row of another position feeds the MTP head",
        references=("ik_llama.cpp#1718", "ROCmFPX#15"),
        seen_in="acceptance only",
        verdict="counters",
        rules=StaleHiddenState,
    ),
    Defect(
        name="draft-over-trim",
        group="state",
        wrong="the draft KV is trimmed by the rejected rows and one more",
        references=("mlxcel#994",),
        seen_in="acceptance, falling along the answer",
        verdict="counters",
        rules=DraftOverTrim,
    ),
    Defect(
        name="draft-row-missing",
        group="state",
        wrong="the draft KV lacks the row of an accepted position",
        references=("lattice#293",),
        seen_in="acceptance",
        verdict="counters",
        rules=DraftRowMissing,
    ),
    Defect(
        name="slot-zero-hard-coded",
        group="state",
        wrong="the draft state is always that of slot 0",
        references=("buun-llama-cpp#110",),
        seen_in="acceptance in other slots (chat mode with KV_SLOTS>1)",
        verdict="counters",
        rules=SlotZeroHardCoded,
    ),
    Defect(
        name="draft-kv-not-trimmed-on-reuse",
        group="state",
        wrong="the draft KV is not cut when a prefix is reused",
        references=("llama-cpp-turboquant#306",),
        seen_in="acceptance of a turn that gives up part of the context",
        verdict="counters",
        rules=DraftKvNotTrimmedOnReuse,
    ),
    Defect(
        name="first-draft-unverified",
        group="state",
        wrong="the first draft is accepted unchecked",
        references=("lattice#243",),
        seen_in="text",
        verdict="state",
        rules=FirstDraftUnverified,
    ),
    Defect(
        name="cross-request-state",
        group="state",
        wrong="the state of the previous request leaks into the next one while speculation is on",
        references=("llama.cpp#27296",),
        seen_in="text: another request's first word",
        verdict="state",
        rules=CrossRequestState,
    ),
    Defect(
        name="row-permutation",
        group="state",
        wrong="the rows of two slots are swapped in a batch",
        references=("vllm#53919",),
        seen_in="text with two slots",
        verdict="state",
        rules=RowPermutation,
    ),
    Defect(
        name="poisoned-prefix",
        group="state",
        wrong="rows of rejected drafts are written into a shared prefix",
        references=("vllm#43559", "club-3090#710"),
        seen_in="text of a later request with that prefix",
        verdict="state",
        rules=PoisonedPrefix,
    ),
    Defect(
        name="adopt-one-row-too-many",
        group="state",
        wrong="a prefix is taken over with one row beyond the match",
        references=("colibri#545",),
        seen_in="turn that gives up part of the context: prefill one too few, text",
        verdict="prefix-reuse",
        rules=AdoptOneRowTooMany,
    ),
    Defect(
        name="long-prefix-not-cut",
        group="state",
        wrong="behind a common prefix of more than 256 tokens the old context is kept",
        references=("claude-code-local#46",),
        seen_in="text: a prompt with a long prefix of another one, against the same prompt cold",
        verdict="prefix-reuse",
        rules=LongPrefixNotCut,
    ),
    Defect(
        name="prefix-dropped-on-hit",
        group="state",
        wrong="a cached prefix is counted as reused and not attended to",
        references=("omlx#2443",),
        seen_in="text: early facts forgotten after a hit, against the same prompt cold",
        verdict="prefix-reuse",
        rules=PrefixDroppedOnHit,
    ),
)
