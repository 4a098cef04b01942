"""What the gate made of each defect, held against what it must say: the rows of the matrix, and its sum."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.findings import VerdictClass
from harness.selfcheck.declared import DeclaredDefect
from harness.verdict import Status

Against = Literal["itself", "baseline"]
Outcome = Literal[
    "named",
    "misnamed",
    "missed",
    "explained",
    "accused",
    "left open",
    "unseen",
    "unavailable",
    "not run",
]

# The status that comes with each class; every other class is a fault that is proven.
_STATUSES: dict[VerdictClass, Status] = {
    "failed": "invalid",
    "void": "inconclusive",
    "nondeterministic": "inconclusive",
    "numerics": "inconclusive",
    "unproven": "inconclusive",
    "near-tie": "pass",
    "identical": "pass",
}
_ROUNDING: frozenset[VerdictClass] = frozenset({"identical", "near-tie", "numerics"})
GOOD: frozenset[Outcome] = frozenset({"named", "explained", "unavailable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one run of the gate said.

    Attributes:
        status, verdict_class: the verdict.
        sentence: the verdict in words.
        contrast: name of the contrast that decided; empty where one arm alone did.
        place: cell, or scenario, conversation and turn, in words; empty for a pass.
        tokens_decoded: by all cells and probes of the run.
        cells: how many cells were run, probes included.
        seconds: how long it took.
        against: what the engine was held against: itself, or the records of the healthy engine.
    """

    status: Status
    verdict_class: VerdictClass
    sentence: str
    contrast: str = ""
    place: str = ""
    tokens_decoded: int
    cells: int
    seconds: float
    against: Against = "itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One defect or control: what it must be called, and what it was.

    ``ratio`` is how many times fewer tokens the run decoded than the plain plan. ``settings`` are what the
    engine was given besides. ``error`` says why a run broke off, empty when it did not.
    """

    name: str
    group: str
    expected: VerdictClass
    outcome: Outcome
    given: Given | None = None
    ratio: float | None = None
    settings: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyRun:
    """One run of the healthy engine against itself. ``error`` is as in :class:`Row`.

    ``rounds`` says that its kernels round by the shape of a forward, so that there is something to explain.
    """

    name: str
    what: str
    given: Given | None
    error: str = ""
    rounds: bool = False

    @property
    def alarmed(self) -> bool:
        """Whether the gate said anything but that nothing differs, or nothing but rounding."""
        if self.given is None:
            return True
        return not finds_nothing(self.given) if self.rounds else self.given.verdict_class != "identical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The whole result.

    Attributes:
        form: ``fast`` or ``full``.
        seed: what was drawn from.
        plain_tokens: tokens that the plain plan decodes: four arms, all scenarios, nothing left out; None
            when it was not measured.
        rows: in the order of the engine's list.
        healthy: the runs that were made.
        healthy_asked: the runs that were to be made.
        seconds: how long it took.
        interrupted: whether it was broken off.
    """

    form: Literal["fast", "full"]
    seed: int
    plain_tokens: int | None
    rows: tuple[Row, ...]
    healthy: tuple[HealthyRun, ...]
    healthy_asked: int
    seconds: float
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        """Whether every defect is named, every control explained and no healthy run alarmed."""
        complete = not self.interrupted and len(self.healthy) == self.healthy_asked
        good = all(row.outcome in GOOD for row in self.rows)
        return complete and good and not any(run.alarmed for run in self.healthy)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratios of the defects that were named, controls left out, in rising order."""
        return tuple(sorted(row.ratio for row in self.rows if row.outcome == "named" and row.ratio))

    @property
    def median_ratio(self) -> float | None:
        """How many times fewer tokens than the plain plan it took to name a defect, in the median."""
        return statistics.median(self.ratios) if self.ratios else None

    def count(self, *outcomes: Outcome) -> int:
        """Return how many rows have one of the outcomes."""
        return sum(row.outcome in outcomes for row in self.rows)


def finds_nothing(given: Given) -> bool:
    """Say whether the gate proved no fault and met nothing but rounding, if that."""
    return given.status not in ("fail", "invalid") and given.verdict_class in _ROUNDING


def expected_status(verdict_class: VerdictClass) -> Status:
    """Return the status of a verdict of a class."""
    return _STATUSES.get(verdict_class, "fail")


def judge_given(defect: DeclaredDefect, given: Given | None) -> Outcome:
    """Hold what the gate said of a defect against what it must say. None is a run that broke off."""
    if given is None:
        return "missed"
    right = (given.status, given.verdict_class) == (expected_status(defect.verdict), defect.verdict)
    if defect.is_control:
        return _judge_control(given, right=right)
    if right:
        return "named"
    return "missed" if given.status == "pass" else "misnamed"


def _judge_control(given: Given, *, right: bool) -> Outcome:
    if right:
        return "explained"
    if given.status in ("fail", "invalid"):
        return "accused"
    # Nothing is shown by a control whose difference was not met.
    return "unseen" if given.verdict_class == "identical" else "left open"


def build_row(
    defect: DeclaredDefect,
    given: Given | None,
    *,
    plain_tokens: int | None,
    settings: Sequence[str] = (),
    error: str = "",
) -> Row:
    """Return the row of a defect that was run; ``given`` is None when the run broke off with ``error``."""
    ratio = plain_tokens / given.tokens_decoded if given and plain_tokens and given.tokens_decoded else None
    return Row(
        name=defect.name,
        group=defect.group,
        expected=defect.verdict,
        outcome=judge_given(defect, given),
        given=given,
        ratio=ratio,
        settings=tuple(settings),
        error=error,
    )


def build_absent_row(defect: DeclaredDefect) -> Row:
    """Return the row of a defect that was not run: it is not available, or the run was broken off."""
    return Row(
        name=defect.name,
        group=defect.group,
        expected=defect.verdict,
        outcome="not run" if defect.available else "unavailable",
        error=defect.unavailable,
    )
