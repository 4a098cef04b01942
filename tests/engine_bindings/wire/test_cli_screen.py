"""The screen of the engine's command line: the recorded one, and what else it may show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire.cli_screen import CliClient
from engine_bindings.wire.counts import Stat
from engine_bindings.wire.errors import LocalProtocolError, RemoteProtocolError
from engine_bindings.wire.events import Attached, Banner, Quit, SavedConversation, Text, TurnEnd
from engine_bindings.wire.limits import Limits
from tests.engine_bindings.wire.recorded_streams import recording

GRAY, TEAL, DIM, RESET = b"\x1b[38;5;238m", b"\x1b[38;5;37m\x1b[1m", b"\x1b[2m", b"\x1b[0m"
EDGE = b"  " + GRAY + "╭──╮".encode() + RESET + b"\n"
ROW = b"  " + GRAY + "│".encode() + RESET + b" " + TEAL + "›".encode() + RESET + b" "
PROMPT = EDGE + ROW
HELP = b"  " + DIM + b"type and press Enter" + RESET + b"\n\n"
HEAD = b"\n  " + TEAL + "◆ colibri".encode() + RESET + b"\n"
CLEAR = b"\r\x1b[K"
SPINNER = b"\r  " + TEAL + "⠋".encode() + RESET + b" " + DIM + "thinking… 0s".encode() + RESET + b"\x1b[K"


def echo(line: bytes) -> bytes:
    bottom = b"  " + GRAY + "╰──╯".encode() + RESET + b"\n"
    return b"\x1b[1A\x1b[0J" + ROW + line + b"   " + GRAY + "│".encode() + RESET + b"\n" + bottom


def footer(tokens: int, note: bytes = b"") -> bytes:
    counts = f"└─ {tokens} tok · 12.50 tok/s · hit 80% · RSS 0.1 GB · 2s".encode()
    return CLEAR + b"\r  " + GRAY + counts + RESET + b"\n" + note + b"\n"


def raw(text: bytes) -> bytes:
    return b"  " + text.replace(b"\n", b"\n  ")


def ready_client() -> CliClient:
    client = CliClient()
    client.receive_data(HELP + PROMPT)
    list(client.events())
    assert client.ready
    return client


def answer(screen: bytes, *, line: bytes = b"Hello") -> list[object]:
    client = ready_client()
    client.encode_line(line)
    client.receive_data(screen)
    return list(client.events())


def text_of(events: list[object]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Text))


def end_of(events: list[object]) -> Stat:
    (end,) = [event for event in events if isinstance(event, TurnEnd)]
    return end.stat


def stat(tokens: int, *, limited: bool = False) -> Stat:
    return Stat(emitted_tokens=tokens, tokens_per_s=12.5, hit_percent=80, rss_gb=0.1, length_limited=limited)


def read_recorded() -> tuple[list[str], list[tuple[bytes, Stat]], bytes]:
    """Type the recorded lines at the recorded prompts; the screen arrives byte by byte."""
    client = CliClient()
    screen, typed = recording("g_cli_d1.out"), recording("g_cli_d1.in").split(b"\n")[:-1]
    banners, turns, text, sent = [], [], b"", b""
    for position in range(len(screen)):
        client.receive_data(screen[position : position + 1])
        for event in client.events():
            match event:
                case Banner():
                    banners.append(event.line)
                case Text():
                    text += event.data
                case TurnEnd():
                    turns.append((text, event.stat))
                    text = b""
        if client.idle and typed:
            sent += _type(client, typed.pop(0))
    return banners, turns, sent


def _type(client: CliClient, line: bytes) -> bytes:
    if line == b":q":
        return client.encode_quit()
    return client.encode_reset() if line == b":reset" else client.encode_line(line)


def test_recorded_session_gives_its_texts_and_counts() -> None:
    banners, turns, sent = read_recorded()

    assert sent == recording("g_cli_d1.in")
    assert any("v1.6.2" in line for line in banners)
    story = (
        b"Once upon a time there was a bright owl named Felix. Felix lived near the station.\n\nOne Monday "
    )
    texts = [text for text, _ in turns]
    assert texts == [b"Hello Felix! How is life in Geneva?", story + b"it was snow", b"", b"l-a-m-p"]
    counts = [(end.emitted_tokens, end.length_limited) for _, end in turns]
    assert counts == [(21, False), (48, True), (0, False), (7, False)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_turn_does_not_depend_on_how_the_screen_is_cut(sizes: list[int]) -> None:
    screen = echo(b"Hello") + HEAD + SPINNER + SPINNER + CLEAR + raw(b"one\n\n  two\rthree\n")
    screen += footer(5, b"  " + GRAY + "…stopped at --ngen (5); type :more".encode() + RESET + b"\n") + PROMPT
    client = ready_client()
    client.encode_line(b"Hello")
    events: list[object] = []
    position = turn = 0
    while position < len(screen):
        size = sizes[turn % len(sizes)]
        client.receive_data(screen[position : position + size])
        events += client.events()
        position, turn = position + size, turn + 1

    assert text_of(events) == b"one\n\n  two\rthree"
    assert end_of(events) == stat(5, limited=True)


@given(st.binary(max_size=60).filter(lambda text: b"\x1b" not in text))
def test_any_answer_comes_back_to_the_byte(text: bytes) -> None:
    events = answer(echo(b"Hello") + HEAD + SPINNER + CLEAR + raw(text + b"\n") + footer(9) + PROMPT)

    assert text_of(events) == text
    assert end_of(events) == stat(9)


def test_late_frame_of_the_spinner_is_no_text() -> None:
    events = answer(echo(b"Hello") + HEAD + CLEAR + raw(b"one") + SPINNER + b" two\n  " + footer(2) + PROMPT)

    assert text_of(events) == b"one two"


def test_answer_without_tokens_has_no_footer() -> None:
    events = answer(echo(b"Hello") + HEAD + SPINNER + CLEAR + b"  \n  " + CLEAR + b"\n" + PROMPT)

    assert text_of(events) == b""
    assert end_of(events).emitted_tokens == 0


def test_interrupted_answer_goes_on_to_its_end_without_the_notice() -> None:
    notice = b"\n  " + GRAY + "⏹ stopping… (Ctrl-C again to quit)".encode() + RESET + b"\n"
    note = b"  " + GRAY + "⏹ interrupted; type :more to continue the response".encode() + RESET + b"\n"
    events = answer(
        echo(b"Hello") + HEAD + CLEAR + raw(b"one") + notice + b" two\n  " + footer(2, note) + PROMPT
    )

    assert text_of(events) == b"one two"
    assert end_of(events) == stat(2)


def test_answer_may_speak_of_the_engine_and_of_boxes() -> None:
    text = "[engine terminated: no]\n╭──╮\n│ › ok │\n└─ 3 tok · 1 tok/s".encode()
    events = answer(echo(b"Hello") + HEAD + CLEAR + raw(text + b"\n") + footer(9) + PROMPT)

    assert text_of(events) == text


def test_engine_that_died_is_told_with_the_words_of_the_command_line() -> None:
    why = b"\n  " + GRAY + b"[engine terminated: killed by SIGKILL]" + RESET + b"\n"
    events = answer(echo(b"Hello") + HEAD + CLEAR + raw(b"one") + CLEAR + why)

    assert events[-1] == Quit(reason="engine terminated: killed by SIGKILL")


def test_command_line_that_quits_says_so() -> None:
    farewell = b"\n  " + DIM + b"interrupted" + RESET + b"\n  " + TEAL + b"goodbye" + RESET + b"\n"

    assert answer(echo(b"Hello") + HEAD + CLEAR + raw(b"one") + farewell)[-1] == Quit(reason="interrupted")


def test_start_tells_of_a_server_and_of_a_saved_conversation() -> None:
    client = CliClient()
    attached = "✦ attached".encode() + RESET + b" " + DIM + "to http://h:8000 · model m".encode() + RESET
    saved = "↺ resuming a saved conversation: 670 tokens, last written 2d ago".encode() + RESET
    client.receive_data(b"  " + TEAL + attached + b"\n  " + GRAY + saved + b"\n")

    assert list(client.events()) == [Attached(url="http://h:8000"), SavedConversation(tokens=670)]


@pytest.mark.parametrize(
    ("screen", "message"),
    [
        (echo(b"Hallo") + HEAD, "read another line than was typed: 'Hallo'"),
        (echo(b"Hello") + PROMPT, "asks for the next one"),
        (echo(b"Hello") + HEAD + CLEAR + b"one", "not indented"),
        (echo(b"Hello") + HEAD + CLEAR + b"  one\ntwo", "line of the answer that is not indented"),
    ],
)
def test_screen_that_is_not_that_of_the_command_line_is_refused(screen: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        answer(screen)


def test_engine_in_place_of_its_command_line_is_named() -> None:
    client = CliClient()
    client.receive_data(b"== engine ==\n\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\n")

    with pytest.raises(RemoteProtocolError, match="READY block where the prompt"):
        list(client.events())


def test_endless_start_is_refused() -> None:
    client = CliClient(limits=Limits(max_banner_bytes=100))
    client.receive_data(b"x\n" * 60)

    with pytest.raises(RemoteProtocolError, match="no prompt within 100 bytes"):
        list(client.events())


def test_text_that_nobody_asked_for_is_refused() -> None:
    client = ready_client()
    client.receive_data(b"surprise")

    with pytest.raises(RemoteProtocolError, match="while nothing was asked for"):
        list(client.events())


def test_reset_must_be_confirmed() -> None:
    client = ready_client()
    client.encode_reset()
    client.receive_data(echo(b":reset") + PROMPT)

    with pytest.raises(RemoteProtocolError, match="cleared its memory"):
        list(client.events())


@pytest.mark.parametrize("line", [b"a\nb", b"a\tb", b"\x7f", b"", b"  ", b"exit", b":more", b"x" * 65_001])
def test_line_that_would_not_be_answered_is_not_typed(line: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        ready_client().encode_line(line)


def test_nothing_is_typed_before_the_prompt_nor_into_an_answer() -> None:
    client = CliClient()
    with pytest.raises(LocalProtocolError, match="no prompt"):
        client.encode_line(b"Hello")
    client = ready_client()
    client.encode_line(b"Hello")
    with pytest.raises(LocalProtocolError, match="no prompt"):
        client.encode_line(b"again")


def test_exact_prompts_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="only typed lines"):
        ready_client().encode_prompt(b"Hello", max_tokens=3)


def test_screen_is_kept_without_colours_for_messages() -> None:
    client = CliClient()
    client.receive_data(b"\x1b[38;5;179mengine is not built.\x1b[0m Run: make")
    list(client.events())

    assert client.screen_tail() == "engine is not built. Run: make"
