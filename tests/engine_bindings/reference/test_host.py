"""The process itself: pipes, signals, ends and statuses, through `python -m` as the command runs it."""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine_bindings.reference.host import describe_variables, main
from engine_bindings.reference.settings import VARIABLES
from engine_bindings.wire import ChatClient, Closed, Data, Done, MuxClient, Ready, Refused, Text, TurnEnd
from tests.engine_bindings.reference.engine_sessions import PROMPT, PROMPT_TOKENS

COMMAND = (sys.executable, "-m", "engine_bindings.reference.host")
LIMIT_S = 60  # only a hang reaches it
CHAT = {"SERVE": "1", "COLI_TEMP": "0"}
SERVE = {"SERVE": "1", "SERVE_BATCH": "1"}


def clean_environment(environ: dict[str, str]) -> dict[str, str]:
    names = {variable.name for variable in VARIABLES}
    return {**{k: v for k, v in os.environ.items() if k not in names}, **environ}


class Process:
    """An engine on pipes, with the client that reads it."""

    def __init__(self, popen: subprocess.Popen[bytes], client: ChatClient | MuxClient) -> None:
        self.popen = popen
        self.client = client
        self.events: list[object] = []
        self.selector = selectors.DefaultSelector()
        assert popen.stdout
        self.selector.register(popen.stdout, selectors.EVENT_READ)

    def send(self, data: bytes) -> None:
        assert self.popen.stdin
        self.popen.stdin.write(data)
        self.popen.stdin.flush()

    def wait_for(self, *kinds: type) -> None:
        """Read until an event of one of the kinds is new."""
        before = len(self.events)
        while not any(isinstance(event, kinds) for event in self.events[before:]):
            assert self.selector.select(LIMIT_S), "the engine says nothing"
            assert self.popen.stdout
            data = os.read(self.popen.stdout.fileno(), 1 << 16)
            if data:
                self.client.receive_data(data)
            else:
                self.client.receive_eof()
            self.events += self.client.events()

    def close_input(self) -> int:
        assert self.popen.stdin
        self.popen.stdin.close()
        self.wait_for(Closed)
        return self.popen.wait(LIMIT_S)

    def text(self) -> bytes:
        parts = (
            e.data if isinstance(e, Text) else e.payload for e in self.events if isinstance(e, Text | Data)
        )
        return b"".join(parts)


@contextmanager
def running(environ: dict[str, str], *arguments: str) -> Iterator[Process]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        env=clean_environment({"COLI_MTP_GUARD_PCT": "0", **environ}),
    ) as popen:
        process = Process(popen, MuxClient() if "SERVE_BATCH" in environ else ChatClient())
        try:
            process.wait_for(Ready)
            yield process
        finally:
            process.selector.close()
            popen.kill()


def run(environ: dict[str, str], *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environ = clean_environment(environ)
    return subprocess.run(
        [*COMMAND, *arguments], input=data, env=environ, capture_output=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize("depth", ["0", "3"])
def test_chat_and_serve_say_the_same_through_pipes(depth: str) -> None:
    with running({**CHAT, "DRAFT": depth, "CTX": "512"}, "64", "16", "16") as chat:
        chat.send(chat.client.encode_prompt(PROMPT, max_tokens=30))  # type: ignore[union-attr]
        chat.wait_for(TurnEnd)
        assert chat.close_input() == 0
    with running({**SERVE, "DRAFT": depth, "COLI_SERVE_ALL_STOPS": "1"}, "0") as served:
        served.send(served.client.encode_submit(request_id=1, prompt=PROMPT, max_tokens=30))  # type: ignore[union-attr]
        served.wait_for(Done)
        assert served.close_input() == 0
    assert chat.text() == served.text()


def test_a_stop_is_read_while_the_turn_runs() -> None:
    with running({**SERVE, "DRAFT": "0", "CTX": "8192"}) as process:
        client = process.client
        assert isinstance(client, MuxClient)
        process.send(client.encode_submit(request_id=1, prompt=PROMPT, max_tokens=8000))
        process.wait_for(Data)
        process.send(client.encode_stop(1))
        process.wait_for(Done)
        done = next(event for event in process.events if isinstance(event, Done))
        assert done.stat.emitted_tokens < 8000
        assert done.stat.length_limited is False


def test_the_end_of_input_finishes_the_turn() -> None:
    with running({**SERVE, "DRAFT": "2"}) as process:
        assert isinstance(process.client, MuxClient)
        process.send(process.client.encode_submit(request_id=1, prompt=PROMPT, max_tokens=40))
        assert process.close_input() == 0
        assert any(isinstance(event, Done) for event in process.events)


def test_sigterm_ends_an_idle_engine_with_zero() -> None:
    for environ in (CHAT, SERVE):
        with running(environ) as process:
            process.popen.send_signal(signal.SIGTERM)
            process.wait_for(Closed)
            assert process.popen.wait(LIMIT_S) == 0


def test_sigint_ends_the_turn_and_not_the_process() -> None:
    with running({**SERVE, "DRAFT": "0", "CTX": "8192"}) as process:
        client = process.client
        assert isinstance(client, MuxClient)
        process.send(client.encode_submit(request_id=1, prompt=PROMPT, max_tokens=8000))
        process.wait_for(Data)
        process.popen.send_signal(signal.SIGINT)
        process.wait_for(Done)
        process.send(client.encode_submit(request_id=2, prompt=PROMPT, max_tokens=2))
        process.wait_for(Done)
        assert process.close_input() == 0
        assert not [event for event in process.events if isinstance(event, Refused)]


def test_a_reader_that_goes_away_ends_the_engine_quietly() -> None:
    with running({**SERVE, "CTX": "8192"}) as process:
        assert isinstance(process.client, MuxClient)
        assert process.popen.stdout
        process.selector.unregister(process.popen.stdout)
        process.popen.stdout.close()
        process.send(process.client.encode_submit(request_id=1, prompt=PROMPT, max_tokens=500))
        assert process.popen.wait(LIMIT_S) == 1


def test_one_shot_through_the_process() -> None:
    done = run({"PROMPT": PROMPT.decode(), "NGEN": "8", "COLI_TEMP": "0", "TOKENS": "1", "DRAFT": "3"})
    assert done.returncode == 0
    assert done.stdout.startswith(b"== GLM C engine (glm_moe_dsa), cache=64 experts/layer | ")
    assert b"\nloaded in " in done.stdout
    assert b" | MTP ACTIVE (draft=3)\nprompt: %d tokens" % PROMPT_TOKENS in done.stdout
    assert b"[MTP] active: native speculative decoding (draft=3)\n" in done.stderr
    assert b"generated: " in done.stderr


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [
        ({"SNAP": "/nowhere/at/all"}, (), [b"/nowhere/at/all"]),
        ({"DRAFT": "9"}, (), [b"DRAFT='9'", b"between -1 and 8"]),
        ({**CHAT, "CTX": "1000000"}, (), [b"1000000", b"CTX"]),
        ({}, (), [b"ref_glm.json", b"PROMPT"]),
        ({"REF_KERNELS": "odd"}, (), [b"REF_KERNELS='odd'", b"int8-batch"]),
        ({}, ("1", "2", "3", "4"), [b"three numbers"]),
        ({}, ("many",), [b"invalid int value"]),
        ({}, ("--kernels", "odd"), [b"invalid choice"]),
    ],
)
def test_what_cannot_be_done_is_named_with_status_two(
    environ: dict[str, str], arguments: tuple[str, ...], words: list[bytes], tmp_path: Path
) -> None:
    done = run({"REF": str(tmp_path / "ref_glm.json"), **environ}, *arguments)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(b"coli-ab-engine: ")
    assert all(word in last for word in words)
    assert b"Traceback" not in done.stderr


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    done = run({**CHAT, "SNAP": str(tmp_path)})
    assert done.returncode == 2
    assert b"config.json" in done.stderr
    assert b"READY" not in done.stdout


def test_a_line_longer_than_the_protocol_allows_is_named() -> None:
    done = run(CHAT, data=b"x" * 2_000_000)
    assert done.returncode == 1
    assert b"coli-ab-engine: the input is not chat mode's: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_help_teaches_modes_and_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert describe_variables() in text
    for variable in VARIABLES:
        assert f"  {variable.name}" in text
    for word in ("SERVE_BATCH=1", "PROMPT=", "oracle", "--kernels"):
        assert word in text


def test_blas_runs_on_one_thread() -> None:
    script = (
        "import sys, os; from engine_bindings.reference import host;"
        "assert 'numpy' not in sys.modules; host.main(['0']);"
        "print([os.environ[name] for name in host.THREAD_VARIABLES])"
    )
    environ = clean_environment({"REF": "/nowhere", "OMP_NUM_THREADS": "7"})
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.stdout.splitlines()[-1] == b"['1', '1', '1', '1']"


def test_a_reader_that_left_the_list_of_defects_is_no_fault():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        done = subprocess.run(
            [*COMMAND, "--list-defects"],
            env=clean_environment({}),
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")
