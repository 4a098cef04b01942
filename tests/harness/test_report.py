"""The Report value: complete, and the same for the same records."""

from dataclasses import replace

from harness.report import Report
from harness.transcript import CellRecord
from tests.harness.run_builders import (
    CHAT_OFF,
    SERVE_OFF,
    make_plan,
    make_scenario,
    report_run,
    run_healthy,
)


def test_a_report_survives_json():
    plan = make_plan(make_scenario("a"), make_scenario("b"))
    report = report_run(plan, run_healthy(plan))
    assert Report.from_json(report.to_json()) == report


def test_records_read_back_give_the_same_bytes():
    plan = make_plan()
    records = run_healthy(plan)
    again = tuple(CellRecord.from_json(record.to_json()) for record in records)
    assert report_run(plan, again).to_json() == report_run(plan, records).to_json()


def test_the_order_in_which_records_were_written_changes_nothing():
    plan = make_plan()
    records = run_healthy(plan)
    assert report_run(plan, records[::-1]).to_json() == report_run(plan, records).to_json()


def test_an_arm_s_row_sums_its_scenarios_and_shows_the_worst_state():
    plan = make_plan(make_scenario("a"), make_scenario("b"))
    records = run_healthy(
        plan,
        lambda spec, turn: (
            replace(turn, drafted_tokens=1) if (spec.arm, spec.scenario) == (CHAT_OFF, "b") else turn
        ),
    )
    chat_off, chat_on, *_ = report_run(plan, records).arms
    assert (chat_off.state, chat_off.totals.emitted_tokens, chat_off.totals.turns) == ("void", 384, 16)
    assert (chat_on.state, chat_on.totals.tokens_per_forward, chat_on.totals.acceptance_rate) == (
        "on",
        4.0,
        1.0,
    )


def test_settings_are_listed_once_for_each_value():
    plan = make_plan()
    pins = report_run(plan, run_healthy(plan)).pins
    assert [(pin.name, pin.value, len(pin.arms)) for pin in pins] == [
        ("DRAFT", "0", 2),
        ("DRAFT", "3", 2),
        ("KVSAVE", "0", 4),
    ]
    assert pins[0].arms == (CHAT_OFF, SERVE_OFF)
