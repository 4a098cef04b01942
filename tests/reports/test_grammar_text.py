"""The table of answers under a grammar."""

from dataclasses import replace

import pytest

from harness.grammar import Grammar
from harness.plan import CellSpec
from harness.report import Report
from harness.transcript import TurnRecord
from reports.text import render_text
from tests.harness.run_builders import CHAT_ON, make_plan, make_scenario, report_run, run_healthy

GBNF = 'root ::= "{" [a-z0-9]+ "}"\n'


def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
    if turn.turn == 1:
        return turn
    text = b"no" if spec.arm == CHAT_ON else b"{yes}"
    return replace(turn, text=text, finish="stop", emitted_tokens=23, token_lengths=None)


def report_grammar(*, binds: bool) -> Report:
    scenario = make_scenario("words", grammar=Grammar(kind="gbnf", text=GBNF, binds=binds))
    plan = make_plan(scenario)
    return report_run(plan, run_healthy(plan, bend))


@pytest.mark.parametrize("binds", [True, False])
def test_table_shows_the_answers_of_each_arm(binds: bool) -> None:
    lines = render_text(report_grammar(binds=binds)).splitlines()

    effect = "binds" if binds else "is a source of drafts only: validity is shown, not judged"
    start = lines.index(f"Answers under the grammar of words, which {effect}")
    table = [line.split() for line in lines[start + 1 : start + 8]]
    assert table[0] == ["arm", "answers", "valid", "unfinished", "forwards", "per", "token"]
    assert table[2][:4] == ["chat/0", "8", "4", "4"]
    assert table[3][:4] == ["chat/3", "8", "0", "4"]
    assert "  - chat/3: 4 invalid, the first in copy-1, turn 1: leaves the grammar at byte 0" in lines


def test_report_without_a_grammar_has_no_table() -> None:
    plan = make_plan()

    assert "grammar" not in render_text(report_run(plan, run_healthy(plan)))
