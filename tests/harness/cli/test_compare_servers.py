"""``coli-ab compare`` on servers that run already: what can be judged of one, of two, and what cannot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.rundir import read_run
from tests.harness.cli.fake_server import Behaviour, fake_server

Compare = Callable[..., int]


@pytest.fixture
def compare(tmp_path: Path, scenario_file: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*more: str) -> int:
        return main(["compare", "--scenario", str(scenario_file), "--out", str(tmp_path / "run"), *more])

    return run


def verdict(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "run/verdict.json").read_text())
    return found


def test_one_server_is_held_against_itself_and_its_ways(
    compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour = Behaviour()
    with fake_server(behaviour) as url:
        assert compare("--engine", url) == 0

    told = capsys.readouterr()
    assert "the same tokens as chat-completions at whatever depth the server runs" in told.out
    assert "not compared: what speculation changes" in " ".join(told.out.split())
    assert "no certificate: which engine and model a running server has is its word only" in told.err
    assert not (tmp_path / "run/certificate.json").exists()
    run = read_run(tmp_path / "run")
    assert {arm.label for arm in run.plan.arms} == {
        "chat-completions/?",
        "chat-completions-whole/?",
        "openai-client/?",
    }
    assert {contrast.kind for contrast in run.plan.contrasts} == {"self", "path"}
    assert run.environment.engine.reported
    assert run.environment.model.reported
    assert run.records[0].argv == ()


def test_turns_build_on_the_answers_that_were_given(compare: Compare) -> None:
    behaviour = Behaviour()
    with fake_server(behaviour) as url:
        compare("--engine", url, "--repetitions", "1")

    first, second = behaviour.bodies[:2]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == "".join(behaviour.words(first))


def test_a_stream_that_drops_tokens_fails_against_the_whole_answer(compare: Compare, tmp_path: Path) -> None:
    with fake_server(Behaviour(drops=True)) as url:
        assert compare("--engine", url) == 1

    assert verdict(tmp_path)["status"] == "fail"
    assert "chat-completions-whole" in verdict(tmp_path)["sentence"]


def test_two_servers_with_counters_pass(compare: Compare, tmp_path: Path) -> None:
    with fake_server(Behaviour(drafts=0)) as off, fake_server(Behaviour(drafts=3)) as on:
        assert compare("--on", on, "--off", off, "--depth", "2") == 0

    run = read_run(tmp_path / "run")
    drafted = {r.spec.arm.depth: {turn.drafted_tokens for turn in r.turns} for r in run.records}
    assert drafted == {0: {0}, 2: {3}}


def test_two_servers_without_counters_are_inconclusive(compare: Compare, tmp_path: Path) -> None:
    with fake_server(Behaviour()) as off, fake_server(Behaviour()) as on:
        assert compare("--on", on, "--off", off) == 3

    assert "not reported" in json.dumps(verdict(tmp_path))


def test_a_server_that_drafts_nothing_is_no_on_arm(compare: Compare, tmp_path: Path) -> None:
    with fake_server(Behaviour(drafts=0)) as off, fake_server(Behaviour(drafts=0)) as on:
        assert compare("--on", on, "--off", off) == 3

    assert "no sign of drafts" in json.dumps(verdict(tmp_path))


def test_a_server_that_drafts_is_no_off_arm(compare: Compare, tmp_path: Path) -> None:
    with fake_server(Behaviour(drafts=1)) as off, fake_server(Behaviour(drafts=1)) as on:
        assert compare("--on", on, "--off", off) == 3

    assert "drafts with speculation off" in json.dumps(verdict(tmp_path))


def test_speculation_that_changes_answers_does_not_pass(compare: Compare, tmp_path: Path) -> None:
    with fake_server(Behaviour(drafts=0)) as off, fake_server(Behaviour(drafts=3, changes=True)) as on:
        assert compare("--on", on, "--off", off) in (1, 3)

    assert "speculation" in json.dumps(verdict(tmp_path))


def test_a_key_is_sent_and_kept_nowhere(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(Behaviour(key="sk-secret-1")) as url:
        assert compare("--engine", url) == 2
        assert "--api-key-env" in capsys.readouterr().err
        monkeypatch.setenv("MY_KEY", "sk-secret-1")
        assert compare("--engine", url, "--api-key-env", "MY_KEY") == 0

    told = capsys.readouterr()
    written = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any("sk-secret-1" in text for text in (told.out, told.err, *written))


def test_the_model_is_named_where_several_are_served(
    compare: Compare, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(Behaviour(models=("a", "b"))) as url:
        assert compare("--engine", url) == 2
        assert "several models are served there: a, b" in capsys.readouterr().err
        assert compare("--engine", url, "--model-name", "c") == 2
        assert "no model 'c' is served there" in capsys.readouterr().err
        assert compare("--engine", url, "--model-name", "b") == 0


def test_a_dry_run_asks_for_no_answer(compare: Compare, capsys: pytest.CaptureFixture[str]) -> None:
    behaviour = Behaviour()
    with fake_server(behaviour) as url:
        assert compare("--engine", url, "--dry-run") == 0

    assert "runs already" in capsys.readouterr().out
    assert behaviour.bodies == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "http://127.0.0.1:9/v1"], "--off is missing"),
        (["--off", "http://127.0.0.1:9/v1"], "--on is missing"),
        (["--engine", "reference", "--on", "http://a/v1", "--off", "http://b/v1"], "in place of --engine"),
        (["--engine", "http://127.0.0.1:9/v1", "--model", "x"], "has its model already"),
        (["--engine", "http://127.0.0.1:9/v1"], "cannot reach the server"),
        (["--engine", "openai"], "no address"),
    ],
)
def test_what_cannot_be_asked_for(
    compare: Compare, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert compare(*options) == 2
    assert message in capsys.readouterr().err


def test_the_size_of_a_servers_context_cannot_be_chosen(
    compare: Compare, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(Behaviour()) as url:
        assert compare("--engine", url, "--context", "64") == 2
        assert "cannot be chosen" in capsys.readouterr().err
        assert compare("--engine", url, "--scenario", "context-end") == 2
        assert "does not tell the size of its own" in capsys.readouterr().err


def test_scenarios_of_exact_prompts_need_a_server_that_takes_them(
    compare: Compare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    exact = tmp_path / "exact.toml"
    exact.write_text(
        'schema = 1\nname = "exact"\n[[conversation]]\nid = "a"\n'
        '[[conversation.turn]]\nprompt = "x"\nmax_tokens = 2\n'
    )
    with fake_server(Behaviour()) as url:
        assert compare("--engine", url, "--scenario", str(exact)) == 0
        assert "not run on chat-completions, which takes messages only: exact" in " ".join(
            capsys.readouterr().out.split()
        )


def test_a_run_on_a_server_is_a_baseline_and_nothing_more(
    compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str], scenario_file: Path
) -> None:
    first = tmp_path / "run"
    with fake_server(Behaviour(drops=True)) as url:
        assert compare("--engine", url, "--repetitions", "1") == 1
        assert main(["minimize", str(first)]) == 2
        assert "cannot be minimised" in capsys.readouterr().err
        again = ["compare", "--scenario", str(scenario_file), "--engine", url, "--repetitions", "1"]
        assert main([*again, "--out", str(tmp_path / "more"), "--reuse", str(first)]) == 2
        assert "nobody can show that a server" in capsys.readouterr().err
        assert main([*again, "--out", str(tmp_path / "held"), "--baseline", str(first)]) == 1
