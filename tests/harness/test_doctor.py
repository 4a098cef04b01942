"""What the doctor makes of records: claims held against what was seen, and complaints with a remedy."""

from dataclasses import replace

import pytest

from engine_bindings.binding import Capabilities
from harness.doctor import CAP_TOKENS, Diagnosis, build_questions, diagnose
from harness.pairing import select_latest
from harness.plan import CellSpec, Plan, build_plan
from harness.transcript import Failure, TurnRecord
from tests.harness.run_builders import CHAT_ON, SERVE_OFF, SERVE_ON, Bend, judge_run, run_healthy

ABLE = Capabilities(
    paths=("chat", "serve"),
    max_depth=8,
    frames_are_tokens=frozenset({"serve"}),
    reports_forwards=True,
    reports_drafted=True,
    reports_cached_tokens=True,
)


def make_plan() -> Plan:
    return build_plan(build_questions(ABLE), repetitions=1, capabilities=ABLE)


def examine(bend: Bend = lambda _, turn: turn) -> Diagnosis:
    plan = make_plan()
    records = run_healthy(plan, bend)
    return diagnose(plan, ABLE, select_latest(records), judge_run(plan, records)[0], None)


def complaints(bend: Bend) -> list[str]:
    return [f"{item.place}: {item.problem}" for item in examine(bend).complaints]


def test_healthy_engine_has_no_complaint_and_a_row_for_each_capability():
    diagnosis = examine()
    assert diagnosis.complaints == ()
    rows = {(row.path, row.capability): row for row in diagnosis.rows}
    assert rows["serve", "shows which bytes are a token"].seen == "yes"
    assert rows["chat", "shows which bytes are a token"].seen == "no"
    assert not rows["chat", "shows which bytes are a token"].contradicted
    assert rows["serve", "drafts at depth 3"].seen == "yes"
    assert rows["chat", "keeps to a cap"].evidence == f"{CAP_TOKENS} tokens at a cap of {CAP_TOKENS}, length"


def on(arm, **changes: object) -> Bend:
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, **changes) if spec.arm == arm else turn  # type: ignore[arg-type]

    return bend


@pytest.mark.parametrize(
    ("bend", "words"),
    [
        (on(CHAT_ON, drafted_tokens=0, accepted_tokens=0, forwards=CAP_TOKENS), "chat/3: no sign of drafts"),
        (on(SERVE_OFF, drafted_tokens=9, forwards=20), "serve/0: drafts with speculation off"),
        (on(SERVE_ON, drafts_paused=2), "serve/3: the engine paused drafting 4 times"),
        (on(SERVE_ON, finish="stop"), "path on: questions, talk, turn 1, finish_reason"),
        (on(CHAT_ON, cached_tokens=None), "chat: reports cached_tokens is claimed and was not seen"),
        (on(SERVE_ON, emitted_tokens=CAP_TOKENS - 9), "serve: keeps to a cap is claimed"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(bend: Bend, words: str) -> None:
    said = complaints(bend)
    assert any(text.startswith(words) for text in said), said


def test_path_that_does_not_start_is_said_with_the_failure_and_its_remedy():
    plan = make_plan()
    failure = Failure(
        code="wrong-protocol", message="wrong protocol: chat instead of serve", hint="SERVE_BATCH=1"
    )
    records = tuple(
        replace(r, failure=failure, turns=()) if r.spec.arm.path == "serve" else r for r in run_healthy(plan)
    )
    found = diagnose(plan, ABLE, select_latest(records), judge_run(plan, records)[0], None)
    assert ("serve/0", failure.message, failure.hint) in [
        (item.place, item.problem, item.remedy) for item in found.complaints
    ]
    assert next(r for r in found.rows if (r.path, r.capability) == ("serve", "answers")).seen == "no"


def test_resumed_conversation_is_a_complaint():
    plan = make_plan()
    records = tuple(replace(r, kv_resumed_tokens=412) for r in run_healthy(plan))
    found = diagnose(plan, ABLE, select_latest(records), judge_run(plan, records)[0], None)
    assert any("412 tokens" in item.problem for item in found.complaints)


def test_a_path_that_takes_lines_only_is_asked_by_typing():
    typed = replace(ABLE, paths=("chat", "cli"), entries={"chat": ("line", "prompt"), "cli": ("line",)})
    assert [scenario.entry for scenario in build_questions(typed)] == ["prompt", "line"]


def test_typed_turns_beside_exact_ones_are_no_proof_that_counts_are_missing():
    typed = replace(ABLE, paths=("chat", "cli"), entries={"chat": ("line", "prompt"), "cli": ("line",)})
    plan = build_plan(build_questions(typed), repetitions=1, capabilities=typed)

    def hide(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.scenario != "typed":
            return turn
        return replace(turn, entry="line", prompt_tokens=None, cached_tokens=None, prefill_tokens=None)

    records = run_healthy(plan, hide)
    found = diagnose(plan, typed, select_latest(records), judge_run(plan, records)[0], None)
    rows = {(row.path, row.capability): row for row in found.rows}
    assert len(rows) == len(found.rows)
    assert rows["chat", "reports cached_tokens"].seen == "yes"
    assert rows["cli", "reports cached_tokens"].seen == "not shown"
