"""Whatever is changed about a certificate, it does not verify."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine_bindings.certificate import (
    CertificateError,
    Facts,
    canonical_bytes,
    parse_certificate,
    verify_certificate,
)
from tests.engine_bindings.certificate_samples import FACTS, KEY, SOON, issue

GOOD = canonical_bytes(issue())


def is_valid(data: bytes, *, key: bytes = KEY, facts: Facts = FACTS) -> bool:
    try:
        certificate = parse_certificate(data, source="x")
    except CertificateError:
        return False
    return verify_certificate(certificate, key=key, facts=facts, now=SOON) == ()


def leaf_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        yield place
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaf_places(value[key], (*place, key))
    else:
        yield place


PLACES = [place for place in leaf_places(json.loads(GOOD)) if place]


def test_the_untouched_bytes_are_valid() -> None:
    assert is_valid(GOOD)


def test_no_single_flipped_bit_verifies() -> None:
    for place in range(len(GOOD)):
        for bit in range(8):
            changed = bytearray(GOOD)
            changed[place] ^= 1 << bit
            assert not is_valid(bytes(changed)), (place, bit)


def test_no_single_removed_or_doubled_byte_verifies() -> None:
    for place in range(len(GOOD)):
        assert not is_valid(GOOD[:place] + GOOD[place + 1 :]), place
        assert not is_valid(GOOD[:place] + GOOD[place : place + 1] + GOOD[place:]), place


@given(place=st.integers(0, len(GOOD)), byte=st.binary(min_size=1, max_size=1), width=st.integers(0, 1))
def test_no_inserted_or_replaced_byte_verifies(place: int, byte: bytes, width: int) -> None:
    changed = GOOD[:place] + byte + GOOD[place + width :]
    assume(changed != GOOD)
    assert not is_valid(changed)


@given(start=st.integers(0, len(GOOD)), length=st.integers(1, 400), patch=st.binary(max_size=40))
def test_no_replaced_stretch_verifies(start: int, length: int, patch: bytes) -> None:
    changed = GOOD[:start] + patch + GOOD[start + length :]
    assume(changed != GOOD)
    assert not is_valid(changed)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 10),
    st.integers(),
    st.sampled_from(["pass", "fail", "explain", "chat", "serve", "0" * 64, "f" * 16, "2026-11-30T12:00:01Z"]),
    st.text(max_size=10),
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
@given(value=VALUES)
def test_no_changed_field_verifies(place: tuple[Any, ...], value: object) -> None:
    content = json.loads(GOOD)
    parent = content
    for key in place[:-1]:
        parent = parent[key]
    # Compared as text: to Python, True equals 1.
    assume(json.dumps(parent[place[-1]]) != json.dumps(value))
    parent[place[-1]] = value
    assert not is_valid(json.dumps(content, sort_keys=True, indent=2).encode() + b"\n")


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_no_removed_field_verifies(place: tuple[Any, ...]) -> None:
    content = json.loads(GOOD)
    parent = content
    for key in place[:-1]:
        parent = parent[key]
    del parent[place[-1]]
    assert not is_valid(json.dumps(content, sort_keys=True, indent=2).encode() + b"\n")


@given(name=st.text(min_size=1, max_size=10), value=VALUES)
def test_no_added_field_verifies(name: str, value: object) -> None:
    for place in ((), ("facts",), ("evidence",), ("facts", "settings")):
        content = json.loads(GOOD)
        parent = content
        for key in place:
            parent = parent[key]
        assume(name not in parent)
        parent[name] = value
        assert not is_valid(json.dumps(content, sort_keys=True, indent=2).encode() + b"\n")


@given(key=st.binary(min_size=32, max_size=32))
def test_no_other_key_verifies(key: bytes) -> None:
    assume(key != KEY)
    assert not is_valid(GOOD, key=key)
    assert not is_valid(canonical_bytes(issue(key=key)))


def test_no_key_with_one_flipped_bit_verifies() -> None:
    for bit in range(256):
        key = (int.from_bytes(KEY, "big") ^ (1 << bit)).to_bytes(32, "big")
        assert not is_valid(GOOD, key=key)


OTHER_FACTS: dict[str, object] = {
    "engine_name": "colibri",
    "engine_version": None,
    "engine_digest": "a0" * 32,
    "config_digest": "b0" * 32,
    "tokenizer_digest": "c0" * 32,
    "template_digest": "d0" * 32,
    "weights_digest": "e0" * 32,
    "weights_bytes": 6_401_169,
    "weights_sampled": True,
    "other_files_digest": None,
    "depth": 4,
    "kv_slots": 2,
    "paths": ("chat",),
    "settings": {"SEED": "1"},
    "cpu_model": "A Processor, 6/207/3",
    "cpu_features": ("avx2", "x86_64"),
    "kernel_family": "in the engine's executable",
}


@pytest.mark.parametrize("field", Facts.model_fields)
def test_every_fact_that_differs_is_named(field: str) -> None:
    certified = FACTS.model_copy(update={"paths": ("serve",)})
    here = certified.model_copy(update={field: OTHER_FACTS[field]})
    problems = verify_certificate(issue(facts=certified), key=KEY, facts=here, now=SOON)
    assert {problem.field.partition(".")[0] for problem in problems} == {field}


@given(data=st.data())
def test_several_differing_facts_are_all_named(data: st.DataObject) -> None:
    changed = data.draw(st.sets(st.sampled_from(sorted(OTHER_FACTS))))
    certified = FACTS.model_copy(update={"paths": ("serve",)})
    here = certified.model_copy(update={field: OTHER_FACTS[field] for field in changed})
    problems = verify_certificate(issue(facts=certified), key=KEY, facts=here, now=SOON)
    assert {problem.field.partition(".")[0] for problem in problems} == changed
