"""Several builds in one plan: what is held against what, and what a baseline decides."""

from dataclasses import replace

import pytest

from engine_bindings.errors import UsageError
from harness.builds import add_baseline, join_builds
from harness.cases import list_cases
from harness.changes import describe_changes, list_changes
from harness.contrasts import CheckedContrast
from harness.evidence import gather_evidence
from harness.pairing import select_latest
from harness.plan import Arm, Build, CellSpec, Plan
from harness.transcript import CellRecord, TurnRecord
from tests.harness.run_builders import judge_run, make_plan, make_scenario, run_healthy

MAIN, PR = Build(name="main", engine="reference=/main"), Build(name="pr", engine="reference=/pr")


def join() -> Plan:
    return join_builds([MAIN, PR], [make_plan(), make_plan()])


def of_build(name: str, **changes: object):
    """Return a bend that changes every drafting turn of one build."""

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        hit = spec.arm.build == name and spec.arm.depth > 0
        return replace(turn, **changes) if hit else turn

    return bend


def test_arms_of_each_build_carry_its_name():
    plan = join()
    assert [arm.label for arm in plan.arms][:2] == ["main:chat/0", "main:chat/3"]
    assert len(set(plan.arms)) == 8
    assert len(plan.cells) == len(set(plan.cells)) == 2 * len(make_plan().cells)


def test_baseline_is_only_held_against_itself_and_the_others():
    contrasts = join().contrasts
    of_main = [c.name for c in contrasts if c.a.build == c.b.build == "main"]
    assert of_main == ["self main:chat/0", "self main:chat/3", "self main:serve/0", "self main:serve/3"]
    assert [c.name for c in contrasts if c.kind == "path"] == ["pr path off", "pr path on"]
    between = {(c.name, c.a.label, c.b.label) for c in contrasts if c.kind == "build"}
    assert ("build pr:serve/3", "main:serve/3", "pr:serve/3") in between
    assert len(between) == 4


def test_cells_of_two_builds_alternate_and_swap_their_order():
    names = [spec.arm.build for spec in join().cells]
    assert names[:4] == ["main", "pr", "pr", "main"]


def test_equal_builds_pass():
    plan = join()
    _, verdict = judge_run(plan, run_healthy(plan))
    assert verdict.status == "pass"
    assert "main" in verdict.sentence


def test_other_text_of_one_build_fails_its_contrast():
    plan = join()
    spec_of = Arm(path="serve", depth=3, build="pr")

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=b"zz" + turn.text[2:]) if spec.arm == spec_of else turn

    comparison, verdict = judge_run(plan, run_healthy(plan, bend))
    assert verdict.status == "fail"
    assert "build pr:serve/3" in {c.contrast.name for c in comparison.contrasts if c.found}


@pytest.mark.parametrize("lost", [True, False])
def test_builds_that_keep_other_drafts_compute_in_other_blocks(lost: bool):
    plan = join()
    counts = {"forwards": 14, "accepted_tokens": 10, "drafted_tokens": 36} if lost else {}

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        if spec.arm.build != "pr" or not spec.arm.depth:
            return turn
        text = turn.text if turn.conversation == "copy-1" else b"zz" + turn.text[2:]
        return replace(turn, text=text, **counts)

    records = run_healthy(plan, bend)
    comparison, _ = judge_run(plan, records)
    checked = tuple(CheckedContrast(result=result, identical=()) for result in comparison.contrasts)
    latest = select_latest(records)
    cases = [case for case in list_cases(plan, comparison.contrasts, latest, {}) if case.found.in_tokens]
    shown = {case.contrast.kind: gather_evidence(plan, case, checked, latest).other_blocks for case in cases}
    assert shown == {"build": lost, "speculation": False}


def test_lost_acceptance_of_a_build_fails_by_the_counter_though_the_text_is_right():
    plan = join()
    _, verdict = judge_run(
        plan, run_healthy(plan, of_build("pr", forwards=14, accepted_tokens=10, drafted_tokens=36))
    )
    assert verdict.status == "fail"
    assert verdict.verdict_class == "counters"
    assert "forwards" in verdict.sentence
    assert "does not count the same as main" in verdict.sentence


def test_faults_of_the_baseline_alone_are_told_and_not_judged():
    plan = join()
    bend = of_build("main", accepted_tokens=9, drafted_tokens=3, forwards=15)
    comparison, _ = judge_run(plan, run_healthy(plan, bend))
    assert all(finding.contrast for finding in comparison.findings)
    assert any("main has" in note and "not judged here" in note for note in comparison.notes)


def test_builds_of_one_name_or_without_a_common_arm_are_refused():
    with pytest.raises(UsageError, match="one name"):
        join_builds([MAIN, MAIN], [make_plan(), make_plan()])
    lone = make_plan()
    other = replace(lone, arms=(Arm(path="completion", depth=2),), contrasts=(), cells=())
    with pytest.raises(UsageError, match="no arm in common"):
        join_builds([MAIN, PR], [lone, other])


def recorded_run() -> tuple[Plan, tuple[CellRecord, ...]]:
    plan = make_plan()
    return plan, run_healthy(plan)


def test_recorded_baseline_costs_no_tokens_and_has_no_times():
    plan, records = recorded_run()
    joined, taken = add_baseline(plan, plan, records, "runs/old")
    assert joined.worst_case_tokens == plan.worst_case_tokens
    assert {record.reused_from for record in taken} == {"runs/old"}
    comparison, verdict = judge_run(joined, (*taken, *records))
    assert verdict.status == "pass"
    assert comparison.tokens_decoded == judge_run(plan, records)[0].tokens_decoded
    rates = {row.arm.label: row.decode_tokens_per_s for row in comparison.speeds}
    assert rates["baseline:serve/3"] is None
    assert rates["serve/3"] is not None


def test_baseline_finds_what_both_paths_of_the_engine_share():
    plan, records = recorded_run()
    joined, taken = add_baseline(plan, plan, records, "runs/old")
    spoilt = run_healthy(plan, of_build("", forwards=14, accepted_tokens=10, drafted_tokens=36))
    assert judge_run(plan, spoilt)[1].status != "fail"
    comparison, verdict = judge_run(joined, (*taken, *spoilt))
    assert (verdict.status, verdict.verdict_class) == ("fail", "counters")
    assert {f.contrast for f in comparison.findings} == {"build chat/3", "build serve/3"}


def test_baseline_without_a_common_cell_is_refused_and_a_partial_one_says_what_is_missing():
    plan, records = recorded_run()
    other = make_plan(make_scenario("other"))
    with pytest.raises(UsageError, match="no measured cell"):
        add_baseline(other, plan, records, "runs/old")
    both = make_plan(make_scenario(), make_scenario("other"))
    joined, taken = add_baseline(both, plan, records, "runs/old")
    assert {record.spec.scenario for record in taken} == {"quick"}
    assert any("no such scenario: other" in text for text in joined.left_out)


def test_changed_settings_and_engines_are_named():
    plan = join()

    def pin(record: CellRecord) -> CellRecord:
        if record.spec.arm.build != "pr":
            return record
        return replace(
            record, pins=tuple(replace(p, value="1") if p.name == "KVSAVE" else p for p in record.pins)
        )

    records = [pin(record) for record in run_healthy(plan)]
    identity = {"main": {"engine": "reference 1111"}, "pr": {"engine": "reference 2222"}}
    changes = list_changes(plan, records, identity)
    assert [(c.variable, c.baseline, c.value) for c in changes] == [
        ("engine", "reference 1111", "reference 2222"),
        ("KVSAVE", "0", "1"),
    ]
    told = describe_changes(plan, changes)
    assert told[0] == "main to pr changes engine reference 1111 to reference 2222, KVSAVE 0 to 1"
    assert told[1].startswith("warning: 2 variables differ")


def test_one_change_needs_no_warning_and_none_is_said_to_be_noise():
    plan = join()
    records = run_healthy(plan)
    one = list_changes(plan, records, {"main": {"engine": "a"}, "pr": {"engine": "b"}})
    assert len(describe_changes(plan, one)) == 1
    assert "nothing differs" in describe_changes(plan, ())[0]
    assert describe_changes(make_plan(), ()) == ()
