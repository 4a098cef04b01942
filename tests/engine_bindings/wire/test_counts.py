import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire import ExpertHits, ExpertMap, Hardware, Profile, Stat, Tiers
from engine_bindings.wire.counts import parse_count
from tests.engine_bindings.wire.recorded_streams import CLIENT_NAMES, recording

KINDS = {
    b"STAT": Stat,
    b"PROF": Profile,
    b"HWINFO": Hardware,
    b"TIERS": Tiers,
    b"EMAP": ExpertMap,
    b"HITS": ExpertHits,
}


def recorded_lines(kind: bytes) -> list[bytes]:
    lines = [line for name in CLIENT_NAMES for line in recording(f"{name}.out").split(b"\n")]
    stats = [b"STAT" + line.partition(b" STAT")[2] for line in lines if line.startswith(b"DONE")]
    return [line for line in lines + stats if line.startswith(kind + b" ")]


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_lines_come_back_byte_for_byte(kind: bytes) -> None:
    lines = recorded_lines(kind)
    assert len(lines) > 5
    for line in lines:
        assert KINDS[kind].parse(line).to_line() == line


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_with_a_field_missing_or_broken_is_a_value_error(kind: bytes) -> None:
    line = recorded_lines(kind)[0]
    fields = line.split(b" ")
    for number in range(1, min(len(fields), 5)):
        for broken in (b"x", b"", b"+1", b"1_0", b"nan", b"1e3", b"9" * 41, b"\xff"):
            with pytest.raises(ValueError):  # noqa: PT011 - every message is about another field
                KINDS[kind].parse(b" ".join([*fields[:number], broken, *fields[number + 1 :]]))
    with pytest.raises(ValueError, match="line"):
        KINDS[kind].parse(b" ".join(fields[:2]))
    with pytest.raises(ValueError, match="not a"):
        KINDS[kind].parse(b"X" + line)


def test_stat_short_form() -> None:
    stat = Stat.parse(b"STAT 4 56.98 100.0 0.01")
    expected = Stat(emitted_tokens=4, tokens_per_s=56.98, hit_percent=100.0, rss_gb=0.01)
    assert stat == expected
    assert (stat.prompt_tokens, stat.length_limited) == (None, None)


def test_stat_long_form() -> None:
    stat = Stat.parse(b"STAT 16 134.30 81.9 0.01 14 1")
    assert (stat.emitted_tokens, stat.prompt_tokens, stat.length_limited, stat.extra) == (16, 14, True, ())


def test_stat_keeps_fields_beyond_the_sixth() -> None:
    line = b"STAT 16 134.30 81.9 0.01 14 0 swap_pct=0.0 route_swaps=0"
    assert Stat.parse(line).extra == ("swap_pct=0.0", "route_swaps=0")
    assert Stat.parse(line).to_line() == line


def test_stat_of_five_fields_is_neither_form() -> None:
    with pytest.raises(ValueError, match="4 fields, or 6"):
        Stat.parse(b"STAT 16 134.30 81.9 0.01 14")


def test_stat_flag_is_0_or_1() -> None:
    with pytest.raises(ValueError, match="not a flag"):
        Stat.parse(b"STAT 16 134.30 81.9 0.01 14 2")


def test_profile_takes_a_negative_zero_and_further_fields() -> None:
    line = b"PROF 0.008 14 16 -0.000 0.000 0.002 0.004 0.000 15"
    assert Profile.parse(line).forwards == 15
    assert Profile.parse(line).to_line() == line
    assert Profile.parse(line + b" 7") == Profile.parse(line)


def test_hardware_names_may_hold_spaces() -> None:
    hardware = Hardware.parse(b"HWINFO 64 503.1 490.0 2 95.2 AMD EPYC 9554|NVIDIA RTX 5090")
    assert (hardware.cpu, hardware.gpu) == ("AMD EPYC 9554", "NVIDIA RTX 5090")


def test_a_grid_of_another_size_than_it_says_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="EMAP of 2 x 2 holds 3 bytes"):
        ExpertMap.parse(b"EMAP 2 2 404040")
    with pytest.raises(ValueError, match="HITS of 3 x 3 holds 1 bytes"):
        ExpertHits.parse(b"HITS 3 3 ff")


@given(field=st.binary(max_size=25))
def test_a_count_is_plain_digits_or_a_value_error(field: bytes) -> None:
    try:
        value = parse_count(field)
    except ValueError:
        return
    assert field.decode("ascii").isdecimal()
    assert value == int(field)


@given(
    emitted=st.integers(0, 10**6),
    rate=st.floats(0, 1e6),
    prompt=st.none() | st.integers(0, 10**6),
    limited=st.booleans(),
)
def test_what_stat_writes_it_reads(emitted: int, rate: float, prompt: int | None, limited: bool) -> None:
    stat = Stat(
        emitted_tokens=emitted,
        tokens_per_s=rate,
        hit_percent=99.5,
        rss_gb=0.25,
        prompt_tokens=prompt,
        length_limited=None if prompt is None else limited,
    )
    again = Stat.parse(stat.to_line())
    assert again.to_line() == stat.to_line()
    assert (again.emitted_tokens, again.prompt_tokens) == (emitted, prompt)
    assert again.length_limited == stat.length_limited
