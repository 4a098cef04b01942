"""Whether the answers of each arm are in the language of the scenario's grammar.

Where the grammar binds, an answer that is not is a proven failure of its arm; otherwise validity is only
reported.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.counters import has_room
from harness.findings import Finding
from harness.grammar import Checker, build_checker
from harness.metrics import divide, sum_reported
from harness.plan import Arm, CellSpec, Plan
from harness.scenario import Scenario
from harness.transcript import CellRecord, TurnRecord

AnswerState = Literal["valid", "invalid", "unfinished"]

BREACH = "an answer breaks the grammar that binds it"
"""The rule of a finding that one answer is proof of."""

# The grammar begins behind the reasoning when the prompt opens one.
THINK, END_OF_THINK = b"<think>", b"</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidAnswer:
    """An answer that ended by itself and is not in the language, and why."""

    conversation: str
    turn: int
    repetition: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityRow:
    """The answers of one arm in a scenario with a grammar, over its repetitions.

    Attributes:
        scenario, arm: which.
        binds: the engine must enforce the grammar.
        answers: turns that ended in cells that did not fail.
        valid: those in the language. ``invalid``: those that are not.
        unfinished: those that their cap or a stop string cut, so that nothing is said about them.
        forwards_per_token: forwards / emitted tokens; None where one of them is not reported.
    """

    scenario: str
    arm: Arm
    binds: bool
    answers: int
    valid: int
    unfinished: int
    forwards_per_token: float | None
    invalid: tuple[InvalidAnswer, ...]


def check_answer(
    check: Checker, turn: TurnRecord, *, cap_tokens: int, context_tokens: int | None = None
) -> tuple[AnswerState, str]:
    """Return the state of one answer, and why it is invalid; the reason of another state is empty.

    An answer that is called ``length`` although there was room for more ended by itself all the same, and one
    that the engine gave up is none.
    """
    if turn.finish == "broken-grammar":
        return "invalid", check(turn.text) or "the engine gave it up because it broke the grammar"
    at_cap = turn.emitted_tokens is not None and turn.emitted_tokens >= cap_tokens
    given_up = turn.finish == "length" and has_room(turn, cap_tokens, context_tokens)
    if (turn.finish != "stop" and not given_up) or at_cap:
        return "unfinished", ""
    answer = turn.text
    if turn.prompt.endswith(THINK):
        _, end, answer = answer.partition(END_OF_THINK)
        if not end:
            return "invalid", "ends before its reasoning does"
    reason = check(answer)
    return ("invalid", reason) if reason else ("valid", "")


def check_validity(plan: Plan, latest: Mapping[CellSpec, CellRecord]) -> tuple[ValidityRow, ...]:
    """Return one row for each arm in each scenario with a grammar, from the last attempt at each cell."""
    rows = []
    for scenario in plan.scenarios:
        if scenario.grammar is None:
            continue
        check = build_checker(scenario.grammar.kind, scenario.grammar.text)
        rows += [
            _check_arm(plan, scenario, arm, check, _select_records(latest, scenario, arm))
            for arm in plan.arms
        ]
    return tuple(rows)


def _select_records(
    latest: Mapping[CellSpec, CellRecord], scenario: Scenario, arm: Arm
) -> tuple[CellRecord, ...]:
    return tuple(
        record
        for spec, record in latest.items()
        if (spec.scenario, spec.arm) == (scenario.name, arm) and record.failure is None
    )


def _check_arm(
    plan: Plan, scenario: Scenario, arm: Arm, check: Checker, records: Sequence[CellRecord]
) -> ValidityRow:
    context = scenario.context_tokens or plan.context_tokens
    caps = {
        (conversation.id, index): turn.max_tokens
        for conversation in scenario.conversations
        for index, turn in enumerate(conversation.turns)
    }
    turns = [(record.spec.repetition, turn) for record in records for turn in record.turns]
    checked = [
        (
            repetition,
            turn,
            *check_answer(check, turn, cap_tokens=caps[turn.conversation, turn.turn], context_tokens=context),
        )
        for repetition, turn in turns
    ]
    return ValidityRow(
        scenario=scenario.name,
        arm=arm,
        binds=scenario.grammar is not None and scenario.grammar.binds,
        answers=len(turns),
        valid=sum(state == "valid" for _, _, state, _ in checked),
        unfinished=sum(state == "unfinished" for _, _, state, _ in checked),
        forwards_per_token=divide(
            sum_reported(turn.forwards for _, turn in turns),
            sum_reported(turn.emitted_tokens for _, turn in turns),
        ),
        invalid=tuple(
            InvalidAnswer(
                conversation=turn.conversation, turn=turn.turn, repetition=repetition, reason=reason
            )
            for repetition, turn, state, reason in checked
            if state == "invalid"
        ),
    )


def name_breaches(rows: Iterable[ValidityRow]) -> Iterator[Finding]:
    """Yield a finding for each arm that broke a binding grammar: proven by itself, without a second arm."""
    for row in rows:
        if row.binds and row.invalid:
            first = row.invalid[0]
            judged = row.answers - row.unfinished
            yield Finding(
                verdict_class="grammar",
                effect="fail",
                rule=BREACH,
                contrast="",
                arms=(row.arm,),
                scenario=row.scenario,
                conversation=first.conversation,
                turn=first.turn,
                reason=f"{first.reason} ({len(row.invalid)} of {judged} finished answers are invalid)",
            )


def describe_unjudged(rows: Iterable[ValidityRow]) -> Iterator[str]:
    """Yield a sentence for each arm of which no finished answer could show that the grammar binds."""
    for row in rows:
        if row.binds and row.answers and row.answers == row.unfinished:
            yield (
                f"{row.arm.label} in {row.scenario} finished no answer before its cap, so nothing shows that "
                "its grammar binds (raise max_tokens)"
            )
