"""Commands recorded from a client of the real engine get replies of the same kinds in the same order."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine_bindings.reference.engine_sessions import NEVER_STOPS, ChatSession, ServeSession, Session

RECORDINGS = Path(__file__).parents[2] / "recordings"
FRAME = re.compile(rb"^(?:(ACCEPT|DONE|ERROR) (\d+)([ A-Z_]*)|(PROF) )", re.MULTILINE)
REPLY = re.compile(rb"\x01\x01END\x01\x01\nSTAT ([^\n]*)\n")
Steps = Iterator[bytes | None]


def read_timeline(name: str) -> list[tuple[str, bytes]]:
    lines = (RECORDINGS / f"{name}.mix").read_text().splitlines()
    return [(line.split()[1], ast.literal_eval(line.split(None, 2)[2])) for line in lines]


def list_frames(output: bytes) -> list[tuple[bytes, ...]]:
    return [match.groups(b"") for match in FRAME.finditer(output)]


class Replay(ServeSession):
    """Serve mode, with what the client's automaton forbids let through: the recordings hold wrong frames."""

    def write(self, data: bytes) -> None:
        self.output += data


def replay_serve(name: str) -> Callable[[Session], Steps]:
    def script(session: Session) -> Steps:
        ended = False
        for stream, data in read_timeline(name):
            ended |= stream == "OUT" and bool(re.search(rb"^(DONE|ERROR \d+ CANCELLED)", data, re.MULTILINE))
            if stream == "IN":
                yield from (None, None) if session.mode.engine.active and not ended else ()
                while ended and session.mode.engine.active:
                    yield None
                ended = False
                yield data

    return script


@pytest.mark.parametrize(
    ("name", "environ"),
    [
        ("d_mux_s1_d0", {"DRAFT": "0"}),
        ("d_mux_s1_d1", {"DRAFT": "1"}),
        ("d_mux_s1_d3", {"DRAFT": "3"}),
        ("d_mux_s2_d3", {"DRAFT": "3", "KV_SLOTS": "2"}),
        ("d_mux_grammar_d3", {"DRAFT": "3"}),
        ("d_mux_badframe_s1_d1", {"DRAFT": "1"}),
        ("e_prompt_to_mux", {"DRAFT": "0"}),
    ],
)
def test_serve_mode_answers_as_recorded(name: str, environ: dict[str, str]) -> None:
    session = Replay(replay_serve(name), rules=NEVER_STOPS, CTX="512", **environ)
    recorded = (RECORDINGS / f"{name}.out").read_bytes()
    assert list_frames(session.output) == list_frames(recorded)
    assert session.status == 0


@pytest.mark.parametrize(
    "name", ["c_chat_api_d0", "c_chat_api_d1", "c_chat_api_d3", "c_chat_lines_d1", "e_submit_to_chat_d0"]
)
def test_chat_mode_answers_as_recorded(name: str) -> None:
    def script(_: ChatSession) -> Steps:
        yield (RECORDINGS / f"{name}.in").read_bytes()

    session = ChatSession(script, DRAFT=name[-1], NGEN="12")
    found, recorded = (
        [stat.split() for stat in REPLY.findall(output)]
        for output in (session.output, (RECORDINGS / f"{name}.out").read_bytes())
    )
    assert [(len(f), f[0] != b"0") for f in found] == [(len(f), f[0] != b"0") for f in recorded]
