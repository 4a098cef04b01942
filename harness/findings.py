"""What is known of one difference, and what was made of it: the values between evidence and verdict."""

from dataclasses import dataclass
from typing import Literal

from harness.identity import Difference
from harness.plan import Arm, ContrastKind, NearTiePolicy, ProbeKind
from harness.transcript import Finish

VerdictClass = Literal[
    "failed",
    "void",
    "nondeterministic",
    "prompt-mismatch",
    "near-tie",
    "stop-or-cap",
    "grammar",
    "prefix-reuse",
    "state",
    "numerics",
    "finish-reason",
    "counters",
    "slower",
    "unproven",
    "identical",
]
Effect = Literal["fail", "open", "explained", "none"]
Outcome = Literal["same", "elsewhere", "none"]
Side = Literal["a", "b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Both arms once more, in fresh processes: does the difference come back at the same place?

    ``repeats_a`` and ``repeats_b`` say whether the arm gave its first answer again as far as it was asked.
    """

    outcome: Outcome
    repeats_a: bool
    repeats_b: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthOutcome:
    """The first difference from the answer without drafting at another draft depth."""

    depth: int
    outcome: Outcome
    byte_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How far the margins of the two arms are apart over the tokens before the difference."""

    tokens: int
    median: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a fresh process without drafting gives next behind the common part of the answers.

    ``agrees`` is the side that goes on like that, None when neither does. ``shown`` is printable.
    """

    agrees: Side | None
    shown: str
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """How one side of a pair ended, and what it took from the cache."""

    finish: Finish
    emitted_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one difference between two arms. None and empty mean: not gathered.

    Attributes:
        kind, a, b: the contrast.
        differences: the fields that differ, as ``harness.identity`` lists them.
        policy, tie_gap: what counts as a near-tie, and whether it is explained.
        cap_tokens: of the turn.
        failed, void: why an arm has no answer, or none that counts.
        unsteady: labels of arms that do not equal themselves.
        unrepeated: labels of arms of which this turn was seen once only.
        prompts_equal: both arms were sent the same bytes; None where one of them typed a line.
        prefix_moved: the paths took other prefixes from the cache, as they answered in other contexts.
        stream: how an answer was sent in another number of tokens than the engine counted; empty if not.
        shorter: the side whose text is the beginning of the other's, when that is all that differs in it.
        end_a, end_b: the ends of the turns.
        cold: the turn again as the first of a process. replay: its conversation again as the first of one,
            with those beside it where slots are compared. again: all that ran before it, again. Turns of one
            cell are one turn when cold, so that never shows their difference.
        exact: a typed line that came first in its process, asked as an exact prompt instead.
        gap_a, gap_b: of the first choice that differs, from the engine.
        alike: both arms chose the same token there, whatever became of it.
        swapped: both arms have the same two candidates there, in the other order.
        noise: see :class:`Noise`. cold_noise: the same between the cold probes, over all they share.
        depths: the sweep. score: see :class:`Score`.
        gap_cold: of that choice in the cold turn, for turns of one cell and for several slots.
        by_drafts: for turns of one cell: the arm without drafts answers as the scenario says.
        undrafted_unknown: what that arm answers was not seen.
        same_undrafted: labels of the arms that have no drafts, or whose path gives their answer without too.
        other_blocks: two builds keep other drafts where their texts are the same, so that their forwards have
            other shapes.
        sampled: the answers were drawn at a temperature above 0.
        missing: probes that were not tried yet, in the order in which they are worth their tokens.
    """

    kind: ContrastKind
    a: Arm
    b: Arm
    differences: tuple[Difference, ...]
    policy: NearTiePolicy
    tie_gap: float
    cap_tokens: int
    end_a: TurnEnd
    end_b: TurnEnd
    failed: str = ""
    void: str = ""
    unsteady: tuple[str, ...] = ()
    unrepeated: tuple[str, ...] = ()
    prompts_equal: bool | None = True
    prefix_moved: bool = False
    stream: str = ""
    shorter: Side | None = None
    cold: Rerun | None = None
    replay: Rerun | None = None
    again: Rerun | None = None
    exact: Rerun | None = None
    gap_a: float | None = None
    gap_b: float | None = None
    alike: bool | None = None
    swapped: bool | None = None
    noise: Noise | None = None
    cold_noise: Noise | None = None
    depths: tuple[DepthOutcome, ...] = ()
    score: Score | None = None
    gap_cold: float | None = None
    by_drafts: bool = False
    undrafted_unknown: bool = False
    same_undrafted: tuple[str, ...] = ()
    other_blocks: bool = False
    sampled: bool = False
    missing: tuple[ProbeKind, ...] = ()

    def field(self, name: str) -> Difference | None:
        """Return the difference in one field, if there is one."""
        return next((item for item in self.differences if item.field == name), None)

    @property
    def gap(self) -> float | None:
        """The margin: the larger gap of the two sides, as far as the engine gave them."""
        known = [gap for gap in (self.gap_a, self.gap_b) if gap is not None]
        return max(known) if known else None

    @property
    def stays_put(self) -> bool:
        """The sweep found the first difference at the same place at some depth, and nowhere else."""
        outcomes = {item.outcome for item in self.depths}
        return "same" in outcomes and "elsewhere" not in outcomes

    @property
    def moves(self) -> bool:
        """The sweep found the first difference at another place."""
        return any(item.outcome == "elsewhere" for item in self.depths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a rule makes of the evidence, and the probes that could still change it."""

    verdict_class: VerdictClass
    effect: Effect
    reason: str
    wanted: tuple[ProbeKind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaid:
    """Probes that could still change a finding, and were not run: they do not fit into the budget.

    ``tokens`` is what they decode at most, ``left_tokens`` what the budget of ``budget_tokens`` had left.
    """

    keys: tuple[str, ...]
    tokens: int
    left_tokens: int
    budget_tokens: int

    @property
    def sentence(self) -> str:
        """Why the evidence is missing."""
        return (
            f"the evidence is missing because the next probes take {self.tokens:,} tokens and the budget of "
            f"{self.budget_tokens:,} has {self.left_tokens:,} left"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference, named.

    Attributes:
        verdict_class: what kind of difference it is; docs/verdicts.md explains each.
        effect: ``fail`` is proven, ``open`` leaves the verdict inconclusive, ``explained`` is a remark.
        rule: name of the rule that decided.
        contrast: name of the contrast; empty when one arm alone shows the fault.
        arms: the arms it is about.
        scenario, conversation, turn: where; ``turn`` from 0.
        reason: why it is called so, in words and numbers.
        facts: the evidence, one sentence each.
        margin: gap between the two candidates, None when the engine did not give one.
        wanted: probes that could still change it.
    """

    verdict_class: VerdictClass
    effect: Effect
    rule: str
    contrast: str
    arms: tuple[Arm, ...]
    scenario: str
    conversation: str
    turn: int
    reason: str
    facts: tuple[str, ...] = ()
    margin: float | None = None
    wanted: tuple[ProbeKind, ...] = ()

    @property
    def between_arms(self) -> bool:
        """Whether it lies between two builds or draft depths."""
        return len({(arm.build, arm.depth) for arm in self.arms}) > 1

    @property
    def place(self) -> str:
        """Where it is, in words; turns are counted from 1 there."""
        return f"{self.scenario}, {self.conversation}, turn {self.turn + 1}"
