"""Differences within a cell and between numbers of slots: what is asked again, and what its margins prove."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine_bindings.binding import Pin
from harness.plan import Arm, CellSpec, Plan, build_plan
from harness.probes import Probe, plan_probes
from harness.scenario import Conversation, Turn, build_turn_prompt
from harness.transcript import CellRecord, Margin, TurnRecord
from tests.harness.run_builders import judge_run, make_scenario, run_healthy

PIN = Pin(name="COLI_LOGIT_GAP", value="1", reason="margins")
FLIP_AT = 20  # bytes; token 5
CAP = 12
PLAIN = b"".join(b"re%02d" % n for n in range(CAP))
FLIPPED = PLAIN[:FLIP_AT] + b"XXXX" + PLAIN[FLIP_AT + 4 :]
Says = Callable[[CellSpec, TurnRecord], bytes]


def make_related_plan(repetitions: int = 2) -> Plan:
    """Return a plan with one conversation whose second turn asks the first one again."""
    ask = Turn(kind="prompt", text="p", max_tokens=CAP)
    turns = (ask, replace(ask, after=0, same_as=(1,)))
    conversation = Conversation(id="rerun", category="prefix", system=None, turns=turns)
    plan = build_plan([make_scenario(conversations=(conversation,))], repetitions=repetitions)
    return replace(plan, margin_pin=PIN)


def make_slots_plan() -> Plan:
    scenario = make_scenario(turns=1, cap=CAP, slots=2)
    return replace(build_plan([scenario]), margin_pin=PIN)


def answer(probe: Probe, records: tuple[CellRecord, ...], says: Says, gap: float) -> CellRecord:
    """Return the record of a probe; the choice that flips has the two candidates 1 and 2, ``gap`` apart."""
    turns: list[TurnRecord] = []
    for conversation in probe.scenario.conversations:
        answers: list[bytes] = []
        for index, asked in enumerate(conversation.turns):
            prompt = build_turn_prompt(conversation, answers, index)
            place = replace(records[0].turns[0], conversation=conversation.id, turn=index, prompt=prompt)
            text = says(probe.spec, place)[: 4 * asked.max_tokens]
            answers.append(text)
            turns.append(
                replace(
                    place,
                    text=text,
                    emitted_tokens=len(text) // 4,
                    token_lengths=(4,) * (len(text) // 4),
                    margins=read_margins(text, gap),
                    finish="length",
                )
            )
    if probe.spec.arm.slots > 1 and len(turns) > 1:
        lines = tuple(
            margin for pair in zip(*(t.margins or () for t in turns), strict=True) for margin in pair
        )
        turns = [replace(turn, margins=None, shared_margins=lines) for turn in turns]
    return replace(records[0], spec=probe.spec, turns=tuple(turns))


def read_margins(text: bytes, gap: float) -> tuple[Margin, ...]:
    words = [text[at : at + 4] for at in range(0, len(text), 4)]
    return tuple(
        (Margin(best=2, second=1, gap=gap) if word == b"XXXX" else Margin(best=1, second=2, gap=gap))
        if n == FLIP_AT // 4
        else Margin(best=10 + n, second=0, gap=9.0)
        for n, word in enumerate(words)
    )


def investigate(plan: Plan, records: tuple[CellRecord, ...], says: Says, gap: float) -> list[str]:
    keys: list[str] = []
    for _ in range(20):
        comparison, verdict = judge_run(plan, records)
        probes = plan_probes(plan, comparison, records)
        if not probes:
            return [*keys, verdict.verdict_class, verdict.status]
        keys += [probe.spec.key for probe in probes]
        records += tuple(answer(probe, records, says, gap) for probe in probes)
    raise AssertionError("no end of probes")


def warm_flips(arms: Callable[[Arm], bool] = lambda _: True) -> Says:
    """Let the second turn of a cell flip, on some arms."""
    return lambda spec, turn: FLIPPED if turn.turn and arms(spec.arm) else PLAIN


def run_related(says: Says, repetitions: int = 2) -> tuple[Plan, tuple[CellRecord, ...]]:
    plan = make_related_plan(repetitions)
    records = run_healthy(plan, lambda spec, turn: replace(turn, text=says(spec, turn)))
    return plan, records


ASKED = [f"serve/{depth} quick 0 {kind} rerun.2" for depth in (0, 3) for kind in ("cold", "replay")]


@pytest.mark.parametrize("repetitions", [1, 2])
def test_a_tie_on_another_prefix_is_shown_by_a_replay_that_holds_both_turns(repetitions: int) -> None:
    says = warm_flips()
    plan, records = run_related(says, repetitions)
    assert investigate(plan, records, says, 1e-4) == [*ASKED, "near-tie", "pass"]


def test_another_kernel_on_another_prefix_stays_open() -> None:
    says = warm_flips()
    plan, records = run_related(says)
    assert investigate(plan, records, says, 1e-2) == [*ASKED, "numerics", "inconclusive"]


def test_a_margin_that_rounding_cannot_bridge_convicts_the_prefix_when_cold() -> None:
    says = warm_flips()
    plan, records = run_related(says)
    assert investigate(plan, records, says, 9.0) == [ASKED[0], "prefix-reuse", "fail"]


def test_what_drafts_alone_leave_in_a_prefix_is_state() -> None:
    says = warm_flips(lambda arm: arm.depth > 0)
    plan, records = run_related(says)
    # Drafts change the answer between the depths too; the turns of one cell name the verdict.
    assert investigate(plan, records, says, 9.0)[-2:] == ["state", "fail"]
    comparison, _ = judge_run(plan, records)
    cold = plan_probes(plan, comparison, records)
    records += tuple(answer(probe, records, says, 9.0) for probe in cold)
    assert {f.verdict_class for f in judge_run(plan, records)[0].findings if "within" in f.contrast} <= {
        "state",
        "unproven",
    }


def test_what_does_not_come_back_is_asked_again_with_all_that_ran_before() -> None:
    plan, records = run_related(warm_flips())
    keys = investigate(plan, records, lambda spec, turn: PLAIN, 1e-4)
    assert keys[:3] == [*ASKED[:2], "serve/0 quick 0 again rerun.2"]
    assert keys[-2:] == ["unproven", "inconclusive"]


def run_slots() -> tuple[Plan, tuple[CellRecord, ...], Says]:
    """Return a run in which the first answer flips beside another request."""
    plan = make_slots_plan()

    def says(spec: CellSpec, turn: TurnRecord) -> bytes:
        beside = spec.probe is None or spec.probe.kind == "replay"
        flips = spec.arm.slots > 1 and beside and turn.conversation == "copy-1"
        return FLIPPED if flips else PLAIN

    return plan, run_healthy(plan, lambda spec, turn: replace(turn, text=says(spec, turn))), says


COLD = [f"{arm} quick 0 cold copy-1.1" for arm in ("serve/0", "serve/0x2")]
REPLAY = [key.replace("cold", "replay") for key in COLD]


@pytest.mark.parametrize(
    ("gap", "end"),
    [
        (1e-4, [*REPLAY, "near-tie", "pass"]),
        (1e-2, [*REPLAY, "numerics", "inconclusive"]),
        (9.0, ["state", "fail"]),
    ],
)
def test_a_turn_beside_another_is_judged_by_the_margins_of_both(gap: float, end: list[str]) -> None:
    plan, records, says = run_slots()
    assert investigate(plan, records, says, gap) == [*COLD, *end]


def test_a_replay_keeps_the_neighbours_where_there_are_slots_for_them() -> None:
    plan, records, says = run_slots()
    comparison, _ = judge_run(plan, records)
    records += tuple(answer(probe, records, says, 1e-4) for probe in plan_probes(plan, comparison, records))
    probes = plan_probes(plan, judge_run(plan, records)[0], records)
    beside = {probe.spec.arm.slots: [c.id for c in probe.scenario.conversations] for probe in probes}
    assert beside == {1: ["copy-1"], 2: ["copy-1", "code-1"]}
    assert all(probe.settings == (PIN,) for probe in probes)
