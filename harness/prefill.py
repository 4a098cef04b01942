"""What each turn took over from the cache, against what it should have: declared by the scenario, or
derived.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from harness.metrics import CellMetrics, TurnMetrics
from harness.plan import Arm, CellSpec, Plan
from harness.scenario import Turn
from harness.transcript import CellRecord, TurnRecord

# A prompt that goes on behind another tokenises like it up to the seam, where a word may be joined with the
# next one. Words are a few tokens long.
SEAM_TOKENS = 8

PrefillState = Literal["as expected", "not as derived", "wrong", "no expectation", "not reported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """The prefill of one turn of one arm.

    Attributes:
        arm, scenario, conversation, turn: which; ``turn`` from 0.
        repetitions: those in which the arm did just this.
        prompt_tokens, cached_tokens, prefill_tokens: measured.
        expected_cached_tokens: declared by the scenario if the prompt has the declared length, else derived.
        least_cached_tokens: what must be in the cache if the prompt goes on behind the last prompt, whatever
            became of the answer: the last prompt but for a few tokens at the seam.
        declared: true when the expectation is the scenario's.
        state: ``wrong`` is a proven fault: same tokenizer, same prompt, another prefix; or less than the
            last prompt. ``not as derived`` is a remark: the answer may tokenise differently when it comes
            back as part of the prompt.
    """

    arm: Arm
    scenario: str
    conversation: str
    turn: int
    repetitions: tuple[int, ...]
    prompt_tokens: int | None
    cached_tokens: int | None
    prefill_tokens: int | None
    expected_cached_tokens: int | None
    least_cached_tokens: int | None
    declared: bool
    state: PrefillState


def build_prefill_table(
    plan: Plan, records: Mapping[CellSpec, CellRecord], metrics: Mapping[CellSpec, CellMetrics]
) -> tuple[PrefillRow, ...]:
    """Return the rows in the order of scenarios, conversations, turns and arms; repetitions that agree
    share a row.
    """
    rows: dict[tuple[object, ...], PrefillRow] = {}
    for spec in sorted(metrics, key=lambda spec: (plan.arms.index(spec.arm), spec.repetition)):
        for row in _cell_rows(plan, spec, records[spec], metrics[spec]):
            key = _identify(row)
            known = rows.get(key)
            rows[key] = _join(known, row) if known else row
    positions = _turn_positions(plan)
    return tuple(
        sorted(
            rows.values(),
            key=lambda row: (
                positions[row.scenario, row.conversation, row.turn],
                plan.arms.index(row.arm),
                row.repetitions,
            ),
        )
    )


def _turn_positions(plan: Plan) -> dict[tuple[str, str, int], int]:
    turns = [
        (scenario.name, conversation.id, index)
        for scenario in plan.scenarios
        for conversation in scenario.conversations
        for index in range(len(conversation.turns))
    ]
    return {turn: position for position, turn in enumerate(turns)}


def _cell_rows(plan: Plan, spec: CellSpec, record: CellRecord, metrics: CellMetrics) -> Iterable[PrefillRow]:
    scenario = plan.scenario(spec.scenario)
    turns = {c.id: c.turns for c in scenario.conversations}
    before: TurnRecord | None = None
    for turn, figures in zip(record.turns, metrics.turns, strict=True):
        declared = turns[turn.conversation][turn.turn]
        least = _derive_least(before, turn)
        if not plan.exact_prefixes:
            # A cache of blocks reuses whole ones only, and how long they are is not known.
            declared, least = replace(declared, expect_cached_tokens=None), None
        yield _build_row(spec, declared, figures, _derive_expected(before, turn), least)
        before = turn


def _derive_least(before: TurnRecord | None, turn: TurnRecord) -> int | None:
    """Return the tokens that the cache must hold in any case, if the prompt goes on behind the last one."""
    if before is None or before.conversation != turn.conversation or before.prompt_tokens is None:
        return None
    if turn.prompt_tokens is None or not turn.prompt.startswith(before.prompt):
        return None
    return max(0, before.prompt_tokens - SEAM_TOKENS)


def _derive_expected(before: TurnRecord | None, turn: TurnRecord) -> int | None:
    """Return the tokens that the cache must hold of this prompt, if it does nothing but continue the last
    turn.
    """
    if (
        before is None
        or before.conversation != turn.conversation
        or before.finish in ("stop-string", "cancelled", "broken-grammar")
    ):
        return None
    if turn.prompt_tokens is None or not turn.prompt.startswith(before.prompt + before.text):
        return None
    if before.prompt_tokens is None or before.emitted_tokens is None:
        return None
    return before.prompt_tokens + before.emitted_tokens


def _build_row(
    spec: CellSpec, turn: Turn, figures: TurnMetrics, derived: int | None, least: int | None
) -> PrefillRow:
    comparable = turn.expect_prompt_tokens is not None and figures.prompt_tokens == turn.expect_prompt_tokens
    declared = turn.expect_cached_tokens if comparable else None
    expected = declared if declared is not None else derived
    return PrefillRow(
        arm=spec.arm,
        scenario=spec.scenario,
        conversation=figures.conversation,
        turn=figures.turn,
        repetitions=(spec.repetition,),
        prompt_tokens=figures.prompt_tokens,
        cached_tokens=figures.cached_tokens,
        prefill_tokens=figures.prefill_tokens,
        expected_cached_tokens=expected,
        least_cached_tokens=least,
        declared=declared is not None,
        state=_judge_row(figures.cached_tokens, expected, least, declared=declared is not None),
    )


def _judge_row(
    cached: int | None, expected: int | None, least: int | None, *, declared: bool
) -> PrefillState:
    if cached is None:
        return "not reported"
    if least is not None and cached < least:
        return "wrong"
    if expected is None:
        return "no expectation"
    if cached == expected:
        return "as expected"
    return "wrong" if declared else "not as derived"


def _identify(row: PrefillRow) -> tuple[object, ...]:
    place = (row.arm, row.scenario, row.conversation, row.turn)
    return (*place, row.prompt_tokens, row.cached_tokens, row.prefill_tokens, row.expected_cached_tokens)


def _join(known: PrefillRow, row: PrefillRow) -> PrefillRow:
    return replace(known, repetitions=known.repetitions + row.repetitions)
