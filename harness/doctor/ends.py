"""Rows on how answers end: caps, finish reasons, cancels and stop strings, and stop tokens between paths."""

from collections.abc import Iterator, Sequence

from engine_bindings.binding import UNKNOWN_DEPTH
from harness.counters import IN_FLIGHT_READS, MAX_LATE_TOKENS
from harness.doctor.probes import CLAMP_SETTING, CLAMP_TOKENS, VisitKind
from harness.doctor.rows import NOT_SHOWN, Complaint, Row
from harness.doctor.view import PathView, describe_answer, show
from harness.transcript import TurnRecord

Capped = tuple[VisitKind, TurnRecord]
MAIN: tuple[VisitKind, ...] = ("plain", "drafting")
# The turn that ends by itself; it may do so at any cap.
FIRST = ("talk", 0)
TORN = (("length", "stop"), ("stop", "length"))


def list_cap_rows(view: PathView) -> Iterator[Row]:
    """Yield whether caps are honoured, also above the engine's own limit, and named as the end."""
    yield _build_cap_row(view)
    yield _build_length_row(view)
    if view.clamped and (turn := view.turn("limits", "drawn-1")) is not None:
        yield _build_clamp_row(view, turn)


def _build_cap_row(view: PathView) -> Row:
    """Look at every whole turn; the gravest outcome is the row's."""
    seen, evidence = NOT_SHOWN, "no answer reached its cap"
    for kind in MAIN:
        for turn in view.whole_turns(kind):
            cap, emitted = view.cap_tokens(kind, turn), turn.emitted_tokens
            told = f"{view.label(kind)}: {view.describe(kind, turn)}"
            if emitted is None:
                evidence = told if seen == NOT_SHOWN else evidence
            elif emitted > cap:
                return _build_bad_cap_row(view, "no", told, "over-the-cap")
            elif emitted < cap and turn.finish == "length" and _is_longest(view, turn):
                return _build_bad_cap_row(view, f"clamped to {emitted}", told, "cap-clamped")
            elif emitted == cap and seen == NOT_SHOWN:
                seen, evidence = "yes", told
    return Row(path=view.path, capability="cap honoured", claimed="yes", seen=seen, evidence=evidence)


def _is_longest(view: PathView, turn: TurnRecord) -> bool:
    """Say whether no answer is longer, so that a limit of the engine may have cut this one."""
    longest = max(other.emitted_tokens or 0 for other in view.whole_turns(*MAIN))
    return turn.emitted_tokens == longest


def _build_bad_cap_row(view: PathView, seen: str, evidence: str, name: str) -> Row:
    clamped = name == "cap-clamped"
    message = f"answers are cut below their cap: {evidence}" if clamped else f"answers exceed it: {evidence}"
    remedy = (
        f"something lowers the engine's own limit ({CLAMP_SETTING}, or a server's greatest max_tokens):"
        f" leave it to"
        " the harness, which sets it to the largest cap"
        if clamped
        else "no count or time of a capped answer can be compared before this is mended"
    )
    complaint = Complaint(name=name, message=message, remedy=remedy)
    return Row(
        path=view.path,
        capability="cap honoured",
        claimed="yes",
        seen=seen,
        evidence=evidence,
        complaint=complaint,
    )


def list_capped(view: PathView) -> list[Capped]:
    """Return the greedy turns that reached their cap, with their visits."""
    kinds: tuple[VisitKind, ...] = (*MAIN, "asked")
    return [
        (kind, turn)
        for kind in kinds
        for turn in view.whole_turns(kind)
        if turn.emitted_tokens == view.cap_tokens(kind, turn) and turn.finish != "stop-string"
    ]


def _build_length_row(view: PathView) -> Row:
    capped = list_capped(view)
    stopped = [(kind, turn) for kind, turn in capped if turn.finish == "stop"]
    seen, evidence, complaint = NOT_SHOWN, "no answer reached its cap", None
    if capped:
        evidence = view.describe(*capped[0])
        seen = "yes" if any(turn.finish == "length" for _, turn in capped) else NOT_SHOWN
    # One answer may end by itself at its cap, but not two at two caps, nor at one depth only.
    caps = {view.cap_tokens(kind, turn) for kind, turn in stopped if (turn.conversation, turn.turn) != FIRST}
    torn = _find_torn(capped, capped)
    short = _find_early_length(view)
    if short is not None:
        seen, evidence = "no", view.describe(*short)
        complaint = complain_of_finish(f"an answer far below its cap is called length: {evidence}")
    elif torn is not None:
        seen = "not at every depth"
        evidence = "; ".join(f"{view.label(kind)} {view.describe(kind, turn)}" for kind, turn in torn)
        complaint = complain_of_finish(f"the same answer ends differently by depth: {evidence}")
    elif len(caps) > 1:
        seen = "no"
        evidence = "; ".join(view.describe(kind, turn) for kind, turn in stopped[:2])
        complaint = complain_of_finish(f"answers that their cap ended are reported as stop: {evidence}")
    return Row(
        path=view.path,
        capability="says when the cap ended it",
        claimed="yes",
        seen=seen,
        evidence=evidence,
        complaint=complaint,
    )


def _find_early_length(view: PathView) -> Capped | None:
    """Return an answer that is called length although it is below its cap and others are longer."""
    turns = ((kind, turn) for kind in MAIN for turn in view.whole_turns(kind) if turn.finish == "length")
    short = ((kind, turn) for kind, turn in turns if (turn.emitted_tokens or 0) < view.cap_tokens(kind, turn))
    return next(((kind, turn) for kind, turn in short if not _is_longest(view, turn)), None)


def _find_torn(a: Sequence[Capped], b: Sequence[Capped]) -> tuple[Capped, Capped] | None:
    """Return two equal answers at one cap of which one is called a stop and the other its cap."""
    pairs = ((x, y) for x in a for y in b if x[1].text == y[1].text)
    return next((pair for pair in pairs if (pair[0][1].finish, pair[1][1].finish) in TORN), None)


def complain_of_finish(message: str) -> Complaint:
    """Return the complaint that a cap is reported as something else."""
    return Complaint(
        name="finish-reason",
        message=message,
        remedy="a client cannot tell a cut answer from a whole one; the path has to set its finish"
        " reason when the"
        " turn ends, not when it is admitted",
    )


def _build_clamp_row(view: PathView, turn: TurnRecord) -> Row:
    asked, emitted = view.asked("limits", turn).max_tokens, turn.emitted_tokens
    evidence = f"with {CLAMP_SETTING}={CLAMP_TOKENS}, {view.describe('limits', turn)}"
    seen, complaint = NOT_SHOWN, None
    if emitted == CLAMP_TOKENS:
        seen = "clamped"
        complaint = Complaint(
            name="caps-clamped-silently",
            effect="caution",
            message=f"a cap above the engine's own limit is lowered without a word: {evidence}",
            remedy=f"set {CLAMP_SETTING} to the largest cap, as the harness does for every arm",
        )
    elif emitted is not None and emitted > CLAMP_TOKENS:
        seen = "yes" if emitted == asked else "partly"
    return Row(
        path=view.path,
        capability=f"cap above {CLAMP_SETTING} honoured",
        seen=seen,
        evidence=evidence,
        complaint=complaint,
    )


def list_end_rows(view: PathView) -> Iterator[Row]:
    """Yield whether a cancel and a stop string are heard while an answer runs."""
    for capability, conversation in (("cancel heard", "cancel"), ("stop string heard", "stop")):
        turn = view.turn("plain", conversation)
        if turn is not None:
            yield _build_heard_row(view, capability, turn)


def _build_heard_row(view: PathView, capability: str, turn: TurnRecord) -> Row:
    cap, emitted = view.cap_tokens("plain", turn), turn.emitted_tokens
    ended = turn.finish in ("cancelled", "stop-string")
    evidence = f"cap {cap}: {describe_answer(turn)}, read in {len(turn.deliveries)} pieces"
    late = count_late_tokens(turn)
    complaint = None
    if late > MAX_LATE_TOKENS:
        seen = "no"
        complaint = Complaint(
            name="stop-not-heard",
            message=f"told to end its answer, it went on for {late} tokens and more: {evidence}",
            remedy="the engine has to look at its input between forwards; until then a client that"
            " leaves costs it"
            " the whole answer",
        )
    elif ended and (emitted is None or emitted < cap):
        seen = "yes"
    else:
        seen = NOT_SHOWN
        evidence += "; it went on to its end, and was not told to stop before"
    return Row(path=view.path, capability=capability, seen=seen, evidence=evidence, complaint=complaint)


def count_late_tokens(turn: TurnRecord) -> int:
    """Return the tokens that came after the engine was told to end, without those that were on their way."""
    if turn.asked_to_end_ns is None:
        return 0
    late = [d for d in turn.deliveries if d.at_ns > turn.asked_to_end_ns][IN_FLIGHT_READS:]
    return sum(delivery.tokens or 1 for delivery in late)


def list_between_rows(first: PathView, other: PathView) -> Iterator[Row]:
    """Yield whether the same answer ends alike on two paths, by itself and at its cap."""
    for kind in MAIN:
        a, b = first.turn(kind, "talk"), other.turn(kind, "talk")
        if a is not None and b is not None:
            yield _build_stop_row(first, other, kind, a, b)
    torn = _find_torn(list_capped(first), list_capped(other))
    # Where one path contradicts itself, that is said of it already.
    own = (_find_torn(capped, capped) for capped in (list_capped(first), list_capped(other)))
    if torn is not None and not any(own):
        yield _build_finish_row(first, other, *torn)


def _build_stop_row(first: PathView, other: PathView, kind: VisitKind, a: TurnRecord, b: TurnRecord) -> Row:
    depth = first.records[kind].spec.arm.depth
    capability = "same stop tokens" + ("" if depth == UNKNOWN_DEPTH else f" at depth {depth}")
    told = f"{first.asked(kind, a).text!r}: {describe_answer(a)}, and {describe_answer(b)}"
    seen, complaint = NOT_SHOWN, None
    if a.text == b.text and a.finish == b.finish == "stop":
        seen = "yes"
    elif _goes_past(a, b) or _goes_past(b, a):
        seen = "no"
        told += f"; {show(a.text)} against {show(b.text)}"
        complaint = Complaint(
            name="stop-sets-differ",
            message=f"one path ends where the other goes on: {told}",
            remedy="the paths arm different stop tokens: set COLI_SERVE_ALL_STOPS=1 in colibri, or name"
            " the same"
            " stop tokens to both",
        )
    elif a.text != b.text:
        told += "; the answers are not the same, so their ends cannot be held against each other: run compare"
    names = f"{first.path} and {other.path}"
    return Row(path=names, capability=capability, seen=seen, evidence=told, complaint=complaint)


def _goes_past(a: TurnRecord, b: TurnRecord) -> bool:
    """Say whether ``a`` ended by itself and ``b`` is the same answer with more behind it."""
    return a.finish == "stop" and b.text.startswith(a.text) and len(b.text) > len(a.text) > 0


def _build_finish_row(first: PathView, other: PathView, a: Capped, b: Capped) -> Row:
    told = [
        f"{view.label(kind)} {view.describe(kind, turn)}" for view, (kind, turn) in ((first, a), (other, b))
    ]
    return Row(
        path=f"{first.path} and {other.path}",
        capability="same finish reason",
        seen="no",
        evidence="; ".join(told),
        complaint=complain_of_finish(f"the same answer ends differently by path: {'; '.join(told)}"),
    )
