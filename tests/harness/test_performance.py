"""What is said of speed, from records to statement, on an engine whose speed is known."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.calibration import (
    Law,
    ScriptedEngine,
    build_calibration_plan,
    measure,
    order_badly,
    run_experiment,
)
from harness.cli.investigation import Investigation
from harness.cli.pair_bench import MemorySink
from harness.cli.results import compare_records
from harness.performance import Performance
from harness.plan import Plan
from harness.runner import Runner
from harness.schedule import add_timed_cells, is_timed
from harness.speed_words import describe_row, describe_statement
from harness.transcript import CellRecord, TurnRecord
from harness.verdict import judge
from tests.harness.run_builders import make_plan, run_healthy

PLAN = build_calibration_plan(16)


def run(effect: float, plan: Plan = PLAN, *, seed: int = 1, drift: float = 0.1) -> Performance:
    return run_experiment(plan, Law(effect=effect, drift=drift), np.random.default_rng([5, seed]))


def say(effect: float, seed: int = 1) -> tuple[str, ...]:
    return tuple(row.statement for row in run(effect, seed=seed).rows)


def bend(records: list[CellRecord], build: str, **changes: object) -> list[CellRecord]:
    def change(turn: TurnRecord) -> TurnRecord:
        return replace(turn, **changes)  # type: ignore[arg-type]

    return [
        replace(record, turns=tuple(map(change, record.turns))) if record.spec.arm.build == build else record
        for record in records
    ]


def test_a_slower_build_is_called_slower_and_fails():
    item = run(-0.06)
    decode, ttft = item.rows
    assert (decode.metric, decode.statement, decode.fails) == ("decode_tokens_per_s", "slower", True)
    assert decode.ratio is not None
    assert decode.ratio.value == pytest.approx(0.94, abs=0.025)
    assert decode.ratio.low < decode.ratio.value < decode.ratio.high < 1
    assert ttft.ratio is not None
    assert ttft.ratio.value > 1


def test_a_faster_build_is_called_faster_and_does_not_fail():
    decode = run(0.06).rows[0]
    assert (decode.statement, decode.fails) == ("faster", False)


def test_of_equal_builds_nothing_is_said_hardly_ever():
    said = [statement for seed in range(25) for statement in say(0.0, seed)]
    assert said.count("no difference shown") >= 48


def test_five_per_cent_is_found_nearly_always():
    assert sum(say(-0.05, seed)[0] == "slower" for seed in range(25)) >= 24


def test_a_shown_slow_down_within_the_bound_is_said_and_let_pass():
    plan = build_calibration_plan(16)
    assert plan.speed is not None
    loose = add_timed_cells(
        replace(plan, speed=None, cells=tuple(c for c in plan.cells if not is_timed(plan, c)), repetitions=1),
        pairs=16,
        alpha=0.007,
        bound_percent=10.0,
        sequential=False,
        seed=0,
    )
    decode = run(-0.06, loose).rows[0]
    assert (decode.statement, decode.beyond_bound, decode.fails) == ("slower", False, False)


def test_the_split_says_which_part_moved():
    item = run(-0.06)
    assert item.tokens_per_forward is not None
    assert (item.tokens_per_forward.low, item.tokens_per_forward.high) == (1.0, 1.0)
    assert item.time_per_forward is not None
    assert item.time_per_forward.value == pytest.approx(1 / 0.94, abs=0.03)


def test_pairs_that_do_not_match_are_not_timed():
    records = bend(
        measure(PLAN, Law(effect=-0.06), np.random.default_rng(2)), "pr", prefill_tokens=39, cached_tokens=1
    )
    found = compare_records(PLAN, records)
    assert found.performance[0].rows[0].pairs == 0
    verdict = judge(PLAN, found)
    assert verdict.status == "fail"
    assert verdict.verdict_class != "slower"


def test_a_drift_that_is_confounded_with_order_is_refused():
    item = run(0.0, order_badly(PLAN, "blocked"))
    assert [row.statement for row in item.rows] == ["not judged", "not judged"]
    assert "order of the arms is not balanced" in item.rows[0].remark


def test_a_drift_under_a_fixed_order_is_no_effect():
    plan = order_badly(build_calibration_plan(24), "fixed")
    said = [
        row.statement
        for seed in range(20)
        for row in run(0.0, plan, seed=seed, drift=0.3).rows
        if row.statement in ("faster", "slower")
    ]
    assert len(said) <= 1


def test_too_few_pairs_say_how_many_are_needed():
    decode, ttft = run(-0.5, build_calibration_plan(4)).rows
    assert describe_statement(decode) == "need at least 8 pairs"
    assert describe_statement(ttft) == "need at least 10 pairs"
    assert decode.p_value is None


def test_an_edited_plan_is_refused():
    assert PLAN.speed is not None
    plan = replace(PLAN, speed=replace(PLAN.speed, alpha=0.2))
    assert "not the one that was settled" in run(-0.06, plan).rows[0].remark


def test_arms_that_differ_from_themselves_are_refused():
    records = measure(PLAN, Law(drift=0.0), np.random.default_rng(3))
    slowed = {"pr": {1, 4, 5, 8, 9, 12, 13, 16}, "main": {2, 3, 6, 7, 10, 11, 14, 15}}

    def slow(record: CellRecord) -> CellRecord:
        # One repetition of every block is slower, by turns the first and the second.
        if record.spec.repetition not in slowed[record.spec.arm.build]:
            return record
        turn = record.turns[0]
        late = replace(turn.deliveries[1], at_ns=turn.deliveries[1].at_ns + 200_000_000)
        return replace(record, turns=(replace(turn, deliveries=(turn.deliveries[0], late)),))

    item = compare_records(PLAN, [slow(record) for record in records]).performance[0]
    assert item.rows[0].statement == "not judged"
    assert "A/A" in item.rows[0].remark


def test_the_noise_floor_is_each_arm_against_itself():
    item = run(-0.3)
    assert item.noise_floor is not None
    assert item.noise_floor.low < 1 < item.noise_floor.high
    assert item.noise_floor.value == pytest.approx(1.0, abs=0.02)
    assert item.spread_percent == pytest.approx(2.4, abs=1.2)
    assert item.shown_percent is not None
    assert item.carry_over is not None
    assert item.carry_over.ratio == pytest.approx(1.0, abs=0.03)


def test_a_slow_build_fails_the_run_and_a_slow_depth_does_not():
    records = measure(PLAN, Law(effect=-0.06), np.random.default_rng(1))
    verdict = judge(PLAN, compare_records(PLAN, records))
    assert (verdict.status, verdict.verdict_class, verdict.exit_status) == ("fail", "slower", 1)
    assert "pr:serve/0 is slower than main:serve/0: slower, decode tok/s 0.9" in verdict.sentence

    plan = make_plan(repetitions=20)
    item = compare_records(plan, run_healthy(plan)).performance
    assert {row.statement for performance in item for row in performance.rows[:1]} == {"faster"}
    assert judge(plan, compare_records(plan, run_healthy(plan))).status == "pass"


def test_too_few_pairs_leave_a_run_of_builds_inconclusive_only_where_speed_was_asked_for():
    plan = build_calibration_plan(4)
    records = measure(plan, Law(), np.random.default_rng(1))
    verdict = judge(plan, compare_records(plan, records))
    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "unproven")
    assert "need at least 8 pairs" in verdict.sentence
    unasked = replace(plan, speed=None)
    assert judge(unasked, compare_records(unasked, records)).status == "pass"


def test_cells_taken_over_have_no_times():
    records = measure(PLAN, Law(), np.random.default_rng(1))
    taken = [replace(record, reused_from="earlier") for record in records]
    assert compare_records(PLAN, taken).performance[0].rows[0].pairs == 0


def test_a_run_that_may_end_early_ends_where_its_records_say():
    plan = build_calibration_plan(24, sequential=True)
    whole = run_experiment(plan, Law(effect=-0.06), np.random.default_rng(4))
    live, sink = [], MemorySink()
    sink.append_cell = live.append  # type: ignore[method-assign]
    engine = ScriptedEngine(Law(effect=-0.06), len(plan.cells), np.random.default_rng(4))
    Investigation(plan, Runner(plan, engine, sink, observer=sink, wall_clock=str)).run()

    comparison = compare_records(plan, live)
    decode = comparison.performance[0].rows[0]
    assert decode.statement == "slower"
    assert decode.needed_pairs <= decode.pairs < 16
    assert comparison.performance[0] == whole
    assert len(live) == 2 + 2 * decode.pairs == comparison.cells_planned
    assert judge(plan, comparison).verdict_class == "slower"

    more = MemorySink()
    more.append_cell = lambda _: pytest.fail("a cell was run")  # type: ignore[method-assign]
    runner = Runner(plan, engine, more, observer=more, wall_clock=str, earlier=live)
    Investigation(plan, runner, live).run()


def test_a_run_that_was_cut_off_before_anything_is_said_lacks_its_cells():
    plan = build_calibration_plan(24, sequential=True)
    records = measure(plan, Law(), np.random.default_rng(1))[:20]
    comparison = compare_records(plan, records)
    assert comparison.cells_planned == len(plan.cells)
    assert "were not measured" in judge(plan, comparison).sentence


def test_a_row_is_one_line_with_all_figures():
    line = describe_row(run(-0.06).rows[0])
    assert line.startswith("slower, decode tok/s 0.9")
    assert "(16 pairs, p = 0.0" in line
    assert line.endswith("beyond the bound")


def test_an_early_end_is_said_of_the_pairs_that_were_run():
    plan = build_calibration_plan(16, sequential=True)
    said = [run(-0.05, plan, seed=seed).rows[0] for seed in range(12)]
    assert [row.statement for row in said if row.differs] == ["slower"] * sum(row.differs for row in said)
    assert sum(row.differs for row in said) >= 10
    assert sum(row.pairs for row in said) < 0.75 * 12 * 16
