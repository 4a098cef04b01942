"""What was seen of one path: its records by the reason for which they were run, and a turn in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine_bindings.binding import Capabilities, EnginePath
from harness.doctor.probes import VisitKind
from harness.engagement import CellEngagement
from harness.findings import Finding
from harness.plan import Plan
from harness.scenario import Turn
from harness.transcript import CellRecord, TurnRecord

REFUSED = "engine-refused"
CUT_SHORT = ("cancelled", "refused")
SHOWN_CHARACTERS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class PathView:
    """One path.

    Attributes:
        path: its name.
        plan: of the examination.
        able: what the binding says.
        records: one for each visit that was made.
        clamped: the paths whose engine had its own limit lowered in the ``limits`` visit.
        engagement: of the cells without drafts and with them.
        faults: counts that cannot be right, in the cells of this path.
        left: state that was kept although a setting forbids it.
    """

    path: EnginePath
    plan: Plan
    able: Capabilities
    records: Mapping[VisitKind, CellRecord]
    clamped: bool
    engagement: Mapping[VisitKind, CellEngagement]
    faults: tuple[Finding, ...]
    left: tuple[Finding, ...]

    def turn(self, kind: VisitKind, conversation: str, index: int = 0) -> TurnRecord | None:
        """Return one turn of a visit, None when it was not run or did not end."""
        record = self.records.get(kind)
        turns = record.turns if record else ()
        return next((t for t in turns if (t.conversation, t.turn) == (conversation, index)), None)

    def whole_turns(self, *kinds: VisitKind) -> tuple[TurnRecord, ...]:
        """Return the turns of visits that nobody cut short."""
        records = (self.records[kind] for kind in kinds if kind in self.records)
        return tuple(turn for record in records for turn in record.turns if turn.finish not in CUT_SHORT)

    def asked(self, kind: VisitKind, turn: TurnRecord) -> Turn:
        """Return what was asked for with a turn; a typed line carries no cap, so the cell's holds."""
        scenario = self.plan.scenario(self.records[kind].spec.scenario)
        conversation = next(c for c in scenario.conversations if c.id == turn.conversation)
        return conversation.turns[turn.turn]

    def cap_tokens(self, kind: VisitKind, turn: TurnRecord) -> int:
        """Return the cap of a turn; a typed line carries none, so that of its whole cell holds."""
        if turn.entry == "line":
            return self.plan.scenario(self.records[kind].spec.scenario).cap_tokens
        return self.asked(kind, turn).max_tokens

    def label(self, kind: VisitKind) -> str:
        """Return the name of the arm of a visit."""
        return self.records[kind].spec.arm.label

    def describe(self, kind: VisitKind, turn: TurnRecord) -> str:
        """Return what was asked and what came back, in one line."""
        asked = self.asked(kind, turn).text
        text = asked if len(asked) <= SHOWN_CHARACTERS else asked[: SHOWN_CHARACTERS - 3] + "..."
        return f"{text!r} with cap {self.cap_tokens(kind, turn)}: {describe_answer(turn)}"


def describe_answer(turn: TurnRecord) -> str:
    """Return what came back: tokens, forwards where reported, and the finish reason."""
    tokens = "tokens not counted" if turn.emitted_tokens is None else f"{turn.emitted_tokens} tokens"
    forwards = "" if turn.forwards is None else f" in {turn.forwards} forwards"
    return f"{tokens}{forwards}, {turn.finish}"


def show(text: bytes) -> str:
    """Return the beginning of an answer as it can be printed."""
    shown = text.decode("utf-8", "replace")
    return repr(shown if len(shown) <= SHOWN_CHARACTERS else shown[: SHOWN_CHARACTERS - 3] + "...")
