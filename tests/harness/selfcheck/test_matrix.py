"""What the gate said is held against what it must say."""

from dataclasses import replace

import pytest

from harness.findings import VerdictClass
from harness.selfcheck.matrix import Outcome, build_absent_row, build_row, finds_nothing, judge_given
from harness.verdict import Status
from tests.harness.selfcheck.selfcheck_samples import (
    make_control,
    make_defect,
    make_given,
    make_healthy,
    make_matrix,
    make_row,
)


@pytest.mark.parametrize(
    ("expected", "status", "given", "outcome"),
    [
        ("state", "fail", "state", "named"),
        ("state", "fail", "counters", "misnamed"),
        ("state", "inconclusive", "unproven", "misnamed"),
        ("state", "inconclusive", "state", "misnamed"),
        ("state", "pass", "identical", "missed"),
        ("state", "pass", "near-tie", "missed"),
        ("failed", "invalid", "failed", "named"),
        ("state", "invalid", "failed", "misnamed"),
        ("void", "inconclusive", "void", "named"),
        ("nondeterministic", "inconclusive", "nondeterministic", "named"),
        ("counters", "fail", "counters", "named"),
    ],
)
def test_a_defect_is_named_by_status_and_class_only(
    expected: VerdictClass, status: Status, given: VerdictClass, outcome: Outcome
):
    assert judge_given(make_defect(verdict=expected), make_given(status, given)) == outcome


@pytest.mark.parametrize(
    ("expected", "status", "given", "outcome"),
    [
        ("near-tie", "pass", "near-tie", "explained"),
        ("numerics", "inconclusive", "numerics", "explained"),
        ("near-tie", "inconclusive", "numerics", "left open"),
        ("near-tie", "fail", "near-tie", "accused"),
        ("near-tie", "fail", "state", "accused"),
        ("near-tie", "invalid", "failed", "accused"),
        ("near-tie", "pass", "identical", "unseen"),
    ],
)
def test_a_control_must_be_met_and_not_accused(
    expected: VerdictClass, status: Status, given: VerdictClass, outcome: Outcome
):
    assert judge_given(make_control(verdict=expected), make_given(status, given)) == outcome


def test_a_run_that_broke_off_is_a_miss_and_says_so():
    row = build_row(make_defect(), None, plain_tokens=1000, error="OSError: disk full")
    assert (row.outcome, row.error, row.ratio) == ("missed", "OSError: disk full", None)
    assert not make_matrix(row).passed


def test_a_defect_that_is_not_available_does_not_fail_the_check_and_one_not_run_does():
    absent = build_absent_row(make_defect(available=False, unavailable="no such rule"))
    assert (absent.outcome, absent.error) == ("unavailable", "no such rule")
    assert make_matrix(absent).passed
    assert not make_matrix(build_absent_row(make_defect())).passed


def test_it_passes_only_when_all_is_as_it_must_be():
    named = make_row(make_defect(), "fail", "state")
    explained = make_row(make_control(), "pass", "near-tie")
    quiet = make_healthy("healthy-000")
    assert make_matrix(named, explained, healthy=(quiet,)).passed
    assert not make_matrix(named, healthy=(quiet,), interrupted=True).passed
    assert not make_matrix(named, healthy=(quiet,), healthy_asked=2).passed
    for wrong in (
        make_row(make_defect(), "fail", "counters"),
        make_row(make_defect(), "pass", "identical"),
        make_row(make_control(), "fail", "state"),
    ):
        assert not make_matrix(named, wrong).passed


@pytest.mark.parametrize(
    ("status", "verdict_class"), [("fail", "state"), ("inconclusive", "void"), ("pass", "near-tie")]
)
def test_a_healthy_run_may_say_nothing_but_identical(status: Status, verdict_class: VerdictClass):
    alarm = make_healthy("healthy-000", status, verdict_class)
    assert alarm.alarmed
    assert not make_matrix(healthy=(alarm,)).passed


@pytest.mark.parametrize(
    ("status", "verdict_class", "alarmed"),
    [
        ("pass", "near-tie", False),
        ("inconclusive", "numerics", False),
        ("fail", "numerics", True),
        ("inconclusive", "unproven", True),
    ],
)
def test_kernels_that_round_may_be_called_so(status: Status, verdict_class: VerdictClass, alarmed: bool):
    healthy = replace(make_healthy("plain", status, verdict_class), rounds=True)
    assert healthy.alarmed is alarmed


def test_the_ratio_is_taken_over_what_was_named():
    rows = [make_row(make_defect(f"d{tokens}"), "fail", "state", tokens=tokens) for tokens in (10, 100, 500)]
    missed = make_row(make_defect("missed"), "pass", "identical", tokens=1000)
    control = make_row(make_control(), "pass", "near-tie", tokens=1000)
    matrix = make_matrix(*rows, missed, control)
    assert matrix.ratios == (2.0, 10.0, 100.0)
    assert matrix.median_ratio == 10.0


@pytest.mark.parametrize(
    ("status", "verdict_class", "nothing"),
    [
        ("pass", "identical", True),
        ("pass", "near-tie", True),
        ("inconclusive", "numerics", True),
        ("fail", "near-tie", False),
        ("inconclusive", "void", False),
        ("fail", "state", False),
    ],
)
def test_nothing_but_rounding_is_nothing_found(status: Status, verdict_class: VerdictClass, nothing: bool):
    assert finds_nothing(make_given(status, verdict_class)) is nothing
