"""Records survive their JSON form, whatever bytes the answers are made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.errors import RunDirectoryError
from harness.transcript import CellRecord, Delivery, Failure, TurnRecord
from tests.harness.run_builders import CHAT_ON, make_plan, run_healthy

counts = st.none() | st.integers(0, 10**9)
deliveries = st.builds(Delivery, at_ns=st.integers(0, 10**15), size_bytes=st.integers(0, 99), tokens=counts)
turns = st.builds(
    TurnRecord,
    conversation=st.text(max_size=8),
    turn=st.integers(0, 9),
    entry=st.sampled_from(["prompt", "line"]),
    prompt=st.binary(max_size=20),
    text=st.binary(max_size=20),
    deliveries=st.lists(deliveries, max_size=3).map(tuple),
    sent_ns=st.integers(0, 10**15),
    accepted_ns=counts,
    done_ns=st.integers(0, 10**15),
    emitted_tokens=counts,
    length_limited=st.none() | st.booleans(),
    finish=st.sampled_from(["stop", "length", "stop-string", "cancelled"]),
    engine_tokens_per_s=st.none() | st.floats(0, 1e6),
    token_lengths=st.none() | st.lists(st.integers(0, 9), max_size=4).map(tuple),
)


@given(st.lists(turns, max_size=3).map(tuple))
def test_a_record_survives_json(some_turns: tuple[TurnRecord, ...]):
    record = make_record(some_turns)
    text = record.to_json()
    assert "\n" not in text
    assert CellRecord.from_json(text) == record


def make_record(some_turns: tuple[TurnRecord, ...]) -> CellRecord:
    return CellRecord(
        spec=make_plan().cells[0],
        started_at="2025-01-01T00:00:00Z",
        argv=("engine", "0"),
        turns=some_turns,
        failure=Failure(code="engine-died", message="m", hint="h", stderr_tail=("a", "b")),
    )


def test_text_stays_readable_in_json_and_other_bytes_go_as_base64():
    healthy = run_healthy(make_plan())[0]
    assert '"text":"co10co11' in healthy.to_json()
    text = make_record((broken_turn(),)).to_json()
    assert '"text":{"base64":"8J+Y"}' in text


def broken_turn() -> TurnRecord:
    return TurnRecord(
        conversation="c",
        turn=0,
        entry="prompt",
        prompt=b"p",
        text=b"\xf0\x9f\x98",
        deliveries=(),
        sent_ns=0,
        done_ns=1,
        finish="length",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cells.jsonl:3: not a CellRecord"),
        ('{"spec": 1}', "spec"),
        (make_record((broken_turn(),)).to_json().replace("8J+Y", "8J+"), "turns.0.text: .*base64"),
    ],
)
def test_a_damaged_record_names_the_place(text: str, words: str):
    with pytest.raises(RunDirectoryError, match=words):
        CellRecord.from_json(text, place="cells.jsonl:3")


def test_a_record_knows_its_cell():
    keys = [record.spec.key for record in run_healthy(make_plan())]
    assert f"{CHAT_ON.label} quick 1" in keys
