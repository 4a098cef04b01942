"""What an engine was seen to do, held against what its binding claims: rows with evidence, and complaints.

Nothing is believed that was not seen in a record: a banner is no evidence, and what no turn showed is
"not shown".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine_bindings.binding import UNKNOWN_DEPTH, Capabilities, EnginePath
from harness.comparison import Comparison
from harness.findings import Finding
from harness.plan import CellSpec, Plan
from harness.scenario import Conversation, Scenario, Turn
from harness.transcript import CellRecord, TurnRecord
from harness.verdict import describe_found, list_faults

Seen = Literal["yes", "no", "not shown"]
Records = Mapping[CellSpec, CellRecord]

# Long enough that a head without training is told from one with, and short where a token costs a second.
CAP_TOKENS = 32
QUESTIONS = ("Count from 1 to 30", "Count from 3 to 9")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityRow:
    """One capability of one path: what is claimed, what was seen, and on what evidence."""

    path: EnginePath
    capability: str
    claimed: bool
    seen: Seen
    evidence: str

    @property
    def contradicted(self) -> bool:
        """The claim is one that the evidence denies."""
        return self.claimed and self.seen == "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Something that is wrong, where, and what to do about it."""

    place: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that the doctor has to say. ``left_out``: paths that were not looked at, each with the reason."""

    rows: tuple[CapabilityRow, ...]
    complaints: tuple[Complaint, ...]
    left_out: tuple[str, ...]
    tokens_decoded: int


def build_questions(able: Capabilities) -> tuple[Scenario, ...]:
    """Return what is asked: two turns of one talk, also typed where a path takes nothing else.

    The first answer is longer than its cap; the second ends by itself.
    """
    turns = tuple(Turn(kind="user", text=text, max_tokens=CAP_TOKENS) for text in QUESTIONS)
    talk = Conversation(id="talk", category="chat", system=None, turns=turns)
    scenario = Scenario(
        name="questions",
        title="What the doctor asks",
        description="",
        entry="prompt",
        temperature=0.0,
        top_p=1.0,
        conversations=(talk,),
    )
    typed_only = any(set(able.entries_of(path)) == {"line"} for path in able.paths)
    lines = Scenario(
        name="typed",
        title="The same, typed",
        description="",
        entry="line",
        temperature=0.0,
        top_p=1.0,
        conversations=(talk,),
    )
    return (scenario, lines) if typed_only else (scenario,)


def diagnose(
    plan: Plan, able: Capabilities, latest: Records, comparison: Comparison, margins: TurnRecord | None
) -> Diagnosis:
    """Return what the records show.

    Args:
        plan: of the questions.
        able: what the binding claims.
        latest: the record of each cell.
        comparison: of these records.
        margins: a turn for which the engine was asked to print margins, None where that was not tried.
    """
    rows: list[CapabilityRow] = []
    for path in dict.fromkeys(arm.path for arm in plan.arms):
        cells = [record for spec, record in latest.items() if spec.arm.path == path and spec.probe is None]
        rows += _describe_path(path, cells, able, comparison)
    if able.margin_pin is not None:
        rows.append(_describe_margins(plan.arms[0].path, margins))
    return Diagnosis(
        rows=tuple(rows),
        complaints=tuple(dict.fromkeys(_list_complaints(latest, comparison, rows))),
        left_out=plan.left_out,
        tokens_decoded=comparison.tokens_decoded,
    )


def _describe_path(
    path: EnginePath, cells: Sequence[CellRecord], able: Capabilities, comparison: Comparison
) -> Iterator[CapabilityRow]:
    def row(capability: str, seen: Seen, evidence: str, *, claimed: bool = True) -> CapabilityRow:
        return CapabilityRow(path=path, capability=capability, claimed=claimed, seen=seen, evidence=evidence)

    failed = [cell for cell in cells if cell.failure is not None]
    turns = [turn for cell in cells for turn in cell.turns]
    answered = f"{len(turns)} turns in {len(cells)} starts"
    failure = failed[0].failure if failed else None
    yield row("answers", "no" if failure else "yes", failure.message if failure else answered)
    shown: set[int] = set()
    for engagement in comparison.engagements:
        if engagement.arm.path != path or not engagement.totals.turns or engagement.arm.depth in shown:
            continue
        shown.add(engagement.arm.depth)  # the same, typed, is in its records and in the complaints
        depth = engagement.arm.depth
        name = (
            "runs"
            if depth == UNKNOWN_DEPTH
            else f"drafts at depth {depth}"
            if depth
            else "runs without drafts"
        )
        good = engagement.state in ("on", "off")
        yield row(name, "yes" if good else "no", engagement.evidence)
    yield row(
        "shows which bytes are a token",
        _is_reported(turns, "token_lengths"),
        _show(turns, "token_lengths", "frames, one for each token"),
        claimed=path in able.frames_are_tokens,
    )
    for field, claimed in (
        ("forwards", able.reports_forwards),
        ("drafted_tokens", able.reports_drafted),
        ("cached_tokens", able.reports_cached_tokens),
        ("prompt_tokens", able.reports_cached_tokens),
        ("emitted_tokens", True),
    ):
        # A typed line hides its prompt, whose counts are that of the line alone.
        of_prompt = field in ("cached_tokens", "prompt_tokens")
        asked = [turn for turn in turns if not (of_prompt and turn.entry == "line")]
        hidden = bool(turns) and not asked
        yield row(
            f"reports {field}",
            _is_reported(asked, field),
            "typed lines show no prompt" if hidden else _show(asked, field, field),
            claimed=claimed,
        )
    yield _describe_caps(path, turns)


def _is_reported(turns: Sequence[TurnRecord], field: str) -> Seen:
    if not turns:
        return "not shown"
    return "yes" if all(getattr(turn, field) is not None for turn in turns) else "no"


def _show(turns: Sequence[TurnRecord], field: str, words: str) -> str:
    values = [getattr(turn, field) for turn in turns]
    known = [len(value) if isinstance(value, tuple) else value for value in values if value is not None]
    if not values:
        return "no turn ended"
    return f"{words}: {', '.join(map(str, known[:4]))}" if known else "in no turn"


def _describe_caps(path: EnginePath, turns: Sequence[TurnRecord]) -> CapabilityRow:
    capped = [turn for turn in turns if turn.turn == 0 and turn.emitted_tokens is not None]
    wrong = [turn for turn in capped if turn.finish == "length" and turn.emitted_tokens != CAP_TOKENS]
    at_cap = [turn for turn in capped if turn.emitted_tokens == CAP_TOKENS]
    seen: Seen = "no" if wrong else "yes" if at_cap else "not shown"
    shown = wrong[0] if wrong else at_cap[0] if at_cap else None
    told = (
        f"{shown.emitted_tokens} tokens at a cap of {CAP_TOKENS}, {shown.finish}"
        if shown
        else "no answer met it"
    )
    return CapabilityRow(path=path, capability="keeps to a cap", claimed=True, seen=seen, evidence=told)


def _describe_margins(path: EnginePath, turn: TurnRecord | None) -> CapabilityRow:
    lines = len(turn.margins) if turn is not None and turn.margins is not None else 0
    tokens = turn.emitted_tokens if turn is not None else None
    seen: Seen = "not shown" if turn is None else "yes" if lines else "no"
    return CapabilityRow(
        path=path,
        capability="prints margins",
        claimed=True,
        seen=seen,
        evidence="not tried" if turn is None else f"{lines} lines for {tokens} tokens",
    )


# What to do about a fault, by the rule that named it.
_REMEDIES = {
    "almost no draft is kept": "the head is missing, untrained, or another model's: check the checkpoint",
    "a file was left that a setting forbids": "the engine saves contexts although it was told not to",
    "a saved conversation was resumed that a setting forbids": "remove the saved context, or pin KVSAVE=0",
    "the same text, another finish reason": "the two paths decide the end otherwise: compare their stop sets",
    "one answer is the beginning of the other": "the two paths end otherwise: compare their stop sets",
}


def _list_complaints(
    latest: Records, comparison: Comparison, rows: Iterable[CapabilityRow]
) -> Iterator[Complaint]:
    for spec, record in latest.items():
        if record.failure is not None and record.failure.code != "not-run":
            remedy = record.failure.hint or "the engine's stderr may say why"
            yield Complaint(place=spec.arm.label, problem=record.failure.message, remedy=remedy)
        if record.kv_resumed_tokens:
            yield Complaint(
                place=spec.arm.label,
                problem=f"resumed a saved conversation of {record.kv_resumed_tokens} tokens",
                remedy="remove the saved context from the model directory, or pin KVSAVE=0",
            )
        if pauses := sum(turn.drafts_paused for turn in record.turns):
            yield Complaint(
                place=spec.arm.label,
                problem=f"the engine paused drafting {pauses} times",
                remedy="its guard found the head not worth it; COLI_MTP_GUARD_PCT=0 switches the guard off",
            )
    for engagement in comparison.engagements:
        if engagement.state == "void":
            remedy = (
                "drafts are announced and none is made: is there a head in the model?"
                if engagement.arm.depth
                else "something drafts although the depth is 0"
            )
            yield Complaint(place=engagement.arm.label, problem=engagement.evidence, remedy=remedy)
    yield from map(_complain, list_faults(comparison))
    yield from _compare_paths(comparison)
    for row in rows:
        if row.contradicted and row.capability.startswith(("reports", "shows", "keeps", "prints")):
            yield Complaint(
                place=row.path,
                problem=f"{row.capability} is claimed and was not seen ({row.evidence})",
                remedy="contrasts that need it will be inconclusive",
            )


def _compare_paths(comparison: Comparison) -> Iterator[Complaint]:
    """Tell where two paths do not answer or end alike. Seen once, it is worth a look and no verdict."""
    for result in comparison.contrasts:
        if result.contrast.kind == "path" and result.found:
            found = result.found[0]
            ends = {difference.field for difference in found.differences} & {"finish_reason", "token_count"}
            yield Complaint(
                place=result.contrast.name,
                problem=describe_found(result, found),
                remedy=(
                    "the paths end an answer otherwise: do they arm the same stop tokens, and keep the flag?"
                    if ends
                    else "coli-ab compare says what kind of difference it is"
                ),
            )


def _complain(finding: Finding) -> Complaint:
    place = finding.contrast or " and ".join(arm.label for arm in finding.arms)
    remedy = _REMEDIES.get(finding.rule, f"class {finding.verdict_class}, see docs/verdicts.md")
    return Complaint(place=place, problem=finding.reason, remedy=remedy)
