"""Rows on whether a path starts, answers, and drafts where it is asked to and only there."""

from collections.abc import Iterator

from harness.counters import MIN_ACCEPTANCE_RATE
from harness.doctor.rows import NOT_SHOWN, Complaint, Row, claim
from harness.doctor.view import REFUSED, PathView
from harness.engagement import shows_drafts
from harness.metrics import sum_reported
from harness.transcript import CellRecord, TurnRecord

# A head that guesses at random is right once in thousands; so few drafts show one that is never right.
MIN_DRAFTED_TOKENS = 24
# Where drafts are not counted: at most this share of the forwards brought more than their one token.
MIN_FORWARDS = 16

START_REMEDY = "start it by hand with the settings that coli-ab compare --dry-run prints, and read its stderr"
DRAFT_REMEDY = (
    "check that the checkpoint has an MTP head and that the engine found it (MTP=0, a wrapper or a build"
    " without"
    " it switch it off), and that DRAFT reaches the engine"
)


def list_start_rows(view: PathView) -> Iterator[Row]:
    """Yield whether the path starts and proves its protocol, and whether every turn is answered."""
    main = [view.records[kind] for kind in ("plain", "drafting") if kind in view.records]
    yield _build_start_row(view, main)
    if any(record.ready_ns is not None for record in main):
        yield _build_answers_row(view)


def _build_start_row(view: PathView, main: list[CellRecord]) -> Row:
    failed = [record for record in main if record.ready_ns is None]
    failure = failed[0].failure if failed else None
    if failed and failure is not None:
        tail = f"; last stderr line: {failure.stderr_tail[-1]}" if failure.stderr_tail else ""
        evidence = f"{failed[0].spec.arm.label}: {failure.message}{tail}"
        complaint = Complaint(name=failure.code, message=failure.message, remedy=failure.hint or START_REMEDY)
        return Row(
            path=view.path,
            capability="starts in its protocol",
            claimed="yes",
            seen="no" if len(failed) == len(main) else "at one depth only",
            evidence=evidence,
            complaint=complaint,
        )
    ready = [f"{record.spec.arm.label} after {(record.ready_ns or 0) / 1e9:.1f} s" for record in main]
    protocol = main[0].protocol if main else None
    return Row(
        path=view.path,
        capability="starts in its protocol",
        claimed="yes",
        seen="yes" if main else NOT_SHOWN,
        evidence=f"{protocol} protocol proved by the first reply; ready: {', '.join(ready)}",
    )


def _build_answers_row(view: PathView) -> Row:
    """Take refusals as answers where something was asked that an engine may not know."""
    for kind, record in view.records.items():
        failure = record.failure
        may_refuse = kind in ("limits", "limits-again", "asked", "margins", "grammar")
        if failure is None or record.ready_ns is None or (may_refuse and failure.code == REFUSED):
            continue
        where = f"{record.spec.arm.label} ({kind}): {failure.message}"
        remedy = failure.hint or "its last stderr lines may say why"
        return Row(
            path=view.path,
            capability="answers every turn",
            claimed="yes",
            seen="no",
            evidence=where,
            complaint=Complaint(name=failure.code, message=where, remedy=remedy),
        )
    turns = sum(len(record.turns) for record in view.records.values())
    starts = len(view.records)
    return Row(
        path=view.path,
        capability="answers every turn",
        claimed="yes",
        seen="yes",
        evidence=f"{turns} turns ended in {starts} starts",
    )


def list_draft_rows(view: PathView) -> Iterator[Row]:
    """Yield whether drafts are made where they are asked for, and none where they are not."""
    plain, drafting = view.engagement.get("plain"), view.engagement.get("drafting")
    if plain is not None and plain.state == "unknown":
        turns = view.whole_turns("plain")
        seen = "yes" if any(map(shows_drafts, turns)) else "no sign"
        yield Row(
            path=view.path,
            capability="drafts",
            claimed="not known",
            seen=seen if _reports_any(turns) else NOT_SHOWN,
            evidence=plain.evidence,
        )
        return
    if drafting is not None:
        yield _build_on_row(view)
    if plain is not None:
        yield _build_off_row(view)


def _reports_any(turns: tuple[TurnRecord, ...]) -> bool:
    return any(t.forwards is not None or t.drafted_tokens is not None for t in turns)


def _build_on_row(view: PathView) -> Row:
    engagement, record = view.engagement["drafting"], view.records["drafting"]
    depth = record.spec.arm.depth
    seen, complaint = NOT_SHOWN, None
    if engagement.state == "mixed":
        seen, complaint = "with pauses", _complain_of_pauses(engagement.evidence)
    elif engagement.state == "on":
        seen, complaint = "yes", _complain_of_head(view, depth)
    elif engagement.state == "void" and _reports_any(record.turns) and not record.kv_resumed_tokens:
        seen, complaint = "no", _complain_of_nothing(record, engagement.evidence)
    return Row(
        path=view.path,
        capability=f"drafts at depth {depth}",
        claimed=claim(view.able.max_depth > 0 or view.able.depths is None),
        seen=seen,
        evidence=engagement.evidence,
        complaint=complaint,
    )


def _complain_of_pauses(evidence: str) -> Complaint:
    return Complaint(
        name="drafts-paused",
        message=f"a guard pauses drafting inside a turn, which mixes both depths: {evidence}",
        remedy="switch it off with --set COLI_MTP_GUARD_PCT=0; if acceptance is low, check the head",
    )


def _complain_of_nothing(record: CellRecord, evidence: str) -> Complaint:
    announced = [line for line in record.banner if "MTP ACTIVE" in line]
    said = f", although it announces {announced[0].split('|')[-1].strip()!r}" if announced else ""
    counted = any(turn.drafted_tokens is not None for turn in record.turns)
    what = "nothing is drafted" if counted else "nothing is drafted, or no draft is ever kept"
    message = f"{what} at depth {record.spec.arm.depth}{said}: {evidence}"
    return Complaint(name="nothing-drafted", message=message, remedy=DRAFT_REMEDY)


def _complain_of_head(view: PathView, depth: int) -> Complaint | None:
    turns = view.whole_turns("drafting")
    emitted = sum_reported(turn.emitted_tokens for turn in turns)
    forwards = sum_reported(turn.forwards for turn in turns)
    drafted = sum_reported(turn.drafted_tokens for turn in turns)
    accepted = sum_reported(turn.accepted_tokens for turn in turns)
    if accepted is None and emitted is not None and forwards is not None:
        accepted = max(0, emitted - forwards)
    if accepted is None:
        return None
    if drafted is not None:
        useless = drafted >= MIN_DRAFTED_TOKENS and accepted < MIN_ACCEPTANCE_RATE * drafted
        counts = f"{accepted} of {drafted} drafts"
    else:
        useless = (forwards or 0) >= MIN_FORWARDS and accepted < MIN_ACCEPTANCE_RATE * (forwards or 0) * depth
        counts = f"{accepted} drafts in {forwards} forwards"
    if not useless:
        return None
    return Complaint(
        name="head-accepts-nothing",
        message=f"the head guesses no better than chance: {counts} kept at depth {depth}",
        remedy="the MTP weights are missing, untrained, of another model or quantised too far: compare their"
        " names and digests with the published checkpoint, and try --depth 1",
    )


def _build_off_row(view: PathView) -> Row:
    engagement = view.engagement["plain"]
    seen, complaint = NOT_SHOWN, None
    if engagement.state == "off":
        seen = "yes"
    elif any(map(shows_drafts, view.records["plain"].turns)):
        seen = "no"
        complaint = Complaint(
            name="drafts-at-depth-0",
            message=f"speculation cannot be switched off: {engagement.evidence}",
            remedy="look for a wrapper or a config that sets DRAFT, and for n-gram or grammar drafts:"
            " with MTP=0"
            " and DRAFT above 0 an engine drafts by lookup",
        )
    return Row(
        path=view.path,
        capability="no drafts at depth 0",
        claimed="yes",
        seen=seen,
        evidence=engagement.evidence,
        complaint=complaint,
    )
