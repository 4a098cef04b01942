"""The matrix as text names what is wrong and why."""

from harness.selfcheck.matrix import build_absent_row, build_row
from reports.selfcheck import render_matrix
from tests.harness.selfcheck.selfcheck_samples import (
    make_control,
    make_defect,
    make_healthy,
    make_matrix,
    make_row,
)


def test_a_good_matrix_ends_with_pass_and_its_price():
    matrix = make_matrix(
        make_row(make_defect(), "fail", "state", tokens=100),
        make_row(make_control(), "pass", "near-tie"),
        healthy=(make_healthy("healthy-000"),),
    )
    text = render_matrix(matrix)
    assert "Defects: 1 of 1 named, 0 misnamed, 0 missed, 0 not available" in text
    assert "Controls: 1 of 1 explained, 0 accused" in text
    assert "0 alarms in 1 of 1 runs, seed 1" in text
    assert "10.0 times fewer than the plain plan's 1,000 in the median" in text
    assert text.endswith("PASS: fast form in 12 s\n")
    assert "Not as it must be" not in text


def test_what_is_wrong_is_told_with_the_reason():
    text = render_matrix(
        make_matrix(
            make_row(make_defect("quiet-one"), "pass", "identical"),
            build_row(make_defect("broken-one"), None, plain_tokens=1, error="OSError: disk full"),
            make_row(make_control(), "fail", "state"),
            build_absent_row(make_defect("absent-one", available=False, unavailable="no such rule")),
            healthy=(make_healthy("healthy-003", "fail", "counters"),),
        )
    )
    assert "quiet-one: missed, state expected: PASS: identical: because" in text
    assert "broken-one: missed, state expected: the run broke off: OSError: disk full" in text
    assert "near-tie: accused, near-tie expected: FAIL: state: because" in text
    assert "absent-one: not available: no such rule" in text
    assert "healthy-003 (quick at depth 2: copy): FAIL: counters: because" in text
    assert text.endswith("FAIL: fast form in 12 s\n")


def test_what_was_not_run_is_told_after_an_interruption():
    text = render_matrix(make_matrix(build_absent_row(make_defect("later-one")), interrupted=True))
    assert "later-one: not run" in text
    assert text.endswith("interrupted: fast form in 12 s\n")
