"""A diagnosis as text: every row with its evidence, then complaints with their remedies, the outcome last."""

from dataclasses import replace

from harness.doctor.rows import Complaint, Diagnosis, Row
from reports.doctor import render_diagnosis

PROBLEM = Complaint(name="nothing-drafted", message="nothing is drafted", remedy="look for the head")
TRAP = Complaint(name="caps-clamped-silently", message="lowered", remedy="set NGEN", effect="caution")


def make_row(**changes: object) -> Row:
    row = Row(path="chat", capability="cap honoured", claimed="yes", seen="yes", evidence="16 of 16")
    return replace(row, **changes)  # type: ignore[arg-type]


def make_diagnosis(*rows: Row, ready: bool = True) -> Diagnosis:
    return Diagnosis(
        engine="reference",
        depth=3,
        rows=rows,
        ready=ready,
        starts=4,
        decoded_tokens=1200,
        notes=("cli: no coli",),
    )


def test_rows_stand_under_their_path_with_their_evidence() -> None:
    text = render_diagnosis(make_diagnosis(make_row(), make_row(path="serve", seen="not shown", claimed="")))
    assert text.index("\nchat\n") < text.index("16 of 16") < text.index("\nserve\n") < text.index("not shown")
    assert "Not asked: cli: no coli" in text
    assert text.endswith(
        "AS CLAIMED: 1 of 2 rows shown, no claim contradicted; 1,200 tokens decoded in 4 starts\n"
    )


def test_complaints_have_their_remedies_and_traps_are_no_problems() -> None:
    text = render_diagnosis(make_diagnosis(make_row(complaint=PROBLEM), make_row(complaint=TRAP)))
    assert "Problems\n  chat: nothing-drafted: nothing is drafted\n    remedy: look for the head\n" in text
    assert "Known traps\n  chat: caps-clamped-silently: lowered\n    remedy: set NGEN\n" in text
    assert "PROBLEMS: 1 found" in text
    assert "AS CLAIMED" in render_diagnosis(make_diagnosis(make_row(complaint=TRAP)))


def test_the_same_complaint_of_a_path_is_told_once() -> None:
    text = render_diagnosis(make_diagnosis(make_row(complaint=PROBLEM), make_row(complaint=PROBLEM)))
    assert text.count("look for the head") == 1


def test_engine_that_cannot_start_is_said_so() -> None:
    assert "CANNOT START" in render_diagnosis(make_diagnosis(make_row(complaint=PROBLEM), ready=False))


def test_what_an_engine_wrote_cannot_steer_a_terminal() -> None:
    assert "\x1b" not in render_diagnosis(make_diagnosis(make_row(evidence="\x1b[2J gone")))
