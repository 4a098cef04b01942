"""Which probes a difference asks for, what they ask of the engine, and what their answers prove."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest

from engine_bindings.binding import Pin
from harness.cases import TOKENS_PAST_DIFFERENCE, list_cases
from harness.contrasts import CheckedContrast
from harness.divergence import NUMERICS_GAP
from harness.evidence import gather_evidence
from harness.pairing import select_latest
from harness.plan import Arm, CellSpec, Plan, build_plan
from harness.probes import Probe, plan_probes
from harness.scenario import Conversation, Turn
from harness.transcript import CellRecord, Failure, Finish, Margin, TurnRecord
from tests.harness.run_builders import (
    CHAT_ON,
    SERVE_OFF,
    SERVE_ON,
    judge_run,
    make_plan,
    make_scenario,
    run_healthy,
)

PIN = Pin(name="COLI_LOGIT_GAP", value="1", reason="margins")
Answer = Callable[[Probe], bytes]
FLIP_AT = 20  # bytes; token 5


def flip(text: bytes, at: int = FLIP_AT) -> bytes:
    return text[:at] + b"XXXX" + text[at + 4 :]


def drafts_flip(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    """Change one token of the first answer of both arms with drafts."""
    hit = spec.arm.depth and (turn.conversation, turn.turn) == ("copy-1", 0)
    return replace(turn, text=flip(turn.text)) if hit else turn


def plan_of(repetitions: int = 2) -> Plan:
    return replace(make_plan(make_scenario(turns=1), repetitions=repetitions), margin_pin=PIN)


def plain(plan: Plan, records: tuple[CellRecord, ...]) -> bytes:
    return next(r for r in records if r.spec.arm.depth == 0).turns[0].text


def answer_probe(
    probe: Probe, records: tuple[CellRecord, ...], text: bytes, gap: float | None, finish: Finish = "length"
) -> CellRecord:
    """Return the record of a probe whose engine gives ``text``, cut at the probe's cap, with one margin."""
    tokens = min(probe.scenario.conversations[0].turns[-1].max_tokens, len(text) // 4)
    first = records[0].turns[0]
    margins = None
    if gap is not None:
        gaps = [gap if n == FLIP_AT // 4 else 9.0 for n in range(tokens)]
        margins = tuple(Margin(best=1, second=2, gap=each) for each in gaps)
    turn = replace(
        first,
        conversation=probe.spec.probe.conversation if probe.spec.probe else first.conversation,
        turn=0,
        text=text[: 4 * tokens],
        emitted_tokens=tokens,
        token_lengths=(4,) * tokens,
        margins=margins,
        finish=finish,
    )
    return replace(records[0], spec=probe.spec, turns=(turn,))


def investigate(
    plan: Plan,
    records: tuple[CellRecord, ...],
    text_of: Answer,
    gap: float | None,
    finish: Finish = "length",
) -> list[str]:
    """Run probes to the end; return their keys, then the verdict's class and status."""
    keys = []
    for _ in range(20):
        comparison, verdict = judge_run(plan, records)
        probes = plan_probes(plan, comparison, records)
        if not probes:
            return [*keys, verdict.verdict_class, verdict.status]
        for probe in probes:
            keys.append(probe.spec.key)
            records += (answer_probe(probe, records, text_of(probe), gap, finish),)
    raise AssertionError("no end of probes")


COLD = ["serve/0 quick 0 cold copy-1.1", "serve/3 quick 0 cold copy-1.1"]
DEPTHS = [f"serve/{depth} quick 0 depth copy-1.1" for depth in (1, 2, 4)]
SCORE = ["serve/0 quick 0 score copy-1.1"]


def test_without_a_difference_nothing_is_asked():
    plan = plan_of()
    records = run_healthy(plan)
    assert plan_probes(plan, judge_run(plan, records)[0], records) == ()


def test_a_cancelled_answer_that_differs_is_asked_again_without_its_cancel():
    first, second = make_scenario(turns=1).conversations
    cut = replace(first, turns=(replace(first.turns[0], cancel_after_tokens=5),))
    plan = replace(make_plan(make_scenario(conversations=(cut, second))), margin_pin=PIN)

    def cancel(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if turn.conversation != "copy-1":
            return turn
        turn = drafts_flip(spec, turn)
        heard = 7 + spec.repetition + spec.arm.depth
        lengths = turn.token_lengths and turn.token_lengths[:heard]
        cut = replace(turn, text=turn.text[: 4 * heard], emitted_tokens=heard, token_lengths=lengths)
        return replace(cut, finish="cancelled")

    records = run_healthy(plan, cancel)
    text = run_healthy(plan)[0].turns[0].text

    def say(probe: Probe) -> bytes:
        assert probe.scenario.conversations[0].turns[-1].cancel_after_tokens is None
        return flip(text) if probe.spec.arm.depth else text

    assert investigate(plan, records, say, 1e-4) == [*COLD, *DEPTHS, "near-tie", "pass"]


@pytest.mark.parametrize("repetitions", [1, 2])
@pytest.mark.parametrize(
    ("gap", "end"),
    [(1e-4, ["near-tie", "pass"]), (0.01, ["numerics", "inconclusive"]), (0.9, ["state", "fail"])],
)
def test_a_difference_that_stays_put_is_judged_by_its_margin(repetitions: int, gap: float, end: list[str]):
    plan = plan_of(repetitions)
    records = run_healthy(plan, drafts_flip)
    text = plain(plan, records)
    asked = investigate(plan, records, lambda p: flip(text) if p.spec.arm.depth else text, gap)
    # A margin that convicts alone needs no sweep.
    assert asked == (COLD + DEPTHS if gap < 0.5 else COLD) + end


def test_an_engine_that_calls_a_cut_answer_a_stop_is_seen_to_repeat_itself():
    plan = plan_of()
    records = run_healthy(plan, drafts_flip)
    text = plain(plan, records)

    def answer(probe: Probe) -> bytes:
        return flip(text) if probe.spec.arm.depth > 1 else text

    assert investigate(plan, records, answer, 1e-4, "stop") == [*COLD, *DEPTHS, "near-tie", "pass"]


def test_a_token_that_begins_before_the_first_other_byte_is_the_one_that_differs():
    plan = plan_of()
    records = run_healthy(plan, drafts_flip)
    text = plain(plan, records)
    # The bytes part in token 5; the choices parted in the token before, which begins with the same bytes.
    early = FLIP_AT // 4 - 1

    def choose(record: CellRecord) -> CellRecord:
        drafted = record.spec.arm.depth > 0
        turn = record.turns[0]
        margins = tuple(
            Margin(best=1 + drafted, second=2 - drafted, gap=1e-4)
            if index == early
            else Margin(best=index, second=99, gap=9.0)
            for index in range(turn.emitted_tokens or 0)
        )
        return replace(record, turns=(replace(turn, margins=margins),))

    def answer(probe: Probe) -> bytes:
        return flip(text) if probe.spec.arm.depth else text

    for _ in range(20):
        comparison, verdict = judge_run(plan, records)
        if not (probes := plan_probes(plan, comparison, records)):
            break
        records += tuple(choose(answer_probe(probe, records, answer(probe), 9.0)) for probe in probes)
    assert (verdict.verdict_class, verdict.status) == ("near-tie", "pass")


def test_a_difference_that_moves_is_state():
    plan = plan_of()
    records = run_healthy(plan, drafts_flip)
    text = plain(plan, records)

    def answer(probe: Probe) -> bytes:
        depth = probe.spec.arm.depth
        return flip(text, 8 if depth == 1 else FLIP_AT) if depth else text

    assert investigate(plan, records, answer, 0.01) == [*COLD, *DEPTHS, "state", "fail"]


def test_a_difference_that_does_not_come_back_is_blamed_on_what_ran_before():
    plan = plan_of()
    records = run_healthy(plan, drafts_flip)
    text = plain(plan, records)
    assert investigate(plan, records, lambda _: text, 0.01)[-2:] == ["state", "fail"]


def test_with_one_run_a_difference_that_does_not_come_back_is_not_proven():
    plan = plan_of(1)
    records = run_healthy(plan, drafts_flip)
    text = plain(plan, records)
    assert investigate(plan, records, lambda _: text, 0.01)[-2:] == ["unproven", "inconclusive"]


def test_a_probe_asks_the_turn_alone_just_past_the_difference_with_margins():
    plan = plan_of()
    records = run_healthy(plan, drafts_flip)
    probe, _ = plan_probes(plan, judge_run(plan, records)[0], records)
    (conversation,) = probe.scenario.conversations
    (turn,) = conversation.turns
    assert (turn.kind, turn.text.encode()) == ("prompt", records[0].turns[0].prompt)
    assert turn.max_tokens == min(24, FLIP_AT // 4 + TOKENS_PAST_DIFFERENCE)
    assert probe.settings == (PIN,)


def test_chat_against_serve_is_scored_and_fails():
    plan = plan_of()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return drafts_flip(spec, turn) if spec.arm == SERVE_ON else turn

    records = run_healthy(plan, bend)
    text = plain(plan, records)

    def answer(probe: Probe) -> bytes:
        if probe.spec.probe and probe.spec.probe.kind == "score":
            return text[FLIP_AT:]
        return flip(text) if probe.spec.arm == SERVE_ON else text

    cold = [f"{arm.label} quick 0 cold copy-1.1" for arm in (CHAT_ON, SERVE_ON)]
    asked = investigate(plan, records, answer, 1e-4)
    assert asked == [*cold, "chat/0 quick 0 score copy-1.1", "state", "fail"]


@pytest.mark.parametrize(
    ("until", "asked"), [("end", [*COLD, "state", "fail"]), ("fault", ["finish-reason", "fail"])]
)
def test_a_named_count_does_not_keep_other_tokens_from_being_looked_into(
    until: Literal["end", "fault"], asked: list[str]
):
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm == SERVE_ON and turn.conversation == "code-1":
            return replace(turn, finish="length" if turn.finish == "stop" else "stop")
        return drafts_flip(spec, turn)

    plan = replace(plan_of(), until=until)
    records = run_healthy(plan, bend)
    text = plain(plan, records)

    def answer(probe: Probe) -> bytes:
        return flip(text) if probe.spec.arm.depth else text

    assert investigate(plan, records, answer, NUMERICS_GAP + 1) == asked


@pytest.mark.parametrize(("keeps", "verdict_class"), [(True, "state"), (False, "prefix-reuse")])
def test_an_answer_that_breaks_its_relation_is_asked_for_without_drafts_where_no_cell_shows_it(
    keeps: bool, verdict_class: str
):
    asked = Turn(kind="user", text="a", max_tokens=24)
    talk = Conversation(
        id="copy-1", category="copy", system=None, turns=(asked, replace(asked, after=0, same_as=(1,)))
    )
    plan = build_plan([make_scenario("branches", conversations=(talk,))], repetitions=2)
    plan = replace(plan, margin_pin=PIN)

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=flip(turn.text)) if turn.turn == 1 else turn

    healthy = next(record for record in run_healthy(plan) if record.spec.arm == SERVE_ON)
    records = tuple(record for record in run_healthy(plan, bend) if record.spec.arm == SERVE_ON)
    text, keys = healthy.turns[0].text, []
    for _ in range(5):
        comparison, verdict = judge_run(plan, records)
        for probe in plan_probes(plan, comparison, records):
            keys.append(probe.spec.key)
            record = answer_probe(probe, records, text, NUMERICS_GAP + 1)
            if probe.spec.probe and probe.spec.probe.kind == "undrafted":
                record = replace(healthy if keeps else records[0], spec=probe.spec)
            records += (record,)
    assert keys == ["serve/3 branches 0 cold copy-1.2", "serve/0 branches 0 undrafted copy-1.2"]
    assert (verdict.verdict_class, verdict.status) == (verdict_class, "fail")


def test_other_depths_say_nothing_of_a_difference_between_the_paths():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return drafts_flip(spec, turn) if spec.arm == SERVE_ON else turn

    plan = plan_of()
    records = run_healthy(plan, bend)
    comparison, _ = judge_run(plan, records)
    checked = tuple(CheckedContrast(result=result, identical=()) for result in comparison.contrasts)
    latest = dict(select_latest(records))
    cases = {case.contrast.kind: case for case in list_cases(plan, comparison.contrasts, latest, {})}
    spec = cases["speculation"].spec(replace(SERVE_ON, depth=1), "depth")
    latest[spec] = replace(records[0], spec=spec)
    kinds = {kind: gather_evidence(plan, case, checked, latest).depths for kind, case in cases.items()}
    assert {kind for kind, depths in kinds.items() if depths} == {"speculation"}


@pytest.mark.parametrize(
    ("spoilt", "same"), [((SERVE_OFF, SERVE_ON), ("chat/3", "serve/3")), ((SERVE_ON,), ("chat/3",))]
)
def test_an_answer_that_is_given_without_drafts_too_is_no_matter_of_drafts(
    spoilt: tuple[Arm, ...], same: tuple[str, ...]
):
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        hit = spec.arm in spoilt and (turn.conversation, turn.turn) == ("copy-1", 0)
        return replace(turn, text=flip(turn.text)) if hit else turn

    plan = plan_of()
    records = run_healthy(plan, bend)
    comparison, _ = judge_run(plan, records)
    checked = tuple(CheckedContrast(result=result, identical=()) for result in comparison.contrasts)
    latest = select_latest(records)
    cases = list_cases(plan, comparison.contrasts, latest, {})
    case = next(case for case in cases if case.contrast.name == "path on")
    assert gather_evidence(plan, case, checked, latest).same_undrafted == same


def test_records_of_probes_are_counted_apart_and_change_no_cell():
    plan = plan_of()
    records = run_healthy(plan, drafts_flip)
    before, _ = judge_run(plan, records)
    (probe, *_) = plan_probes(plan, before, records)
    after, _ = judge_run(plan, (*records, answer_probe(probe, records, plain(plan, records), 0.01)))
    assert (after.cells_measured, after.engagements) == (before.cells_measured, before.engagements)
    assert (before.probe_tokens, after.probe_tokens) == (0, 23)
    assert after.tokens_decoded == before.tokens_decoded + 23


def test_an_engine_without_margins_and_a_difference_that_stays_put_is_left_open():
    plan = replace(plan_of(), margin_pin=None)
    records = run_healthy(plan, drafts_flip)
    text = plain(plan, records)
    asked = investigate(plan, records, lambda p: flip(text) if p.spec.arm.depth else text, None)
    assert asked == [*COLD, *DEPTHS, *SCORE, "unproven", "inconclusive"]


def test_one_run_of_each_arm_is_repeated_with_all_that_ran_before():
    plan = plan_of(1)

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return (
            replace(turn, text=flip(turn.text)) if spec.arm.depth and turn.conversation == "code-1" else turn
        )

    records = run_healthy(plan, bend)
    text = records[0].turns[1].text

    def answer(probe: Probe) -> bytes:
        in_company = len(probe.scenario.conversations) == 2
        return flip(text) if in_company and probe.spec.arm.depth else text

    asked = investigate(plan, records, answer, 0.9)
    again = [f"serve/{depth} quick 0 again code-1.1" for depth in (0, 3)]
    assert asked == [*(key.replace("copy", "code") for key in COLD), *again, "state", "fail"]


def test_a_probe_that_fails_leaves_its_question_open_and_is_noted():
    plan = plan_of()
    records = run_healthy(plan, drafts_flip)
    probes = plan_probes(plan, judge_run(plan, records)[0], records)
    failure = Failure(code="engine-died", message="died", hint="")
    records += tuple(replace(records[0], spec=p.spec, turns=(), failure=failure) for p in probes)
    comparison, verdict = judge_run(plan, records)
    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "unproven")
    assert sum("failed (engine-died)" in note for note in comparison.notes) == 2
    assert {probe.spec.probe.kind for probe in plan_probes(plan, comparison, records)} == {"score"}
