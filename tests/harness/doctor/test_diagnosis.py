"""What records show of an engine: rows that follow from them alone, and complaints with a remedy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine_bindings.binding import UNKNOWN_DEPTH
from harness.doctor.probes import Visit
from harness.transcript import CellRecord, Delivery, Failure, LeftFile, TurnRecord
from tests.harness.doctor.doctor_samples import ABLE, examine, find_row, list_names, plan_visits

DRAFTED = ("forwards", "drafted_tokens", "accepted_tokens")


def on(
    path: str = "serve", conversation: str = "", turn: int | None = None, kind: str = "", **changes: Any
) -> Callable[[Visit, TurnRecord], TurnRecord]:
    """Return what changes the turns of a path, a conversation, a place in it and a kind of visit."""

    def bend(visit: Visit, record: TurnRecord) -> TurnRecord:
        wanted = (
            visit.path == path
            and (not conversation or record.conversation == conversation)
            and (turn is None or record.turn == turn)
            and (not kind or visit.kind == kind)
        )
        return replace(record, **changes) if wanted else record

    return bend


def test_healthy_engine_has_no_problem_and_every_claim_is_seen() -> None:
    diagnosis = examine()

    assert list_names(diagnosis) == set()
    assert diagnosis.ready
    for row in diagnosis.rows:
        assert row.evidence
        if row.claimed == "yes":
            assert row.seen == "yes", row


@pytest.mark.parametrize(
    ("capability", "bend", "name"),
    [
        (
            "no drafts at depth 0",
            on(kind="plain", conversation="talk", turn=0, forwards=5),
            "drafts-at-depth-0",
        ),
        ("cap honoured", on(conversation="talk", turn=1, emitted_tokens=17), "over-the-cap"),
        (
            "cap honoured",
            on(emitted_tokens=5, finish="length", token_lengths=(4,) * 5),
            "cap-clamped",
        ),
        ("token boundaries", on(token_lengths=None), "tokens-not-shown"),
        ("token boundaries", on(conversation="talk", token_lengths=(4,)), "tokens-not-shown"),
        ("cached tokens reported", on(cached_tokens=None), "count-not-reported"),
        ("forwards reported", on(kind="plain", forwards=None), "count-not-reported"),
        ("drafted tokens reported", on(kind="drafting", drafted_tokens=None), "count-not-reported"),
        ("logprobs", on(logprobs=None), "logprobs-missing"),
        ("grammar", on(conversation="grammar", text=b"1 2 3"), "grammar-not-enforced"),
        ("says when the cap ended it", on(conversation="talk", turn=0, finish="length"), "finish-reason"),
        ("says when the cap ended it", on(kind="drafting", turn=1, finish="stop"), "finish-reason"),
    ],
)
def test_claim_that_is_not_kept_is_a_problem_of_its_path(
    capability: str, bend: Callable[[Visit, TurnRecord], TurnRecord], name: str
) -> None:
    diagnosis = examine(bend=bend)

    row = find_row(diagnosis, "serve", capability)
    assert row.complaint is not None
    assert row.complaint.name == name
    assert row.complaint.remedy
    assert {path for path, _ in list_names(diagnosis)} <= {"serve", "chat and serve"}
    assert find_row(diagnosis, "chat", capability).complaint is None


def test_no_draft_although_the_banner_announces_them() -> None:
    def bend(visit: Visit, turn: TurnRecord) -> TurnRecord:
        return replace(turn, forwards=turn.emitted_tokens, drafted_tokens=0, accepted_tokens=0)

    def announce(visit: Visit, record: CellRecord) -> CellRecord:
        return replace(record, banner=("loaded | MTP ACTIVE (draft=3)",))

    row = find_row(examine(bend=bend, bend_cell=announce), "chat", "drafts at depth 3")
    assert (row.seen, row.complaint and row.complaint.name) == ("no", "nothing-drafted")
    assert row.complaint is not None
    assert "announces 'MTP ACTIVE (draft=3)'" in row.complaint.message


@pytest.mark.parametrize("drafted", [0, None])
def test_head_that_keeps_nothing_is_told_from_one_that_is_not_there(drafted: int | None) -> None:
    def bend(visit: Visit, turn: TurnRecord) -> TurnRecord:
        tokens = turn.emitted_tokens or 0
        drafts = None if drafted is None else tokens * visit.probe.spec.arm.depth
        return replace(
            turn, forwards=tokens, drafted_tokens=drafts, accepted_tokens=None if drafts is None else 0
        )

    able = replace(ABLE, reports_drafted=drafted is not None)
    row = find_row(examine(able, bend=bend), "serve", "drafts at depth 3")
    assert row.complaint is not None
    if drafted is None:
        assert row.complaint.name == "nothing-drafted"
        assert "or no draft is ever kept" in row.complaint.message
    else:
        assert row.complaint.name == "head-accepts-nothing"


def test_pauses_of_drafting_are_a_problem() -> None:
    diagnosis = examine(bend=on(kind="drafting", drafts_paused=1))

    assert list_names(diagnosis) == {("serve", "drafts-paused")}
    assert find_row(diagnosis, "serve", "drafts at depth 3").seen == "with pauses"


def test_path_that_goes_past_the_stop_of_the_other_has_another_stop_set() -> None:
    past = on(
        conversation="talk", turn=0, text=b"wxyz" * 24, emitted_tokens=24, finish="length", token_lengths=None
    )
    diagnosis = examine(bend=past)

    row = find_row(diagnosis, "chat and serve", "same stop tokens at depth 0")
    assert (row.seen, row.complaint and row.complaint.name) == ("no", "stop-sets-differ")


def test_answers_that_differ_otherwise_say_nothing_of_stop_tokens() -> None:
    row = find_row(
        examine(bend=on(conversation="talk", turn=0, text=b"other")),
        "chat and serve",
        "same stop tokens at depth 0",
    )
    assert (row.seen, row.complaint) == ("not shown", None)
    assert "run compare" in row.evidence


def test_finish_reason_that_differs_by_path_only() -> None:
    def bend(visit: Visit, turn: TurnRecord) -> TurnRecord:
        stopped = visit.path == "serve" and (turn.conversation, turn.turn) == ("talk", 1)
        if turn.conversation == "drawn-0":
            return replace(turn, text=visit.path.encode())
        return replace(turn, finish="stop") if stopped else turn

    diagnosis = examine(bend=bend, examination=plan_visits(brief=True))
    assert list_names(diagnosis) == {("chat and serve", "finish-reason")}


def test_stop_that_is_not_heard() -> None:
    late = tuple(Delivery(at_ns=n, size_bytes=4, tokens=1) for n in range(40))
    diagnosis = examine(bend=on(conversation="cancel", deliveries=late, emitted_tokens=40, finish="length"))

    assert ("serve", "stop-not-heard") in list_names(diagnosis)
    assert find_row(diagnosis, "serve", "cancel heard").seen == "no"


def test_answer_that_was_over_before_its_cancel_shows_nothing() -> None:
    bend = on(conversation="cancel", asked_to_end_ns=None, emitted_tokens=40, finish="length")
    row = find_row(examine(bend=bend), "serve", "cancel heard")
    assert (row.seen, row.complaint) == ("not shown", None)


@pytest.mark.parametrize(
    ("texts", "claimed", "seen", "problem"),
    [
        (("ab", "cd"), True, "not in one process", True),
        (("ab", "cd"), False, "not in one process", False),
        (("abcd", "abcd"), True, "not shown", False),
        (("ab", "ab"), True, "not shown", False),
        (("xy", "xy"), False, "yes", False),
    ],
)
def test_seed_repeats_only_where_something_was_drawn(
    texts: tuple[str, str], claimed: bool, seen: str, problem: bool
) -> None:
    def bend(visit: Visit, turn: TurnRecord) -> TurnRecord:
        if visit.kind == "limits" and turn.conversation.startswith("drawn"):
            return replace(turn, text=texts[int(turn.conversation[-1]) - 1].encode())
        return turn

    diagnosis = examine(replace(ABLE, draws_repeat=claimed), bend=bend)
    row = find_row(diagnosis, "chat", "seed repeats")
    assert (row.seen, row.complaint is not None) == (seen, problem)


def test_traps_are_told_and_are_no_problem() -> None:
    def bend(visit: Visit, turn: TurnRecord) -> TurnRecord:
        if turn.conversation == "long":
            return replace(turn, finish="length", emitted_tokens=2, prompt_tokens=120)
        if visit.clamped and turn.conversation.startswith("drawn"):
            return replace(turn, emitted_tokens=6)
        return turn

    diagnosis = examine(bend=bend)
    assert list_names(diagnosis) == set()
    named = {(path, complaint.name) for path, complaint in diagnosis.complaints("caution")}
    assert named == {
        (path, name)
        for path in ("chat", "serve")
        for name in ("prompt-cut-silently", "caps-clamped-silently")
    }


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"kv_resumed_tokens": 40}, "saved-state"),
        ({"left_files": (LeftFile(name=".coli_kv", size_bytes=9),)}, "state-left-behind"),
        ({"left_files": (LeftFile(name=".coli_usage", size_bytes=9),)}, None),
    ],
)
def test_state_beyond_a_start(changes: dict[str, Any], name: str | None) -> None:
    diagnosis = examine(bend_cell=lambda visit, record: replace(record, **changes))
    row = find_row(diagnosis, "chat", "starts without saved state")
    assert (row.complaint.name if row.complaint else None) == name


def test_cache_that_is_warm_in_a_new_process_is_saved_state() -> None:
    diagnosis = examine(bend=on(kind="plain", conversation="talk", turn=0, cached_tokens=9, prefill_tokens=1))
    assert list_names(diagnosis) == {("serve", "saved-state")}


def fail(code: str, *, ready: bool, kinds: tuple[str, ...]) -> Callable[[Visit, CellRecord], CellRecord]:
    failure = Failure(code=code, message=f"it is {code}", hint="mend it", stderr_tail=("the last line",))

    def bend(visit: Visit, record: CellRecord) -> CellRecord:
        if visit.path != "serve" or visit.kind not in kinds:
            return record
        return replace(record, failure=failure, turns=(), ready_ns=1 if ready else None, protocol=None)

    return bend


MAIN = ("plain", "drafting")


def test_path_that_does_not_start_has_one_row_with_the_last_line_of_stderr() -> None:
    everything = (*MAIN, "limits", "asked", "grammar")
    diagnosis = examine(bend_cell=fail("engine-start", ready=False, kinds=everything))
    row = find_row(diagnosis, "serve", "starts in its protocol")
    assert (row.seen, row.complaint and row.complaint.name) == ("no", "engine-start")
    assert "the last line" in row.evidence
    assert diagnosis.ready


def test_wrong_protocol_everywhere_is_an_engine_that_starts() -> None:
    bend = fail("wrong-protocol", ready=False, kinds=MAIN)
    able = replace(ABLE, paths=("serve",))
    diagnosis = examine(able, bend_cell=bend, examination=plan_visits(able, brief=True))
    assert diagnosis.ready
    assert list_names(diagnosis) == {("serve", "wrong-protocol")}


def test_engine_that_is_ready_nowhere_cannot_start() -> None:
    able = replace(ABLE, paths=("serve",))
    bend = fail("engine-start", ready=False, kinds=MAIN)
    assert not examine(able, bend_cell=bend, examination=plan_visits(able, brief=True)).ready


@pytest.mark.parametrize(("code", "problem"), [("engine-refused", False), ("engine-died", True)])
def test_refusal_of_what_need_not_be_known_is_an_answer(code: str, problem: bool) -> None:
    able = replace(ABLE, reports_logprobs=frozenset(), margin_pin=None)
    diagnosis = examine(able, bend_cell=fail(code, ready=True, kinds=("asked",)))
    assert bool(list_names(diagnosis)) is problem
    assert find_row(diagnosis, "serve", "logprobs").seen == ("not shown" if problem else "no")


def test_server_of_unknown_depth_is_held_to_no_depth() -> None:
    able = replace(ABLE, max_depth=0, depths=(UNKNOWN_DEPTH,), grammar="none")
    examination = plan_visits(able, is_served=True)
    diagnosis = examine(able, examination=examination, bend=on(path="chat", kind="plain", drafted_tokens=4))
    assert {visit.probe.spec.arm.label for visit in examination.visits} == {"chat/?", "serve/?"}
    assert find_row(diagnosis, "chat", "drafts").seen == "yes"
    assert find_row(diagnosis, "chat", "grammar").seen == "not shown"
    assert list_names(diagnosis) == set()


def test_typed_lines_are_no_proof_that_the_counts_of_a_prompt_are_missing() -> None:
    hidden = on(entry="line", prompt_tokens=None, cached_tokens=None, prefill_tokens=None)
    diagnosis = examine(bend=hidden)
    row = find_row(diagnosis, "serve", "cached tokens reported")
    assert (row.claimed, row.seen) == ("", "no")
    assert row.complaint is None
