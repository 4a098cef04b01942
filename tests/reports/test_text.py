"""The text report: a golden page, what it must say of each kind of run, and how wide it is."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.plan import CellSpec, Plan
from harness.scenario import Scenario
from harness.transcript import CellRecord, Failure, TurnRecord
from reports.text import MAX_REASONS, render_text
from tests.harness.run_builders import (
    CHAT_ON,
    SERVE_ON,
    make_plan,
    make_scenario,
    report_run,
    run_healthy,
)

GOLDEN = Path(__file__).parent / "golden"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def agent_loop() -> Scenario:
    """Return a scenario with a declared prefix and an expected fact in its second turn."""
    scenario = make_scenario("agent-loop", turns=3)
    talk = scenario.conversations[0]
    second = replace(
        talk.turns[1], expect=("co11", "zebra"), expect_prompt_tokens=48, expect_cached_tokens=38
    )
    return replace(scenario, conversations=(replace(talk, turns=(talk.turns[0], second, talk.turns[2])),))


def different(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if (spec.arm, turn.turn) != (SERVE_ON, 1):
        return turn
    changed = turn.text[:20] + "é 100 %".encode() + turn.text[28:]
    return replace(turn, text=changed, cached_tokens=37, prefill_tokens=11)


def void(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if spec.arm != CHAT_ON:
        return turn
    return replace(turn, drafted_tokens=0, accepted_tokens=0, forwards=turn.emitted_tokens)


def fail_first(records: tuple[CellRecord, ...]) -> tuple[CellRecord, ...]:
    failure = Failure(
        code="engine-died",
        message="the engine ended with signal 11 while a turn was running",
        hint="its last stderr lines may say why",
        stderr_tail=("[prefill] layer 1/6", "Segmentation fault"),
    )
    return (replace(records[0], failure=failure, turns=records[0].turns[:1]), *records[1:])


def render(plan: Plan, records: tuple[CellRecord, ...], width: int = 80) -> str:
    return render_text(report_run(plan, records), width=width)


def pages() -> dict[str, str]:
    plan = make_plan(agent_loop())
    healthy = run_healthy(plan)
    return {
        "pass.txt": render(plan, healthy),
        "fail.txt": render(plan, run_healthy(plan, different)),
        "inconclusive.txt": render(plan, run_healthy(plan, void)),
        "invalid.txt": render(plan, fail_first(healthy)),
    }


@pytest.mark.parametrize("name", ["pass.txt", "fail.txt", "inconclusive.txt", "invalid.txt"])
def test_a_page_is_what_it_was(name: str):
    assert pages()[name] == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["pass.txt", "fail.txt", "inconclusive.txt", "invalid.txt"])
def test_the_first_line_is_the_verdict_in_one_sentence(name: str):
    first, *_ = pages()[name].splitlines()
    assert first.startswith(name.removesuffix(".txt").upper() + ": ")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_nothing_but_the_verdict_is_wider_than_the_terminal(width: int):
    plan = make_plan(make_scenario(), agent_loop())
    for bend in (different, void):
        lines = render(plan, fail_first(run_healthy(plan, bend)), width).splitlines()
        assert max(map(len, lines[1:])) <= width


def test_colour_changes_nothing_but_the_colour():
    plan = make_plan(agent_loop())
    report = report_run(plan, run_healthy(plan, different))
    coloured = render_text(report, width=80, colour=True)
    assert "\x1b[1;31mFAIL" in coloured
    plain = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
    assert plain == render_text(report, width=80).splitlines()


def test_markup_in_an_answer_is_shown_as_it_is():
    plan = make_plan()
    records = run_healthy(
        plan, lambda spec, t: replace(t, text=b"[red]:smile:") if spec.arm == SERVE_ON else t
    )
    assert "'[red]:smile:'" in render(plan, records)


def test_prefill_is_printed_so_that_it_can_be_found_in_the_engine_s_own_lines():
    plan = make_plan(agent_loop())
    records = run_healthy(
        plan, lambda _, t: replace(t, prompt_tokens=2804, cached_tokens=2765, prefill_tokens=39)
    )
    assert "prefix 2765/2804 prefill 39" in render(plan, records)


def test_a_proven_wrong_prefix_is_marked():
    plan = make_plan(agent_loop())
    records = run_healthy(
        plan, lambda _, t: replace(t, cached_tokens=0, prefill_tokens=48) if t.turn == 1 else t
    )
    assert re.search(r"prefix 0/48 prefill 48 +WRONG, expected 38 +all", render(plan, records))


def test_a_rate_of_nearly_all_is_not_shown_as_all():
    plan = make_plan()
    records = run_healthy(
        plan,
        lambda spec, t: replace(t, drafted_tokens=10_000, accepted_tokens=9_999) if spec.arm.depth else t,
    )
    text = render(plan, records)
    assert "99.9 %" in text
    assert "100.0 %" not in text


def test_a_run_that_differs_everywhere_stays_readable():
    plan = make_plan(*(make_scenario(f"s{i}") for i in range(9)))
    records = run_healthy(
        plan, lambda spec, t: replace(t, text=b"X" + t.text[1:]) if spec.arm == SERVE_ON else t
    )
    text = render(plan, records)
    assert text.count("      after ") == 8
    assert "and 28 more, in report.json" in text
    assert len(text.splitlines()[1:]) < 210
    assert (
        len([line for line in text.split("\n\n")[0].splitlines() if line.startswith("  - ")])
        <= MAX_REASONS + 1
    )


def test_a_reason_that_holds_at_many_places_is_told_once_for_each_contrast():
    plan = make_plan(*(make_scenario(f"s{i}") for i in range(9)), repetitions=1)
    records = run_healthy(
        plan, lambda spec, t: replace(t, text=b"X" + t.text[1:]) if spec.arm == SERVE_ON else t
    )
    text = " ".join(render(plan, records).split())
    assert (
        text.count("path on: s0, copy-1, turn 1 and 17 more places: chat/3 and serve/3 was not repeated") == 1
    )


def test_an_interrupted_run_without_any_cell_can_be_shown():
    plan = make_plan()
    text = render(plan, ())
    assert text.startswith("INCONCLUSIVE: 8 of 8 cells were not measured")


def test_what_was_not_measured_is_listed_once_for_all_arms_that_lack_it():
    plan = make_plan(*(make_scenario(name) for name in ("first", "second", "third")))
    measured = {cell for cell in plan.cells if cell.scenario == "first" and cell.arm == CHAT_ON}
    records = tuple(record for record in run_healthy(plan) if record.spec in measured)
    lines = [line.strip() for line in render(plan, records).splitlines()]
    told = [line for line in lines if line.startswith("- not measured")]
    assert told == [
        "- not measured: chat/0 serve/0 serve/3 in first, second, third",
        "- not measured: chat/3 in second, third",
    ]
    table = lines[lines.index("Tokens per forward") :]
    assert [line.split()[0] for line in table[3:4]] == ["first"]
    assert not table[4].startswith("second")


def test_a_pass_says_why_its_arms_have_not_as_many_tokens():
    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        heard = 20 if spec.arm == CHAT_ON else 22
        return replace(turn, finish="stop-string", emitted_tokens=heard, token_lengths=None)

    plan = make_plan(make_scenario("stops", turns=1))
    text = render(plan, run_healthy(plan, bend))
    assert text.startswith("PASS")
    assert "the arms need not have as many tokens in stops: behind a stop string" in text
    assert "need not have as many" not in render(plan, run_healthy(plan))


def test_control_characters_of_an_engine_do_not_reach_the_page():
    plan = make_plan()
    first, *others = run_healthy(plan)
    failure = Failure(
        code="engine-died", message="died \x1b]0;title\x07", hint="", stderr_tail=("\x1b[2Jgone\rover",)
    )
    text = render(plan, (replace(first, failure=failure), *others))
    assert not {"\x1b", "\x07", "\r"} & set(text)
    assert r"stderr | \x1b[2Jgone\rover" in text
    assert r"died \x1b]0;title\x07" in text
