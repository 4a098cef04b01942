"""Defects of ends and limits: stops, caps, the context's end, and what is said of them."""

import time
from collections.abc import Sequence

from engine_bindings.reference.defects.defect import Defect, Seeded
from engine_bindings.reference.rules import Block, Finish

RETRY_S = 0.01


class CapBeforeStop(Seeded):
    """The cap is looked at first, and once it is reached nobody looks for a stop."""

    def cut_accepted(self, accepted: Sequence[int], stops: frozenset[int], room: int) -> Block:
        """Cut at the cap, and at a stop only where the cap is not reached."""
        if len(accepted) >= room:
            return Block(tokens=tuple(accepted[:room]), finish="length")
        return super().cut_accepted(accepted, stops, room)


class StopNotCheckedOnAccepted(Seeded):
    """Only a token that was chosen by itself can stop the turn."""

    def cut_accepted(self, accepted: Sequence[int], _stops: frozenset[int], room: int) -> Block:
        """Pass over stops."""
        return super().cut_accepted(accepted, frozenset(), room)


class StopPolledAtTurnEnd(Seeded):
    """The loop answers a turn to its end before it reads on."""

    def polls_input(self, *, running: bool) -> bool:
        """Read between turns only."""
        return not running


class FinishReasonAtAdmission(Seeded):
    """Serve mode settles the finish flag when a request comes in, and the cap is not reached then."""

    def length_limited(self, finish: Finish | None) -> bool:
        """Return False in serve mode."""
        return super().length_limited(finish) and not self.serves


class LengthForOtherReasons(Seeded):
    """Whatever ends a turn is called its length."""

    def length_limited(self, finish: Finish | None) -> bool:
        """Return True for every end."""
        return finish is not None


class NoClampAtWindow(Seeded):
    """Drafts are cut to the cap only."""

    def draft_depth(self, depth: int, room_tokens: int, room_rows: int) -> int:
        """Return the full depth near the end of the context, where the cap comes from it."""
        return super().draft_depth(depth, room_tokens, room_rows) if room_rows > depth else depth


class RejectLoop(Seeded):
    """A draft that was rejected is tried again until it is accepted, which is never."""

    def count_accepted(self, drafts: Sequence[int], chosen: Sequence[int]) -> int:
        """Do not return before a draft is accepted."""
        while drafts and not (accepted := super().count_accepted(drafts, chosen)):
            time.sleep(RETRY_S)
        return accepted if drafts else 0


class SilentTruncation(Seeded):
    """A prompt that is too long is made to fit, and nobody is told."""

    def fit_prompt(self, prompt: list[int], limit_tokens: int) -> list[int]:
        """Keep the newest tokens."""
        return prompt[-limit_tokens:]


END_DEFECTS = (
    Defect(
        name="cap-before-stop",
        group="ends",
        wrong="max_tokens is tested before the stop inside an accepted block",
        references=("sglang#31599",),
        seen_in="tokens behind the stop, finish reason",
        verdict="stop-or-cap",
        rules=CapBeforeStop,
    ),
    Defect(
        name="stop-not-checked-on-accepted",
        group="ends",
        wrong="stop tokens inside an accepted block are passed over",
        references=("gpustack#1455",),
        seen_in="text",
        verdict="stop-or-cap",
        rules=StopNotCheckedOnAccepted,
    ),
    Defect(
        name="stop-string-suffix-kept",
        group="ends",
        wrong="a stop string across a block edge is not cut off",
        references=("onnxruntime-genai#2528",),
        seen_in="text, usage",
        verdict="stop-or-cap",
        unavailable="the engine knows stop tokens only: stop strings are matched by whoever reads its stream",
    ),
    Defect(
        name="stop-polled-at-turn-end",
        group="ends",
        wrong="STOP and CANCEL are read between turns only",
        references=("colibri#678",),
        seen_in="serve mode: tokens and time between STOP and DONE",
        verdict="stop-or-cap",
        rules=StopPolledAtTurnEnd,
    ),
    Defect(
        name="finish-reason-at-admission",
        group="ends",
        wrong="the finish reason is never set on one path: serve mode does not say that the cap ended a turn",
        references=("colibri#576",),
        seen_in="finish reason, chat against serve and against the cap",
        verdict="finish-reason",
        rules=FinishReasonAtAdmission,
    ),
    Defect(
        name="length-for-other-reasons",
        group="ends",
        wrong="every end is reported as length",
        references=("mlx-serve#127",),
        seen_in="finish reason against counts: fewer tokens than the cap",
        verdict="finish-reason",
        rules=LengthForOtherReasons,
    ),
    Defect(
        name="no-clamp-at-window",
        group="ends",
        wrong="drafts are not cut at the end of the context",
        references=("exllamav2#274",),
        seen_in="a turn that reaches the end of the context: the engine dies",
        verdict="failed",
        rules=NoClampAtWindow,
    ),
    Defect(
        name="reject-loop",
        group="ends",
        wrong="the same rejected draft is tried for ever",
        references=("llama.cpp#23268",),
        seen_in="no progress after the first forward that accepts nothing; soft signals are not looked at",
        verdict="failed",
        rules=RejectLoop,
    ),
    Defect(
        name="silent-truncation",
        group="ends",
        wrong="an over-long prompt is cut without a word",
        references=("colibri#401",),
        seen_in="an answer where a refusal is due; prompt token count",
        verdict="prompt-mismatch",
        rules=SilentTruncation,
    ),
)
