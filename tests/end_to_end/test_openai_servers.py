"""Our own server as any OpenAI-compatible one: with a certificate it speculates, without one it does not."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.rundir import RunContents, read_run
from tests.end_to_end.comparisons import Compare
from tests.end_to_end.conftest import REPOSITORY

LIMIT_S = 120


@contextmanager
def serve(*options: str) -> Iterator[str]:
    """Run the reference server on a free port; give its base address."""
    server = subprocess.Popen(
        [sys.executable, "-m", "server", "--port", "0", *options],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        told = [server.stdout.readline() for _ in range(2)]
        found = re.search(r"listening on (\S+)", told[1])
        assert found, told
        yield f"{found[1]}/v1"
    finally:
        server.terminate()
        server.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def certified(compare: Compare, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the options that let the server speculate."""
    directory = tmp_path_factory.mktemp("certified")
    key = str(directory / "key")
    done = compare(directory / "run", "--repetitions", "1", "--key-file", key)
    assert done.returncode == 0, done.stderr
    return ("--certificate", str(directory / "run"), "--key-file", key)


@pytest.fixture(scope="module")
def compared(
    compare: Compare, certified: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> "tuple[subprocess.CompletedProcess[str], RunContents]":
    out = tmp_path_factory.mktemp("servers") / "run"
    with serve("--depth", "0") as off, serve(*certified) as on:
        done = compare(out, "--on", on, "--off", off)
    return done, read_run(out)


def test_speculation_is_shown_on_every_path(
    compared: "tuple[subprocess.CompletedProcess[str], RunContents]",
) -> None:
    done, run = compared

    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("PASS: ")
    paths = ("chat-completions", "chat-completions-whole", "openai-client", "completions")
    assert {arm.label for arm in run.plan.arms} == {f"{path}/{depth}" for path in paths for depth in (0, 3)}


def test_counts_come_from_the_answers_and_from_the_metrics(
    compared: "tuple[subprocess.CompletedProcess[str], RunContents]",
) -> None:
    for record in compared[1].records:
        for turn in record.turns:
            assert turn.emitted_tokens is not None
            assert turn.forwards is not None
            assert turn.forwards + (turn.accepted_tokens or 0) == turn.emitted_tokens
            assert bool(turn.drafted_tokens) is bool(record.spec.arm.depth)
            if not record.spec.arm.path.endswith("whole"):
                assert sum(delivery.tokens or 0 for delivery in turn.deliveries) == turn.emitted_tokens


def test_each_cell_starts_with_an_empty_cache(
    compared: "tuple[subprocess.CompletedProcess[str], RunContents]",
) -> None:
    first = {turn.cached_tokens for record in compared[1].records for turn in record.turns[:1]}

    # The two tokens that every chat begins with are all that it can share with the prompt before it.
    assert len(first) == 1
    assert first <= {0, 2}


def test_two_servers_without_speculation_show_none(
    compare: Compare, tmp_path: Path, scenario_file: Path
) -> None:
    with serve("--depth", "0") as on, serve("--depth", "0") as off:
        done = compare(tmp_path / "run", "--on", on, "--off", off, "--repetitions", "1")

    assert done.returncode == 3
    assert "no sign of drafts" in done.stdout
