"""Loops and recitation are marked; ordinary answers, lists and copies on demand are not."""

from dataclasses import replace

import pytest

from harness.degenerate import find_loop, find_recitation
from harness.plan import CellSpec
from harness.transcript import TurnRecord
from tests.harness.run_builders import judge_run, make_plan, run_healthy

STORY = (
    b"The owl lives in the old tree behind the harbour. Every evening it counts the boats, and when one is "
    b"missing it calls the fisherman, who does not like to be woken but gets up all the same."
)
TABLE = b"".join(
    b'{"id": %d, "name": "%s", "weight": %d},\n' % (n, STORY[n : n + 4], n * 7) for n in range(9)
)


@pytest.mark.parametrize("text", [STORY + b" na" * 60, b"a" * 64, b"yes, no, " * 20, (b"x" * 30 + b"\n") * 4])
def test_a_loop_is_found_at_the_end_of_an_answer(text: bytes):
    assert find_loop(text) is not None


@pytest.mark.parametrize(
    "text", [b"", b"a" * 60, STORY, TABLE, STORY * 3, b"ab " * 30 + STORY, STORY + b"." * 64]
)
def test_what_is_no_loop(text: bytes):
    assert find_loop(text) is None


def test_a_loop_is_told_with_its_piece():
    assert find_loop(b"abc " * 20) == "its last 80 of 80 bytes repeat 'abc ' 20 times"


def test_recitation_is_an_answer_out_of_the_prompt():
    assert find_recitation(STORY, b"Read this: " + STORY) is not None
    assert find_recitation(STORY[:40], STORY) is None
    assert find_recitation(TABLE, STORY) is None
    assert find_recitation(STORY + TABLE, STORY) is None


def test_a_degenerate_answer_is_no_speed_and_no_fault():
    plan = make_plan()

    def bend(spec: CellSpec, turn: TurnRecord) -> TurnRecord:
        return replace(turn, text=b"blah" * 24) if turn.conversation == "code-1" else turn

    comparison, verdict = judge_run(plan, run_healthy(plan, bend))
    assert verdict.status == "pass"
    assert {(a.conversation, a.kind) for a in comparison.degenerate} == {("code-1", "loop")}
    speedup = next(row for row in comparison.speedups if row.category is None)
    assert (speedup.pairs, speedup.degenerate_pairs) == (4, 4)
    code = next(row for row in comparison.speedups if row.category == "code")
    assert (code.speedup_ratio, code.remark) == (None, "not judged: the answers are degenerate")


def test_an_arm_whose_answers_are_mostly_loops_is_void():
    plan = make_plan()
    bent = run_healthy(plan, lambda _, turn: replace(turn, text=b"blah" * 24))
    verdict = judge_run(plan, bent)[1]
    assert (verdict.status, verdict.verdict_class) == ("inconclusive", "void")
    assert "chat/0 is void in quick: 4 of 4 answers are degenerate; the first is a loop" in verdict.sentence
