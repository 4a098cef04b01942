"""What counts as failing in a run, and the small plan that runs one contrast alone."""

from dataclasses import replace

from harness.failing import build_pair_plan, find_failing, observe_symptom
from harness.plan import CellSpec
from harness.transcript import Failure, TurnRecord
from tests.harness.run_builders import CHAT_OFF, SERVE_ON, make_plan, run_healthy


def spoil(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if spec.arm == SERVE_ON and (turn.conversation, turn.turn) == ("code-1", 1):
        return replace(turn, text=turn.text[:4] + b"X" + turn.text[5:])
    return turn


def test_a_healthy_run_has_nothing_to_minimize():
    plan = make_plan()
    assert find_failing(plan, run_healthy(plan)) == ()


def test_failing_contrasts_come_in_the_order_of_the_verdict():
    plan = make_plan()
    first, second = find_failing(plan, run_healthy(plan, spoil))
    assert (first.contrast.name, second.contrast.name) == ("path on", "speculation serve")
    assert (first.symptom, first.conversation, first.turn, first.is_one_sided) == (
        "tokens",
        "code-1",
        1,
        False,
    )
    assert first.prompt is not None
    assert first.difference is not None
    assert first.difference.token_index == 1


def test_a_cell_that_failed_is_a_case_of_its_own_arm():
    plan = make_plan()
    records = [
        replace(r, turns=r.turns[:3], failure=Failure(code="engine-died", message="it died", hint=""))
        if r.spec.arm == CHAT_OFF
        else r
        for r in run_healthy(plan)
    ]
    crash = find_failing(plan, records)[0]
    assert (crash.contrast.name, crash.symptom, crash.message) == (
        "failed chat/0",
        "failure:engine-died",
        "it died",
    )
    assert (crash.conversation, crash.turn) == ("code-1", 1)
    small = build_pair_plan(plan, crash.contrast, repeat=False)
    assert [spec.key for spec in small.cells] == ["chat/0 quick 0"]


def test_the_small_plan_runs_only_the_arms_of_its_contrast():
    plan = make_plan()
    path_on = next(c for c in plan.contrasts if c.name == "path on")
    small = build_pair_plan(plan, path_on, repeat=True)
    assert [spec.key for spec in small.cells] == ["chat/3 quick 0", "serve/3 quick 0"]
    failing = observe_symptom(small, run_healthy(small, spoil), "tokens")
    assert failing is not None
    assert failing.symptom == "tokens"
    assert observe_symptom(small, run_healthy(small), "tokens") is None


def test_an_arm_is_run_twice_to_be_held_against_itself():
    plan = make_plan()
    small = build_pair_plan(plan, plan.contrasts[0], repeat=True)
    assert [spec.key for spec in small.cells] == ["chat/0 quick 0", "chat/0 quick 1"]


def test_counts_that_cannot_be_right_are_a_case_of_their_arm():
    def overcount(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm == SERVE_ON and turn.conversation == "code-1":
            return replace(turn, accepted_tokens=(turn.drafted_tokens or 0) + 1)
        return turn

    plan = make_plan()
    failing = find_failing(plan, run_healthy(plan, overcount))
    first = next(item for item in failing if item.symptom == "more accepted than drafted")
    assert (first.contrast.name, first.conversation, first.turn) == ("counts serve/3", "code-1", 0)
    assert first.is_one_sided
    assert first.message.startswith("accepted ")
