"""Real differences on the embedded engine: kernels that round by the shape of the batch, and what a wrapper
spoils on every arm alike.
"""

from pathlib import Path

import pytest

from harness.report import Report
from harness.rundir import read_run
from tests.end_to_end.comparisons import Compare, WriteWrapper

SCENARIO = """
schema = 1
name = "long"
title = "Long answers"
description = "Answers that are long enough to meet a near-tie."

[defaults]
max_tokens = 120

[[conversation]]
id = "place"
class = "prose"

[[conversation.turn]]
user = "Describe the harbour in detail."

[[conversation]]
id = "story"
class = "prose"

[[conversation.turn]]
user = "Tell me a story about a bear named Olga in the mountain from Monday to Sunday."
"""

# Says that it accepted one draft more than it did.
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
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "long.toml"
    path.write_text(SCENARIO)
    return path


def read_classes(report: Report) -> set[tuple[str, str]]:
    return {(finding.verdict_class, finding.effect) for finding in report.comparison.findings}


ROUNDING = ("--set", "REF_KERNELS=int8-batch", "--repetitions", "1", "--json")


def test_kernels_that_round_by_the_batch_are_numerics_with_their_margin(
    compare: Compare, long_file: Path, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", *ROUNDING, scenario=long_file)

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.verdict_class) == (3, "numerics")
    assert read_classes(report) == {("numerics", "open")}
    for finding in report.comparison.findings:
        assert finding.margin is not None
        assert 5e-4 < finding.margin < 0.5
        assert any("the same two candidates in the other order" in fact for fact in finding.facts)
        assert any("1: at the same place, 2: at the same place" in fact for fact in finding.facts)


def test_the_user_may_accept_the_rounding_of_these_kernels(
    compare: Compare, long_file: Path, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", *ROUNDING, "--tie-gap", "0.2", scenario=long_file)

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.verdict_class) == (0, "near-tie")
    assert "proven near-ties between depths" in report.verdict.sentence
    states = {c.contrast.name: c.state for c in report.comparison.contrasts if c.contrast.kind != "self"}
    assert states == {
        "path off": "identical",
        "path on": "identical",
        "speculation chat": "explained",
        "speculation serve": "explained",
    }


def test_near_ties_can_be_made_to_fail(compare: Compare, long_file: Path, tmp_path: Path) -> None:
    done = compare(tmp_path / "run", *ROUNDING, "--tie-gap", "0.2", "--near-tie", "fail", scenario=long_file)

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.status) == (1, "fail")
    assert report.verdict.sentence.startswith("FAIL: near-tie: speculation changes the tokens")


def test_a_count_that_is_wrong_on_every_path_is_named(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", "--engine", write_wrapper(WRONG_COUNT), "--repetitions", "1", "--json")

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.verdict_class) == (1, "counters")
    assert "accepted 116 of 24 drafts" in report.verdict.sentence


def test_the_run_ends_at_the_first_fault_that_is_named(
    compare: Compare, long_file: Path, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", *ROUNDING, "--near-tie", "fail", "--until", "fault", scenario=long_file)

    contents = read_run(tmp_path / "run")
    assert done.returncode == 1
    planned = [r.spec.arm.label for r in contents.records if r.spec.probe is None]
    assert planned == ["chat/0", "chat/3"]
    assert len(contents.records) > len(planned)


def test_a_budget_holds_with_the_probes(compare: Compare, long_file: Path, tmp_path: Path) -> None:
    done = compare(tmp_path / "run", *ROUNDING, "--budget", "560", scenario=long_file)

    report = Report.from_json(done.stdout)
    assert report.comparison.tokens_decoded <= 560
    assert "left out to keep to the budget: conversation 'story' of 'long'" in report.comparison.notes
    assert report.comparison.probe_tokens > 0
