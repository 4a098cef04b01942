"""What engines say of the probability of their tokens: who is asked for it, and when it cannot be right.

Asking costs an engine work for each token, so the cells whose speed is measured never ask. One turn is asked
again, short, on each path that reports logprobs, without drafts and with them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from engine_bindings.binding import EntryKind
from harness.divergence import NUMERICS_GAP
from harness.findings import Finding
from harness.margins import read_token_margins
from harness.plan import Arm, CellSpec, Plan, ProbeMark
from harness.transcript import CellRecord, TurnRecord

# Enough tokens for some accepted drafts that were no certainty.
LOGPROB_TOKENS = 32
# What is printed with 6 digits is 0 above -5e-7. From this on the best logit would have to gain 3 more on the
# others, and rounding moves it by a sixth of that.
CERTAIN_LOGPROB = -1e-5
# Held against a margin the number of digits that are printed is not known: 4 digits show 0 above -5e-5.
CERTAIN_BY_MARGIN = -1e-3
# Rounding moves two logits against each other by less than this, and so it moves a logprob. Activations of
# 8 bits moved one by 0.26 at most, of 1,817 tokens.
MAX_APART = NUMERICS_GAP
# One token may be a slip of a print, or the rarest of roundings; two are a habit.
MIN_TOKENS = 2

LogprobState = Literal["agree", "wrong", "not reported", "not checked"]
Records = Mapping[CellSpec, CellRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobCheck:
    """What the logprobs of one drafting arm showed, held against those of its path without drafts."""

    arm: Arm
    state: LogprobState
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTurn:
    """A turn that a drafting arm is asked again for its logprobs, and its path without drafts too."""

    arm: Arm
    scenario: str
    conversation: str
    turn: int
    entry: EntryKind
    prompt: bytes

    @property
    def specs(self) -> tuple[CellSpec, CellSpec]:
        """The cells that ask, the one without drafts first."""
        mark = ProbeMark(kind="logprobs", conversation=self.conversation, turn=self.turn)
        plain, drafting = (
            CellSpec(arm=arm, scenario=self.scenario, repetition=0, probe=mark)
            for arm in (replace(self.arm, depth=0), self.arm)
        )
        return plain, drafting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A turn that has logprobs, and where it stands."""

    spec: CellSpec
    turn: TurnRecord
    logprobs: tuple[float | None, ...]


def list_logprob_arms(plan: Plan) -> tuple[Arm, ...]:
    """Return the drafting arms under test whose path reports logprobs and has an arm without drafts too."""
    return tuple(
        arm
        for arm in plan.arms
        if arm.depth
        and arm.path in plan.logprob_paths
        and not plan.is_baseline(arm)
        and replace(arm, depth=0) in plan.arms
    )


def price_logprobs(plan: Plan) -> int:
    """Return the tokens that asking for logprobs decodes at most."""
    return 2 * LOGPROB_TOKENS * len(list_logprob_arms(plan))


def choose_logprob_turns(plan: Plan, latest: Records) -> tuple[LogprobTurn, ...]:
    """Return what each arm of ``list_logprob_arms`` is asked again; nothing for one that drafted nothing.

    It is the turn with the most accepted drafts times other tokens: one whose drafts were often right, and
    often enough wrong that its tokens are no certainties. One that a stop string ended comes last: how many
    tokens such a turn has depends on when the engine heard of it.
    """
    best = (
        max(_list_candidates(plan, arm, latest), key=lambda item: item[0], default=None)
        for arm in list_logprob_arms(plan)
    )
    return tuple(item[1] for item in best if item is not None)


def check_logprobs(plan: Plan, latest: Records) -> tuple[LogprobCheck, ...]:
    """Return one check for each arm of ``list_logprob_arms``."""
    wrong = {finding.arms[-1]: finding for finding in reversed(find_logprob_faults(plan, latest))}
    return tuple(_check_arm(plan, arm, latest, wrong.get(arm)) for arm in list_logprob_arms(plan))


def find_logprob_faults(plan: Plan, latest: Records) -> tuple[Finding, ...]:
    """Return a finding for each arm and turn whose logprobs cannot be right, whatever cell they are from."""
    answers = tuple(a for a in _list_answers(latest) if not plan.is_baseline(a.spec.arm))
    undrafted = {_name_place(a): a for a in answers if not a.spec.arm.depth}
    found: dict[tuple[object, ...], Finding] = {}
    for answer in answers:
        other = undrafted.get(_name_place(answer)) if answer.spec.arm.depth else None
        for finding in _judge_answer(answer, other):
            found.setdefault((finding.arms[-1], finding.place), finding)
    return tuple(found.values())


def _list_candidates(plan: Plan, arm: Arm, latest: Records) -> Iterator[tuple[tuple[bool, int], LogprobTurn]]:
    for spec, record in latest.items():
        if spec.arm != arm or spec.probe is not None or record.failure is not None:
            continue
        scenario = plan.scenario(spec.scenario)
        if scenario.temperature > 0 or scenario.grammar is not None:
            continue
        for turn in record.turns:
            accepted = _count_accepted(turn)
            if accepted != 0 and _can_be_asked_alone(turn):
                asked = LogprobTurn(
                    arm=arm,
                    scenario=spec.scenario,
                    conversation=turn.conversation,
                    turn=turn.turn,
                    entry=turn.entry,
                    prompt=turn.prompt,
                )
                product = (accepted or 0) * ((turn.emitted_tokens or 0) - (accepted or 0))
                yield (turn.finish != "stop-string", product), asked


def _count_accepted(turn: TurnRecord) -> int | None:
    if turn.accepted_tokens is not None or turn.emitted_tokens is None or turn.forwards is None:
        return turn.accepted_tokens
    return max(0, turn.emitted_tokens - turn.forwards)


def _can_be_asked_alone(turn: TurnRecord) -> bool:
    """Say whether a turn is an exact prompt, or messages without an answer among them, and was not cut."""
    alone = turn.entry == "prompt" or (turn.entry == "messages" and turn.turn == 0)
    return alone and bool(turn.emitted_tokens) and turn.finish in ("stop", "length", "stop-string")


def _list_answers(latest: Records) -> Iterator[_Answer]:
    for spec, record in latest.items():
        for turn in record.turns:
            if turn.logprobs is not None:
                yield _Answer(spec=spec, turn=turn, logprobs=turn.logprobs)


def _name_place(answer: _Answer) -> tuple[object, ...]:
    spec, turn = answer.spec, answer.turn
    arm = replace(spec.arm, depth=0)
    return arm, spec.scenario, spec.repetition, spec.probe, turn.conversation, turn.turn


def _judge_answer(answer: _Answer, other: _Answer | None) -> Iterator[Finding]:
    if reason := _contradicts_margins(answer):
        yield _build_finding(answer, (answer.spec.arm,), "a logprob that its margin does not allow", reason)
    if other is None:
        return
    arms = (other.spec.arm, answer.spec.arm)
    if reason := _is_certain_by_report_only(answer, other):
        yield _build_finding(answer, arms, "a logprob of exactly 0 for tokens that are not certain", reason)
    elif reason := _is_too_far_apart(answer, other):
        yield _build_finding(answer, arms, "logprobs that depend on the draft depth", reason)


def _contradicts_margins(answer: _Answer) -> str:
    """Hold each logprob against the gap to the second best logit, which bounds it from above."""
    margins = read_token_margins(answer.turn)
    if margins is None:
        return ""
    pairs = zip(answer.logprobs, margins, strict=False)
    bounds = [(value, -math.log1p(math.exp(-m.gap))) for value, m in pairs if value is not None]
    zeros = [bound for value, bound in bounds if value == 0 and bound < CERTAIN_BY_MARGIN]
    if len(zeros) < MIN_TOKENS:
        return ""
    return (
        f"logprobs: {len(zeros)} of {len(bounds)} tokens have exactly 0, and the gap to the second best "
        f"logit allows at most {min(zeros):.3f}"
    )


def _pair_tokens(answer: _Answer, other: _Answer) -> list[tuple[int, float, float]]:
    """Return index and both logprobs of each token, up to the first that is not the same on both sides."""
    a, b = other.turn, answer.turn
    if a.token_lengths is None or b.token_lengths is None:
        lengths = zip((), (), strict=True) if a.text != b.text else ((1, 1) for _ in answer.logprobs)
    else:
        lengths = zip(a.token_lengths, b.token_lengths, strict=False)
    pairs, start = [], 0
    for i, ((size_a, size_b), x, y) in enumerate(zip(lengths, other.logprobs, answer.logprobs, strict=False)):
        end = start + size_a
        if size_a != size_b or a.text[start:end] != b.text[start:end]:
            break
        start = end
        if x is not None and y is not None:
            pairs.append((i, x, y))
    return pairs


def _is_certain_by_report_only(answer: _Answer, other: _Answer) -> str:
    pairs = _pair_tokens(answer, other)
    zeros = [plain for _, plain, drafted in pairs if drafted == 0 and plain < CERTAIN_LOGPROB]
    if len(zeros) < MIN_TOKENS:
        return ""
    return (
        f"logprobs: {len(zeros)} of {len(pairs)} tokens have exactly 0 in {answer.spec.arm.label}; "
        f"{other.spec.arm.label} gives the same tokens down to {min(zeros):.3f}"
    )


def _is_too_far_apart(answer: _Answer, other: _Answer) -> str:
    pairs = _pair_tokens(answer, other)
    far = [pair for pair in pairs if abs(pair[1] - pair[2]) > MAX_APART]
    if len(far) < MIN_TOKENS:
        return ""
    index, plain, drafted = far[0]
    return (
        f"logprobs: {len(far)} of {len(pairs)} tokens are further apart than {MAX_APART:g}, which rounding "
        f"does not explain; the first, token {index}, has {plain:.3f} in {other.spec.arm.label} and "
        f"{drafted:.3f} in {answer.spec.arm.label}"
    )


def _build_finding(answer: _Answer, arms: tuple[Arm, ...], rule: str, reason: str) -> Finding:
    return Finding(
        verdict_class="counters",
        effect="fail",
        rule=rule,
        contrast="",
        arms=arms,
        scenario=answer.spec.scenario,
        conversation=answer.turn.conversation,
        turn=answer.turn.turn if answer.spec.probe is None else answer.spec.probe.turn,
        reason=reason,
    )


def _check_arm(plan: Plan, arm: Arm, latest: Records, wrong: Finding | None) -> LogprobCheck:
    if wrong is not None:
        return LogprobCheck(arm=arm, state="wrong", evidence=wrong.reason)
    turns = [turn for turn in choose_logprob_turns(plan, latest) if turn.arm == arm]
    asked = [latest.get(spec) for turn in turns for spec in turn.specs]
    answers = [answer for answer in _list_answers(latest) if replace(answer.spec.arm, depth=arm.depth) == arm]
    pairs = [
        pair
        for answer in answers
        for other in answers
        if (answer.spec.arm, other.spec.arm.depth) == (arm, 0) and _name_place(answer) == _name_place(other)
        for pair in _pair_tokens(answer, other)
    ]
    if pairs:
        apart = max(abs(plain - drafted) for _, plain, drafted in pairs)
        evidence = f"{len(pairs)} tokens at depth 0 and {arm.depth}, at most {apart:.2g} apart"
        return LogprobCheck(arm=arm, state="agree", evidence=evidence)
    if not asked:
        return LogprobCheck(
            arm=arm, state="not reported", evidence="no turn with drafts could be asked for them"
        )
    if any(record is None or record.failure is not None for record in asked):
        return LogprobCheck(arm=arm, state="not checked", evidence="the cells that ask for them did not run")
    return LogprobCheck(arm=arm, state="not reported", evidence="the engine was asked and gave none")


def note_logprobs(checks: Iterable[LogprobCheck]) -> list[str]:
    """Return one remark for each arm, in plain sentences."""
    return [f"logprobs of {check.arm.label}: {check.evidence}" for check in checks if check.state != "wrong"]
