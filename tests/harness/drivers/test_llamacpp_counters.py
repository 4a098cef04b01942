"""Forwards from the totals of llama.cpp's server, read around a turn."""

import asyncio

from engine_bindings.wire.answer_events import Counts
from harness.drivers.llamacpp_counters import LlamaCounters, Totals, parse_totals
from harness.drivers.scripted_http import Answer, ScriptedServer
from harness.drivers.server_counters import LOOKS


def metrics(decodes: int, generated: int, busy: int = 0) -> Answer:
    text = (
        "# TYPE llamacpp:n_decode_total counter\n"
        f"llamacpp:n_decode_total {decodes}\n"
        f"llamacpp:tokens_predicted_total {generated}\n"
        "llamacpp:prompt_tokens_total 7\n"
        f"llamacpp:requests_processing {busy}\n"
    )
    return Answer(content_type="text/plain", body=(text.encode(),))


def run(counts: Counts, *answers: Answer) -> tuple[Counts, list[str], ScriptedServer]:
    notes: list[str] = []
    server = ScriptedServer(answers)

    async def take_turn() -> Counts:
        counters = LlamaCounters(server, notes.append)
        await counters.begin()
        return await counters.end(counts)

    return asyncio.run(take_turn()), notes, server


def test_forwards_are_the_decodes_but_the_one_of_the_prompt() -> None:
    counts, notes, _ = run(Counts(completion_tokens=10), metrics(100, 50), metrics(110, 60))
    assert (counts.forwards, notes) == (9, [])


def test_the_stop_token_that_the_server_counts_is_allowed_for() -> None:
    counts, _, _ = run(Counts(completion_tokens=10), metrics(100, 50), metrics(111, 61))
    assert counts.forwards == 10


def test_totals_that_come_late_are_waited_for() -> None:
    counts, _, server = run(
        Counts(completion_tokens=10), metrics(100, 50), metrics(100, 50), metrics(110, 60)
    )
    assert (counts.forwards, server.pauses) == (9, 1)


def test_a_turn_that_was_cancelled_is_over_before_the_next_one_begins() -> None:
    busy, free = metrics(90, 40, busy=1), metrics(100, 50)
    counts, _, _ = run(Counts(completion_tokens=10), busy, free, metrics(110, 60))
    assert counts.forwards == 9


def test_a_server_that_never_rests_is_not_waited_for_for_ever() -> None:
    busy = [metrics(100, 50, busy=1)] * LOOKS
    counts, _, _ = run(Counts(completion_tokens=10), *busy, metrics(110, 60))
    assert counts.forwards == 9


def test_forwards_are_not_reported_when_others_were_served() -> None:
    seen = [metrics(130, 90)] * LOOKS
    counts, notes, _ = run(Counts(completion_tokens=10), metrics(100, 50), *seen)
    assert counts.forwards is None
    assert "counted 40 generated tokens where the answer has 10" in notes[0]


def test_a_server_without_totals_reports_no_forwards() -> None:
    counts, notes, _ = run(Counts(completion_tokens=10), Answer(status=404, body=(b"",)))
    assert (counts.forwards, notes) == (None, [])


def test_a_server_that_was_started_anew_reports_no_forwards() -> None:
    counts, notes, _ = run(Counts(completion_tokens=5), metrics(100, 0), *[metrics(6, 5)] * LOOKS)
    assert counts.forwards is None
    assert len(notes) == 1


def test_a_look_that_fails_is_made_again() -> None:
    counts, _, _ = run(Counts(completion_tokens=10), metrics(100, 50), Answer(refused="no"), metrics(110, 60))
    assert counts.forwards == 9


def test_drafts_behind_a_stop_token_are_not_kept_ones() -> None:
    told = Counts(completion_tokens=15, drafted_tokens=12, accepted_tokens=12)
    counts, notes, _ = run(told, metrics(100, 50), metrics(105, 66))
    assert (counts.forwards, counts.accepted_tokens, counts.drafted_tokens) == (4, 11, 12)
    assert "1 of 12 accepted drafts stood behind the stop token" in notes[0]


def test_accepted_drafts_are_left_alone_where_no_stop_token_explains_them() -> None:
    told = Counts(completion_tokens=15, drafted_tokens=12, accepted_tokens=12)
    counts, _, _ = run(told, metrics(100, 50), metrics(105, 65))
    assert counts.accepted_tokens == 12
    far, _, _ = run(Counts(completion_tokens=15, accepted_tokens=30), metrics(100, 50), metrics(105, 66))
    assert far.accepted_tokens == 30


def test_totals_need_both_counters_and_numbers() -> None:
    assert parse_totals("llamacpp:n_decode_total 3\n") is None
    assert parse_totals("llamacpp:n_decode_total x\nllamacpp:tokens_predicted_total 3\n") is None
    assert parse_totals("llamacpp:n_decode_total inf\nllamacpp:tokens_predicted_total 3\n") is None
    both = "llamacpp:n_decode_total 3\nllamacpp:tokens_predicted_total 4.0\n"
    assert parse_totals(both) == Totals(decodes=3, generated_tokens=4)
