import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire import BadRequest, MuxServer, Note, Refused, Stop
from engine_bindings.wire.events import OptionsLine
from engine_bindings.wire.mux_extension import (
    Alternative,
    OptionError,
    Options,
    Speculation,
    TokenDetail,
    encode_options,
    encode_probe,
    parse_note,
    parse_options,
    parse_speculation,
    parse_token,
    read_probe,
)

OPTIONS = st.builds(
    Options,
    detail=st.booleans(),
    logprobs=st.integers(0, 20),
    seed=st.none() | st.integers(0, 2**64 - 1),
    depth=st.none() | st.integers(0, 8),
    payload=st.sampled_from(["text", "ids"]),
    constrain=st.booleans(),
    constrain_after=st.sampled_from(["prompt", "think"]),
    ignore_eos=st.booleans(),
)


def test_only_what_differs_from_the_default_is_written() -> None:
    assert encode_options(7, Options()) == b"OPTIONS 7\n"
    line = encode_options(7, Options(detail=True, logprobs=3, depth=0, payload="ids"))
    assert line == b"OPTIONS 7 detail=1 logprobs=3 depth=0 payload=ids\n"


@given(st.integers(1, 2**64 - 1), OPTIONS)
def test_options_come_back(request_id: int, options: Options) -> None:
    line = encode_options(request_id, options)
    assert parse_options(line.decode().rstrip("\n")) == (request_id, options)


@pytest.mark.parametrize(
    ("setting", "key"),
    [("probe=1", "probe"), ("depth=9", "depth"), ("logprobs=21", "logprobs"), ("detail=yes", "detail"),
     ("seed=-1", "seed"), ("payload=bytes", "payload"),
     ("constrain_after=x", "constrain_after"), (f"seed={2**64}", "seed"), ("", "")],
)  # fmt: skip
def test_an_unknown_key_or_value_is_named(setting: str, key: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(f"OPTIONS 3 detail=1 {setting}")
    assert (caught.value.key, caught.value.request_id) == (key, 3)


@pytest.mark.parametrize("line", ["OPTIONS", "OPTIONS 0", "OPTIONS x", "SUBMIT 1", "OPTIONS -1"])
def test_a_line_without_an_id_is_no_options_line(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_options(line)


def test_a_server_takes_options_only_when_it_was_told_to() -> None:
    line = b"OPTIONS 3 detail=1 \xff\nSTOP 3\n"
    servers = MuxServer(), MuxServer(extension=True)
    for server in servers:
        server.receive_data(line)
    plain, extended = (list(server.events()) for server in servers)
    assert [type(event) for event in plain] == [BadRequest, Stop]
    assert extended == [OptionsLine(line="OPTIONS 3 detail=1 \ufffd"), Stop(request_id=3)]


def test_the_probe_tells_engines_apart() -> None:
    assert encode_probe(5) == b"OPTIONS 5 probe=1\n"
    assert read_probe(5, Refused(request_id=5, code="BAD_OPTION", arguments=("probe",))) is True
    assert read_probe(5, Refused(request_id=0, code="BAD_REQUEST")) is False
    assert read_probe(5, Refused(request_id=6, code="BAD_OPTION")) is None


def test_a_token_line_to_the_byte() -> None:
    detail = TokenDetail(4, 17, "d", -0.25, (Alternative(17, -0.25), Alternative(3, -2.0)))
    line = b"TOKEN 4 17 d -0.250000 17:-0.250000 3:-2.000000"
    assert detail.to_line() == line
    assert parse_token(line.decode()) == detail


@given(st.integers(0, 700), st.sampled_from("pdg"), st.floats(-50, 0), st.integers(0, 3))
def test_token_lines_come_back(token_id: int, origin: str, logprob: float, count: int) -> None:
    rounded = round(logprob, 6)
    others = tuple(Alternative(index, rounded) for index in range(count))
    detail = TokenDetail(1, token_id, origin, rounded, others)  # type: ignore[arg-type]
    assert parse_token(detail.to_line().decode()) == detail


@pytest.mark.parametrize("forced", [None, 5])
def test_a_spec_line_comes_back(forced: int | None) -> None:
    spec = Speculation(
        request_id=4, drafted_tokens=9, accepted_tokens=6, forwards=3, cached_tokens=12, reason="length",
        forced_drafted_tokens=forced, forced_accepted_tokens=forced,
    )  # fmt: skip
    assert parse_speculation(spec.to_line().decode()) == spec
    assert spec.to_line().startswith(b"SPEC 4 9 6 3 12 length")


@pytest.mark.parametrize(
    "line",
    ["TOKEN 1 2 p", "TOKEN 1 2 x -1.0", "TOKEN 1 2 p nan", "TOKEN 1 2 p -1 3", "TOKEN 1 -2 p -1",
     "SPEC 1 2 3 4 5 end", "SPEC 1 2 3 4"],
)  # fmt: skip
def test_broken_lines_raise(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_note(Note(kind=line.partition(" ")[0], line=line))


def test_other_kinds_are_not_ours() -> None:
    assert parse_note(Note(kind="HWINFO", line="HWINFO 1")) is None
