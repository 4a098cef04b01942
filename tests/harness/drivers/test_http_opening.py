"""Sessions over HTTP as they are opened for a cell: on a server that runs, or on one started for it."""

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_bindings.binding import Launch, Pin
from engine_bindings.chat_template import Message
from engine_bindings.errors import EngineStartError
from harness.drivers.base import EngineSession, TurnRequest
from harness.drivers.guard import ProcessGuard
from harness.drivers.http_opening import list_preparations, open_http, read_parameters
from harness.drivers.left_files import ignore_left
from harness.drivers.opening import Opening
from harness.drivers.stderr_log import StderrLog
from harness.plan import Timeouts
from tests.harness.cli.cli_samples import write_model
from tests.harness.cli.fake_server import Behaviour, fake_server

LIMITS = Timeouts(start_timeout_s=60, exit_timeout_s=60)
ROOT = Path(__file__).parents[3]
# A server as a gateway is: it says something first, takes a while, and ends when it is told.
SERVE = """
import signal, sys, time
sys.path.insert(0, {root!r})
from tests.harness.cli.fake_server import Behaviour, fake_server
print("[SPEC] turn: drafted 9, accepted 9, forwards 9", file=sys.stderr, flush=True)
if {dies}:
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with fake_server(Behaviour(), port=int(sys.argv[1])):
    while True:
        time.sleep(60)
"""


def ask() -> TurnRequest:
    return TurnRequest(
        conversation="c",
        turn=0,
        prompt=b"Hi",
        line=None,
        messages=(Message(role="user", text=b"Hi"),),
        max_tokens=4,
        temperature=0.0,
        top_p=1.0,
        stop=(),
    )


@contextlib.contextmanager
def opened(launch: Launch, tmp_path: Path) -> Iterator[tuple[EngineSession, io.BytesIO]]:
    file = io.BytesIO()
    model = tmp_path / "model"
    with ProcessGuard() as guard:
        opening = Opening(
            launch=launch,
            slots=1,
            grammar=None,
            model_dir=model if model.exists() else write_model(model),
            timeouts=LIMITS,
            inherited={"PATH": "/usr/bin", "KEY": "sk-secret"},
            guard=guard,
            log=StderrLog(file),
            reported=frozenset(),
            on_output=lambda _: None,
            on_left=ignore_left,
        )
        with open_http(opening) as session:
            yield session, file


def started(*, dies: bool = False) -> Launch:
    return Launch(
        argv=(sys.executable, "-c", SERVE.format(root=str(ROOT), dies=dies), "{port}"),
        pins=(Pin(name="model", value="toy", reason=""), Pin(name="DRAFT", value="3", reason="")),
        driver="http",
        url="http://127.0.0.1:{port}/v1",
        api="chat-completions",
        parameters=("model",),
    )


def test_a_server_is_started_on_a_free_port_and_ended(tmp_path: Path) -> None:
    with opened(started(), tmp_path) as (session, file):
        session.start()
        record = session.run_turn(ask())
        assert session.end() == 0

    assert record.emitted_tokens == 4
    assert record.drafted_tokens is None
    assert b"[SPEC] turn: drafted 9" in file.getvalue()


def test_a_server_that_dies_is_told_with_what_it_wrote(tmp_path: Path) -> None:
    with opened(started(dies=True), tmp_path) as (session, _):
        with pytest.raises(EngineStartError, match="ended with exit status 3 before it was ready"):
            session.start()
        session.kill()
        assert "[SPEC] turn: drafted 9, accepted 9, forwards 9" in session.stderr_tail()


def test_a_session_that_is_left_ends_its_server(tmp_path: Path) -> None:
    with opened(started(), tmp_path) as (session, _):
        session.start()
    assert session.kill() is not None


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    launch = Launch(argv=("/no/such/program",), pins=(), driver="http", url="http://127.0.0.1:{port}/v1", api="completions")  # fmt: skip  # noqa: E501
    with pytest.raises(EngineStartError, match="cannot run '/no/such/program'"), opened(launch, tmp_path):
        pass


@pytest.mark.parametrize("api", ["chat-completions", "chat-completions-whole", "openai-client"])
def test_a_server_that_runs_gets_its_key_from_the_variable(tmp_path: Path, api: str) -> None:
    behaviour = Behaviour(key="sk-secret")
    with fake_server(behaviour) as url:
        pins = (Pin(name="model", value="toy", reason=""), Pin(name="top_k", value="1", reason=""))
        launch = Launch(argv=(), pins=pins, driver="http", url=url, api=api, key_variable="KEY")
        with opened(launch, tmp_path) as (session, file):
            session.start()
            session.run_turn(ask())
            session.end()

    assert behaviour.bodies[0]["top_k"] == 1
    assert b"sk-secret" not in file.getvalue()


def test_settings_are_read_as_json_where_they_are() -> None:
    settings = {"model": "7", "cache": "keep", "top_k": "1", "x": '{"a": [true]}', "y": "text"}
    settings |= {"none": "NaN", "far": "1e999"}

    assert read_parameters(settings, api="completions") == {
        "model": "7",
        "top_k": 1,
        "x": {"a": [True]},
        "y": "text",
        "none": "NaN",
        "far": "1e999",
    }


def test_margins_are_asked_for_in_the_words_of_each_api() -> None:
    assert read_parameters({"top_logprobs": "2"}, api="chat-completions") == {
        "logprobs": True,
        "top_logprobs": 2,
    }
    assert read_parameters({"top_logprobs": "2"}, api="completions") == {"logprobs": 2}


def test_a_salt_is_new_each_time() -> None:
    salts = {read_parameters({"cache": "salt"}, api="completions")["cache_salt"] for _ in range(2)}

    assert len(salts) == 2


def test_what_empties_a_cache_goes_first() -> None:
    (call,) = list_preparations({"cache": "evict", "model": "m"})

    assert (call.method, call.path) == ("POST", "/completions")
    assert call.body["max_tokens"] == 1
    assert list_preparations({"cache": "keep"}) == ()
