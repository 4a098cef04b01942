"""Seeded defects that text alone does not show: what else is looked at names each of them."""

from pathlib import Path

import pytest

from harness.report import Report
from tests.end_to_end.comparisons import Compare, WriteWrapper

SCENARIO = """
schema = 1
name = "seen"

[defaults]
max_tokens = 24

[[conversation]]
id = "first"

[[conversation.turn]]
user = "Tell me a story about a fox named Ida."

[[conversation]]
id = "second"
slot = 1

[[conversation.turn]]
user = "Tell me a story about the harbour."
"""


@pytest.fixture(scope="module")
def seen_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "seen.toml"
    path.write_text(SCENARIO)
    return path


def judge(compare: Compare, scenario: Path, out: Path, *more: str) -> Report:
    return Report.from_json(compare(out, "--repetitions", "1", "--json", *more, scenario=scenario).stdout)


@pytest.mark.parametrize(
    ("defect", "verdict_class", "said"),
    [
        ("logprob-zero", "counters", "logprobs: "),
        ("state-carried-between-arms", "prefix-reuse", "left .coli_kv"),
        ("slot-zero-hard-coded", "counters", "seen, second, turn 1, forwards"),
    ],
)
def test_the_defect_is_named(
    defect: str, verdict_class: str, said: str, compare: Compare, seen_file: Path, tmp_path: Path
) -> None:
    report = judge(compare, seen_file, tmp_path / "run", "--set", f"REF_DEFECT={defect}")

    assert (report.verdict.status, report.verdict.verdict_class) == ("fail", verdict_class)
    assert said in report.verdict.sentence


@pytest.mark.parametrize("settings", [(), ("--set", "REF_KERNELS=int8-batch")], ids=["healthy", "rounding"])
def test_neither_the_healthy_engine_nor_one_that_rounds_is_accused(
    settings: tuple[str, ...], compare: Compare, seen_file: Path, tmp_path: Path
) -> None:
    report = judge(compare, seen_file, tmp_path / "run", *settings)

    assert report.verdict.status != "fail"
    assert [check.state for check in report.comparison.logprobs] == ["agree"]


# The defect of serve mode in chat mode too, or in chat mode alone.
DROPS = """
from engine_bindings.reference.defects.paths import StreamDropsOnMultiToken
from engine_bindings.reference.host import main
StreamDropsOnMultiToken.shown_tokens = (
    lambda self, emitted: emitted[:1] if %s else emitted
)
os.environ["REF_DEFECT"] = "stream-drops-on-multi-token"
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("self.serves", "serve/3 sent "),
        ("not self.serves", "chat/3 counted 24 tokens and sent them without "),
        ("True", "serve/3 sent "),
    ],
    ids=["serve", "chat", "both"],
)
def test_stream_without_its_tokens_is_a_fault_of_the_counts_on_any_path(
    where: str, said: str, compare: Compare, write_wrapper: WriteWrapper, seen_file: Path, tmp_path: Path
) -> None:
    report = judge(compare, seen_file, tmp_path / "run", "--engine", write_wrapper(DROPS % where))

    assert (report.verdict.status, report.verdict.verdict_class) == ("fail", "counters")
    reasons = [finding.reason for finding in report.comparison.findings if finding.effect == "fail"]
    assert any(said in reason for reason in reasons)


TWO_PARTS = """
schema = 1
name = "parts"

[defaults]
max_tokens = 24

[[conversation]]
id = "parts"

[[conversation.turn]]
prompt = "[gMASK]<sop><|user|>Give me a list of 5 birds.<|assistant|><think></think>"

[[conversation.turn]]
append = ""
max_tokens = 8
"""


def test_generation_in_two_parts_shows_that_the_context_holds_more_than_the_stream(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    (tmp_path / "parts.toml").write_text(TWO_PARTS)
    engine = write_wrapper(DROPS % "not self.serves")
    report = judge(compare, tmp_path / "parts.toml", tmp_path / "run", "--engine", engine)

    (finding,) = (
        f for f in report.comparison.findings if f.rule == "more tokens than come back in the next prompt"
    )
    assert [arm.label for arm in finding.arms] == ["chat/3"]
    assert (report.verdict.status, report.verdict.verdict_class) == ("fail", "counters")
