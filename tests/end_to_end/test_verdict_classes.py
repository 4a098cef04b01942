"""Real differences on the embedded engine: kernels that round by the shape of the batch, and what a wrapper
spoils on every arm alike.
"""

import json
from pathlib import Path

import pytest

from harness.cases import TOKENS_PAST_DIFFERENCE
from harness.report import Report
from harness.rundir import read_run
from tests.end_to_end.comparisons import Compare, WriteWrapper
from tests.end_to_end.rounding import KERNELS, MAX_TOKENS, RoundedRequest, find_rounded_requests

SCENARIO = f"""
schema = 1
name = "long"
title = "Long answers"
description = "Two answers that meet a near-tie."

[defaults]
max_tokens = {MAX_TOKENS}

[[conversation]]
id = "first"
class = "prose"

[[conversation.turn]]
user = "%s"

[[conversation]]
id = "second"
class = "prose"

[[conversation.turn]]
user = "%s"
"""

# Says that it accepted a hundred drafts more than it did.
WRONG_COUNT = """
import re
process = subprocess.Popen(ENGINE, stderr=subprocess.PIPE)
for line in process.stderr:
    line = re.sub(rb"accepted (\\d+)", lambda m: b"accepted %d" % (int(m[1]) + 100), line)
    sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()
sys.exit(process.wait())
"""


@pytest.fixture(scope="module")
def rounded() -> tuple[RoundedRequest, ...]:
    return find_rounded_requests(2)


@pytest.fixture(scope="module")
def long_file(rounded: tuple[RoundedRequest, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "long.toml"
    path.write_text(SCENARIO % tuple(request.text for request in rounded))
    return path


@pytest.fixture(scope="module")
def rounding(
    compare: Compare, long_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Report, int]:
    done = compare(tmp_path_factory.mktemp("rounding") / "run", *ROUNDING, scenario=long_file)
    return Report.from_json(done.stdout), done.returncode


@pytest.fixture(scope="module")
def accepted_gap(rounding: tuple[Report, int]) -> str:
    """What a user reads in the report of the strict run and then accepts: its widest margin."""
    margins = [finding.margin for finding in rounding[0].comparison.findings if finding.margin is not None]
    return f"{1.01 * max(margins):.6f}"


def read_classes(report: Report) -> set[tuple[str, str]]:
    return {(finding.verdict_class, finding.effect) for finding in report.comparison.findings}


ROUNDING = ("--set", f"REF_KERNELS={KERNELS}", "--repetitions", "1", "--json")


def test_kernels_that_round_by_the_batch_are_numerics_with_their_margin(
    rounding: tuple[Report, int],
) -> None:
    report, status = rounding

    assert (status, report.verdict.verdict_class) == (3, "numerics")
    assert {finding.conversation for finding in report.comparison.findings} == {"first", "second"}
    assert read_classes(report) == {("numerics", "open")}
    for finding in report.comparison.findings:
        assert finding.margin is not None
        assert 5e-4 < finding.margin < 0.5
        assert any("the same two candidates in the other order" in fact for fact in finding.facts)
        assert any("1: at the same place, 2: at the same place" in fact for fact in finding.facts)


def test_the_user_may_accept_the_rounding_of_these_kernels(
    compare: Compare, long_file: Path, accepted_gap: str, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", *ROUNDING, "--tie-gap", accepted_gap, scenario=long_file)

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.verdict_class) == (0, "near-tie")
    assert "but for 2 proven near-ties between depths" in report.verdict.sentence
    evidence = json.loads((tmp_path / "run" / "certificate.json").read_text())["evidence"]
    assert (evidence["near_tie_policy"], evidence["near_ties"]) == ("explain", 2)
    states = {c.contrast.name: c.state for c in report.comparison.contrasts if c.contrast.kind != "self"}
    assert states == {
        "path off": "identical",
        "path on": "identical",
        "speculation chat": "explained",
        "speculation serve": "explained",
    }


def test_near_ties_can_be_made_to_fail(
    compare: Compare, long_file: Path, accepted_gap: str, tmp_path: Path
) -> None:
    policy = ("--tie-gap", accepted_gap, "--near-tie", "fail")
    done = compare(tmp_path / "run", *ROUNDING, *policy, scenario=long_file)

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.status) == (1, "fail")
    assert report.verdict.sentence.startswith("FAIL: near-tie: speculation changes the tokens")


def test_a_count_that_is_wrong_on_every_path_is_named(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", "--engine", write_wrapper(WRONG_COUNT), "--repetitions", "1", "--json")

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.verdict_class) == (1, "counters")
    turn = next(r for r in read_run(tmp_path / "run").records if r.spec.arm.label == "chat/3").turns[0]
    assert turn.emitted_tokens is not None
    assert turn.forwards is not None
    accepted = turn.emitted_tokens - turn.forwards + 100
    assert report.verdict.sentence == (
        f"FAIL: counters: chat/3 in short, talk, turn 1: accepted {accepted} of {turn.drafted_tokens} drafts"
    )


def test_the_run_ends_at_the_first_fault_that_is_named(
    compare: Compare, long_file: Path, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", *ROUNDING, "--near-tie", "fail", "--until", "fault", scenario=long_file)

    contents = read_run(tmp_path / "run")
    assert done.returncode == 1
    planned = [r.spec.arm.label for r in contents.records if r.spec.probe is None]
    assert planned == ["serve/3", "serve/0"]
    assert contents.records[1].stop is not None
    assert [turn.conversation for turn in contents.records[1].turns] == ["first"]
    assert len(contents.records) > len(planned)


def test_a_budget_holds_with_the_probes(
    compare: Compare, long_file: Path, rounded: tuple[RoundedRequest, ...], tmp_path: Path
) -> None:
    # Room for the first conversation on four arms, and for asking it again on two of them.
    probe_tokens = rounded[0].token_index + TOKENS_PAST_DIFFERENCE
    budget = 4 * MAX_TOKENS + 2 * probe_tokens
    done = compare(tmp_path / "run", *ROUNDING, "--budget", str(budget), scenario=long_file)

    report = Report.from_json(done.stdout)
    assert report.comparison.tokens_decoded <= budget
    assert "left out to keep to the budget: conversation 'second' of 'long'" in report.comparison.notes
    assert report.comparison.probe_tokens > 0


def test_probes_that_the_budget_does_not_allow_are_missed_by_name(
    compare: Compare, long_file: Path, rounded: tuple[RoundedRequest, ...], tmp_path: Path
) -> None:
    # The cells end at their cap and take all of it.
    cap = rounded[0].token_index + 1
    short_file = tmp_path / "short.toml"
    short_file.write_text(long_file.read_text().replace(f"max_tokens = {MAX_TOKENS}", f"max_tokens = {cap}"))
    done = compare(tmp_path / "run", *ROUNDING, "--budget", str(4 * cap), scenario=short_file)

    report = Report.from_json(done.stdout)
    missed = f"the evidence is missing because the next probes take {2 * cap} tokens"
    assert (done.returncode, report.comparison.probe_tokens) == (3, 0)
    assert missed in report.verdict.sentence
    notes = [n for n in report.comparison.notes if n.startswith("not run to keep to the budget: ")]
    assert len(notes) == 1
    assert "'serve/0 long 0 cold first.1', 'serve/3 long 0 cold first.1'" in notes[0]
