"""llama.cpp end to end: the server of the package xllamacpp, on the shipped checkpoint written as GGUF."""

from pathlib import Path
from typing import Any

import pytest

from harness.report import Report
from harness.rundir import RunContents, read_run
from tests.end_to_end.comparisons import Compare


@pytest.fixture(scope="module")
def both(
    compare: Compare, shipped_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Report, RunContents]:
    """Run the embedded engine and llama.cpp on the same weights."""
    out = tmp_path_factory.mktemp("llamacpp") / "run"
    engines = ("--engine", "own=reference", "--engine", "llama=llamacpp", "--model", f"llama={shipped_gguf}")
    done = compare(out, *engines, "--repetitions", "1", "--json")
    return Report.from_json(done.stdout), read_run(out)


def test_both_engines_give_the_same_tokens(both: tuple[Report, RunContents]) -> None:
    report, _ = both

    states = {row.contrast.name: row.state for row in report.comparison.contrasts}
    assert states["build llama:completion/0"] == states["build llama:completion/3"] == "identical"
    assert states["llama path off"] == states["llama path on"] == "identical"


def test_drafts_are_shown_by_counters(both: tuple[Report, RunContents]) -> None:
    report, _ = both

    arms = {row.arm.label: row for row in report.arms}
    assert {label: row.state for label, row in arms.items() if label.startswith("llama")} == {
        "llama:completion/0": "off",
        "llama:completion/3": "on",
        "llama:chat-completions/0": "off",
        "llama:chat-completions/3": "on",
    }
    on = arms["llama:completion/3"].totals
    assert on.tokens_per_forward is not None
    assert on.tokens_per_forward > 1.5


def test_counts_of_a_turn_add_up(both: tuple[Report, RunContents]) -> None:
    _, contents = both

    turns = [turn for record in contents.records if record.spec.arm.build == "llama" for turn in record.turns]
    assert turns
    for turn in turns:
        assert turn.prompt_tokens is not None
        assert turn.prompt_tokens == (turn.cached_tokens or 0) + (turn.prefill_tokens or 0)
        assert turn.emitted_tokens is not None
        assert turn.forwards is not None
        assert turn.accepted_tokens is not None
        # The forward of the last token is not needed at a cap, and llama.cpp leaves it out.
        left_out = 1 if turn.finish == "length" else 0
        assert turn.forwards + turn.accepted_tokens == turn.emitted_tokens - left_out


def test_settings_are_shown_with_their_reasons(both: tuple[Report, RunContents]) -> None:
    _, contents = both

    record = next(r for r in contents.records if r.spec.arm.label == "llama:completion/3")
    pins = {pin.name: pin for pin in record.pins}
    assert pins["LLAMA_ARG_SPEC_TYPE"].value == "draft-mtp"
    assert all(pin.reason for pin in record.pins)


def run_once(compare: Compare, out: Path, *options: str) -> Any:
    return compare(out, "--engine", "llamacpp", "--repetitions", "1", "--json", *options)


def test_ngrams_draft_where_the_model_has_no_head(
    compare: Compare, shipped_gguf: Path, tmp_path: Path
) -> None:
    setting = ("--set", "SPECULATION=ngram", "--set", "SPEC_NGRAM_SIMPLE_SIZE_N=2")
    report = Report.from_json(
        run_once(compare, tmp_path / "run", "--model", str(shipped_gguf), *setting).stdout
    )
    states = {row.contrast.name: row.state for row in report.comparison.contrasts}
    assert states["path off"] == states["path on"] == "identical"
    drafted = {row.arm.label: row.totals.drafted_tokens for row in report.arms}
    assert drafted["completion/0"] == 0
    assert (drafted["completion/3"] or 0) > 0


def test_a_model_that_is_none_fails_the_cells_and_says_why(compare: Compare, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and nothing that belongs there")
    done = run_once(compare, tmp_path / "run", "--model", str(path))
    record = read_run(tmp_path / "run").records[0]

    assert done.returncode == 4
    assert record.failure is not None
    assert record.failure.code == "engine-start"
    assert any("could not be started" in line for line in record.failure.stderr_tail)
