"""``coli-ab compare`` in this process, on engines written for the purpose."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.rundir import read_run
from tests.harness.cli.cli_samples import SCENARIO

Arguments = Callable[..., list[str]]


def read_cells(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]


def test_equal_arms_pass(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(compare_arguments("healthy"))

    captured = capsys.readouterr()
    assert status == 0
    assert captured.out.startswith("PASS: ")
    assert "[8/8] " in captured.err
    assert f"run directory: {tmp_path / 'run'}" in captured.err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "arguments.json",
        "cells.jsonl",
        "certificate.json",
        "comparison.json",
        "environment.json",
        "environment_after.json",
        "plan.json",
        "report.json",
        "report.txt",
        "scenarios",
        "stderr",
        "verdict.json",
    ]
    assert (tmp_path / "run/scenarios/two-turns/scenario.toml").read_text() == SCENARIO
    # Eight cells, and two that ask for logprobs.
    assert len(list((tmp_path / "run/stderr").iterdir())) == 10
    assert "[API] KV slot 0" in (tmp_path / "run/stderr/chat-3.two-turns.1.txt").read_text()


def test_report_and_analyze_give_the_same_bytes_again(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(compare_arguments("healthy"))
    first = capsys.readouterr().out
    out = tmp_path / "run"
    files = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}

    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out == first
    assert main(["analyze", str(out)]) == 0
    assert capsys.readouterr().out == first
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == files
    assert files["report.txt"].decode() == first


def test_json_prints_the_report_alone(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(compare_arguments("healthy", "--json"))

    out = capsys.readouterr().out
    assert json.loads(out)["verdict"]["status"] == "pass"
    assert out == (tmp_path / "run/report.json").read_text()
    assert main(["report", "--json", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == out


def test_changed_token_fails_the_contrasts_of_its_arm_at_its_place(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(compare_arguments("changes_a_token_with_drafts_in_chat_mode", "--json"))

    report = json.loads(capsys.readouterr().out)
    states = {c["contrast"]["name"]: c["state"] for c in report["comparison"]["contrasts"]}
    assert status == 1
    broken = {name: state for name, state in states.items() if state != "identical"}
    assert broken == {"path on": "different", "speculation chat": "undecided"}
    assert "byte 9, token 2" in report["verdict"]["sentence"]


def test_a_run_until_its_first_fault_ends_the_cell_that_shows_it(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--until", "fault", "--repetitions", "1")
    assert main(compare_arguments("changes_a_token_with_drafts_in_chat_mode", *options)) == 1

    captured = capsys.readouterr()
    records = read_run(tmp_path / "run").records
    cells = [(r.spec.arm.label, len(r.turns), r.is_complete) for r in records if r.spec.probe is None]
    assert cells == [("serve/3", 2, True), ("serve/0", 2, True), ("chat/3", 1, False)]
    assert all(r.spec.probe is not None for r in records[3:])
    assert "; ended early: tokens is not as in serve/3" in captured.err
    report = " ".join(captured.out.split())
    assert "1 of 4 cells were not run: the run ended with the first proven fault" in report
    assert "was ended early at talk turn 1: tokens is not as in serve/3; 1 turn was not asked" in report
    assert main(["analyze", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().out == captured.out


def test_probes_of_an_early_end_leave_the_budget_room_for_the_cells_to_come(
    compare_arguments: Arguments, tmp_path: Path
) -> None:
    options = ("--until", "fault", "--repetitions", "1", "--budget", "64")
    main(compare_arguments("changes_a_token_with_drafts_in_chat_mode", *options))

    # 20 tokens are decoded when chat/3 ends early, and two cells may take 16 each: a probe of 8 is paid for.
    records = read_run(tmp_path / "run").records
    kinds = [r.spec.probe.kind if r.spec.probe else r.spec.arm.label for r in records]
    assert kinds[:5] == ["serve/3", "serve/0", "chat/3", "cold", "chat/3"]
    assert (records[4].attempt, records[4].is_complete) == (1, True)


def test_a_difference_that_proves_nothing_lets_the_cell_run_again_to_its_end(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = ("--set", f"MARK_FILE={tmp_path / 'mark'}")
    options = ("--until", "fault", "--repetitions", "1", *mark)
    assert main(compare_arguments("changes_a_token_once_with_drafts_in_chat_mode", *options)) == 3

    records = read_run(tmp_path / "run").records
    cells = [(r.spec.arm.label, r.attempt, len(r.turns)) for r in records if r.spec.probe is None]
    assert cells == [
        ("serve/3", 0, 2),
        ("serve/0", 0, 2),
        ("chat/3", 0, 1),
        ("chat/3", 1, 2),
        ("chat/0", 0, 2),
    ]
    assert "chat/3 does not equal itself" in capsys.readouterr().out
    assert (tmp_path / "run/stderr/chat-3.two-turns.0.attempt-1.txt").exists()


def test_arms_that_never_draft_are_void(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(compare_arguments("never_drafts", "--json"))

    report = json.loads(capsys.readouterr().out)
    states = {f"{row['arm']['path']}/{row['arm']['depth']}": row["state"] for row in report["arms"]}
    assert status in {3, 4}
    assert states == {"chat/0": "off", "chat/3": "void", "serve/0": "off", "serve/3": "void"}


def test_setting_of_the_user_reaches_every_arm_and_is_shown(
    compare_arguments: Arguments, tmp_path: Path
) -> None:
    main(compare_arguments("shows_environment", "--set", "DRAFT=0", "--set", "EXTRA=x", "--repetitions", "1"))

    for path in (tmp_path / "run/stderr").iterdir():
        assert "\nDRAFT=0\n" in path.read_text()
        assert "\nEXTRA=x\n" in path.read_text()
    pins = {pin["name"]: pin for pin in read_cells(tmp_path / "run")[1]["pins"]}
    assert pins["DRAFT"]["overridden"]
    assert pins["DRAFT"]["reason"].startswith("in place of 3: ")
    assert pins["EXTRA"]["overridden"]


def test_failed_cells_are_recorded_and_the_others_kept(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(compare_arguments("dies_in_serve_mode", "--repetitions", "1"))

    assert status == 4
    assert capsys.readouterr().out.startswith("INVALID: 2 of 4 cells could not be measured")
    records = read_run(tmp_path / "run").records
    assert [(r.spec.arm.path, r.failure and r.failure.code, len(r.turns), r.exit_code) for r in records] == [
        ("chat", None, 2, 0),
        ("chat", None, 2, 0),
        ("serve", "engine-died", 1, -9),
        ("serve", "engine-died", 1, -9),
    ]
    assert records[2].failure is not None
    assert records[2].failure.stderr_tail[-1] == "about to crash"


def test_engine_that_never_starts_is_not_started_for_every_cell(
    compare_arguments: Arguments, tmp_path: Path
) -> None:
    status = main(compare_arguments("exits_at_once"))

    codes = [r.failure.code for r in read_run(tmp_path / "run").records if r.failure]
    assert status == 4
    assert codes == ["engine-start"] * 4 + ["not-run"] * 4


def test_limits_are_options(compare_arguments: Arguments, tmp_path: Path) -> None:
    main(compare_arguments("never_ready", "--start-timeout", "0.1", "--repetitions", "1"))

    failure = read_run(tmp_path / "run").records[0].failure
    assert failure is not None
    assert failure.code == "engine-timeout"
    assert "0.1 s (start-timeout)" in failure.message


def test_dry_run_starts_nothing(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(compare_arguments("exits_at_once", "--dry-run", "--set", "CTX=512"))

    out = capsys.readouterr().out
    assert status == 0
    assert "128 decoded at most" in out
    assert "serve/3 two-turns 1" in out
    assert "chat/0: 0, chat/3: 3, serve/0: 0, serve/3: 3" in out
    assert "CTX" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        (("colibry",), "unknown engine 'colibry'"),
        (("reference=",), "nothing after the equals sign"),
        (("reference=/no/such/engine",), "no executable file there"),
        (("reference", "reference"), "several engines need a label each"),
        (("a=reference", "a=reference"), "several engines need a label each"),
        (("a=", "b=reference"), "no engine behind the label"),
        (("a b=reference", "b=reference"), "'a b' is no label"),
        (("a=/no/such/engine", "b=reference"), "no executable file there"),
    ],
)
def test_engines_that_cannot_be_told_are_one_clear_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, engines: tuple[str, ...], words: str
) -> None:
    options = [word for engine in engines for word in ("--engine", engine)]
    assert main(["compare", "--out", str(tmp_path / "run"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "pr:CTX=64"), "no engine has the label 'pr'"),
        (("--baseline", "/no/such/run"), "No such file"),
        (("--reuse", "/no/such/run"), "No such file"),
        (("--model", "/no/such/model"), "there is no model directory '/no/such/model'"),
        (("--scenario", "quikc"), "no scenario is called 'quikc'"),
        (("--scenario", "/no/such.toml"), "No such file"),
        (("--depth", "0"), "draft depth 0"),
        (("--repetitions", "0"), "0 repetitions"),
        (("--set", "DRAFT"), "not NAME=VALUE"),
        (("--set", "SNAP=/elsewhere"), "--model"),
        (("--set", "LLAMA_ARG_PORT=1"), "LLAMA_ARG_PORT is a free port for each server"),
    ],
)
def test_request_that_cannot_be_carried_out_is_one_clear_message(
    compare_arguments: Arguments,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    more: tuple[str, ...],
    words: str,
) -> None:
    status = main(compare_arguments("healthy", *more))

    captured = capsys.readouterr()
    assert status == 2
    assert words in captured.err
    assert len(captured.err.splitlines()) <= 3
    assert captured.out == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--start-timeout=0", "--turn-timeout=nan", "--context=-1", "--unknown"])
def test_impossible_option_is_refused_by_the_parser(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(compare_arguments("healthy", option))

    assert caught.value.code == 2
    assert option.partition("=")[0] in capsys.readouterr().err


def test_misspelt_key_of_a_scenario_is_named_with_its_line(
    compare_arguments: Arguments, scenario_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario_file.write_text(SCENARIO.replace("max_tokens", "max_token"))

    assert main(compare_arguments("healthy")) == 2
    err = capsys.readouterr().err
    assert "max_token" in err
    assert f"{scenario_file}" in err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "config.json: no such file"),
        ("config.json", b"{", "config.json: not JSON"),
        ("config.json", b"[]", "holds a JSON list"),
        ("tokenizer.json", None, "tokenizer.json: no such file"),
        ("model.safetensors", None, "no *.safetensors file"),
        ("model.safetensors", b"", "not a safetensors file"),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0{}", "header is broken"),
        ("model.safetensors", b"cut", "not a safetensors file"),
    ],
)
def test_broken_model_is_named(
    compare_arguments: Arguments,
    model_dir: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes | None,
    words: str,
) -> None:
    (model_dir / name).unlink()
    if content is not None:
        (model_dir / name).write_bytes(content)

    assert main(compare_arguments("healthy")) == 2
    assert words in capsys.readouterr().err


def test_weights_that_were_cut_are_named(
    compare_arguments: Arguments, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = model_dir / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    assert main(compare_arguments("healthy")) == 2
    assert "its header describes" in capsys.readouterr().err


def test_run_directory_is_never_written_over(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/precious").write_text("kept")

    assert main(compare_arguments("healthy")) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious"]


def test_files_of_a_scenario_are_copied_and_cannot_lie_elsewhere(
    compare_arguments: Arguments, scenario_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/again.txt").write_text("Once more")
    text = SCENARIO.replace('user = "Again"', 'user_file = "prompts/again.txt"')
    scenario_file.write_text(text)

    assert main(compare_arguments("healthy", "--repetitions", "1")) in {0, 3}
    assert (tmp_path / "run/scenarios/two-turns/prompts/again.txt").read_text() == "Once more\n"

    scenario_file.write_text(text.replace("prompts/again.txt", "../elsewhere.txt"))
    assert main(compare_arguments("healthy")) == 2
    assert "leads out of the scenario's directory" in capsys.readouterr().err


def test_bug_in_the_tool_is_said_with_its_traceback(
    compare_arguments: Arguments, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.request.build_plan", lambda *a, **k: 1 / 0)

    assert main(compare_arguments("healthy")) == 70
    err = capsys.readouterr().err
    assert "a bug in coli-ab: ZeroDivisionError" in err
    traceback_file = Path(err.split()[-1])
    assert "ZeroDivisionError" in traceback_file.read_text()
    traceback_file.unlink()


def test_broken_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tmp_path)]) == 2
    assert "plan.json: No such file" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "coli-ab analyze" in capsys.readouterr().err


def test_an_edited_run_is_not_judged(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(compare_arguments("changes_a_token_with_drafts_in_chat_mode")) == 1
    report = json.loads((run / "report.json").read_text())
    report["verdict"] |= {"status": "pass", "exit_status": 0, "sentence": "PASS: all is well"}
    (run / "report.json").write_text(json.dumps(report))
    assert main(["report", str(run)]) == 2
    assert "report.json: its verdict is pass, and " in capsys.readouterr().err

    plan = json.loads((run / "plan.json").read_text())
    plan["contrasts"] = [c for c in plan["contrasts"] if c["name"] != "path on"]
    (run / "plan.json").write_text(json.dumps(plan))
    assert main(["analyze", str(run)]) == 2
    assert "plan.json: no contrast of the kind 'path' holds chat/3 against serve/3" in capsys.readouterr().err


def test_cut_last_line_is_left_out_with_a_note(
    compare_arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(compare_arguments("healthy"))
    cells = tmp_path / "run/cells.jsonl"
    planned = cells.read_bytes().splitlines(keepends=True)[:8]
    cells.write_bytes(b"".join(planned)[:-20])
    capsys.readouterr()

    assert main(["analyze", str(tmp_path / "run")]) == 3
    captured = capsys.readouterr()
    assert "the last line was cut short" in captured.err
    assert "1 of 8 cells" in captured.out


def test_shipped_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios"]) == 0
    assert "quick" in capsys.readouterr().out


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "coli-ab compare " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["compare", "--senario", "quick"],
            "coli-ab compare: unrecognized arguments: --senario quick; did you mean --scenario?",
        ),
        (
            ["history", "trend", "--arn=serve/3"],
            "coli-ab history trend: unrecognized arguments: --arn=serve/3; did you mean --arm?",
        ),
        (["report", "--zzz", "RUN"], "coli-ab report: unrecognized arguments: --zzz\n"),
        (["compare", "--depth", "x"], "coli-ab compare: argument --depth: invalid int value: 'x'"),
        (["comapre"], "invalid choice: 'comapre'"),
    ],
)
def test_a_wrong_command_line_is_answered_in_two_lines(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["report", "--help"]])
def test_help_teaches(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: coli-ab")
