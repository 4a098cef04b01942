"""Rows on what a request can ask for, what happens at the end of the context, and what state is kept."""

from collections.abc import Iterator

from engine_bindings.binding import GrammarSupport
from harness.doctor.rows import NOT_SHOWN, Complaint, Row, claim, contradict
from harness.doctor.view import REFUSED, PathView, show
from harness.transcript import CellRecord, TurnRecord

GRAMMAR_WORDS: dict[GrammarSupport, str] = {"constraint": "enforced", "drafts": "drafts only", "none": "none"}
ALLOWED = (b"red", b"blue")


def list_asked_rows(view: PathView) -> Iterator[Row]:
    """Yield whether logprobs and margins are given to who asks."""
    record = view.records.get("asked")
    if record is None:
        return
    turn = record.turns[0] if record.turns else None
    refused = refuses_logprobs(record)
    told = record.failure.message if record.failure is not None else "asked, and none came"
    logprobs = [value for value in (turn.logprobs or ()) if value is not None] if turn else []
    seen = NOT_SHOWN if turn is None and not refused else "no"
    claimed = claim(view.path in view.able.reports_logprobs)
    logprob_seen = "yes" if logprobs else seen
    yield Row(
        path=view.path,
        capability="logprobs",
        claimed=claimed,
        seen=logprob_seen,
        evidence=f"{len(logprobs)} for {turn.emitted_tokens} tokens, the least {min(logprobs):.3f}"
        if turn and logprobs
        else told,
        complaint=contradict(
            claimed,
            logprob_seen,
            "logprobs-missing",
            f"no logprobs: {told}",
            "compare cannot check them here",
        ),
    )
    yield _build_margin_row(view, view.turn("margins", "asked") or turn, seen, told)


def refuses_logprobs(record: CellRecord) -> bool:
    """Say whether a path refused the request for logprobs, so that its margins are asked for alone."""
    return record.failure is not None and record.failure.code == REFUSED


def _build_margin_row(view: PathView, turn: TurnRecord | None, seen: str, told: str) -> Row:
    gaps = [margin.gap for margin in turn.margins or ()] if turn else []
    pin = view.able.margin_pin
    first = view.path == view.able.paths[0]
    complaint = None
    if pin is not None and seen == "no" and not gaps and first:
        complaint = Complaint(
            name="margins-missing",
            effect="caution",
            message=f"no margins with {pin.name}={pin.value}: {told}",
            remedy="a difference on this engine cannot be told from a near-tie; see that its stderr"
            " comes through",
        )
    return Row(
        path=view.path,
        capability="margins",
        # The setting is the engine's; which of its paths pass the margins on is not claimed.
        claimed=claim(pin is not None) if first or pin is None else "",
        seen="yes" if gaps else seen,
        evidence=f"{len(gaps)} gaps for {turn.emitted_tokens} tokens, the least {min(gaps):.3g}"
        if turn and gaps
        else told
        if pin is not None
        else "there is no setting for them",
        complaint=complaint,
    )


def list_seed_rows(view: PathView) -> Iterator[Row]:
    """Yield whether the same sampled request gives the same answer again."""
    record = view.records.get("limits")
    if record is None:
        return
    one, two = view.turn("limits", "drawn-1"), view.turn("limits", "drawn-2")
    again = view.turn("limits-again", "drawn-1")
    claimed = claim(view.able.draws_repeat)
    if one is None or two is None or not one.text:
        yield Row(path=view.path, capability="seed repeats", seen=NOT_SHOWN, evidence="no sampled answer")
        return
    told = f"{show(one.text)}, then {show(two.text)}"
    if one.text == two.text:
        certain = _is_greedy(view, one.text)
        seen = NOT_SHOWN if certain else "yes"
        told += "; it is the answer at temperature 0 too" if certain else ""
    elif again is None:
        seen = "not in one process"
    else:
        told += f", and in a new process {show(again.text)}"
        seen = "from start to start" if again.text == one.text else "no"
    yield Row(
        path=view.path,
        capability="seed repeats",
        claimed=claimed,
        seen=seen,
        evidence=told,
        complaint=_complain_of_seed(view, record, claimed, seen, told),
    )


def _is_greedy(view: PathView, text: bytes) -> bool:
    """Say whether a sampled answer may be the one without sampling too, so that it proves nothing."""
    greedy = view.turn("plain", "drawn-0")
    return greedy is None or greedy.text.startswith(text) or text.startswith(greedy.text)


def needs_second_start(record: CellRecord) -> bool:
    """Say whether only another start can show that the seed is heard; a server is not started by us."""
    drawn = [turn for turn in record.turns if turn.conversation.startswith("drawn")]
    return bool(record.argv) and len(drawn) == 2 and drawn[0].text != drawn[1].text


def _complain_of_seed(
    view: PathView, record: CellRecord, claimed: str, seen: str, told: str
) -> Complaint | None:
    seeded = any("SEED" in pin.name.upper() for pin in record.pins)
    if seen == "no" and seeded:
        message = f"the seed has no effect: {told}"
    elif claimed == "yes" and seen not in ("yes", NOT_SHOWN):
        message = f"the same request with the same seed gives another answer: {told}"
    else:
        return None
    remedy = "sampled scenarios cannot be compared on this engine; use temperature 0 until it is mended"
    return Complaint(name="seed-not-heard", message=f"{view.path}: {message}", remedy=remedy)


def list_grammar_rows(view: PathView) -> Iterator[Row]:
    """Yield whether a grammar is enforced, only drafted from, or refused."""
    support = view.able.grammar
    record = view.records.get("grammar")
    claimed = GRAMMAR_WORDS[support]
    if record is None:
        if support == "none":
            told = "not asked: the binding has no way to send one"
            yield Row(path=view.path, capability="grammar", claimed=claimed, seen=NOT_SHOWN, evidence=told)
        return
    turn = record.turns[0] if record.turns else None
    seen, told, complaint = NOT_SHOWN, "no answer", None
    if turn is not None:
        enforced = turn.text.strip() in ALLOWED
        seen = "enforced" if enforced else "not enforced"
        told = f"only 'red' and 'blue' are allowed: {show(turn.text)}"
    elif record.failure is not None:
        seen = "refused" if record.failure.code == REFUSED else NOT_SHOWN
        told = record.failure.message
    if claimed == "enforced" and seen in ("not enforced", "refused"):
        complaint = Complaint(
            name="grammar-not-enforced",
            message=f"a grammar that must bind is {seen}: {told}",
            remedy="answers on this path have to be validated by whoever asked; leave scenarios with a"
            " grammar out",
        )
    if seen == "not enforced" and claimed == "drafts only":
        told += "; taken without an error"
    yield Row(
        path=view.path, capability="grammar", claimed=claimed, seen=seen, evidence=told, complaint=complaint
    )


def list_context_rows(view: PathView) -> Iterator[Row]:
    """Yield what happens to a prompt that is longer than the context."""
    record = view.records.get("limits")
    if record is None:
        return
    scenario = view.plan.scenario(record.spec.scenario)
    size = scenario.context_tokens or view.plan.context_tokens
    if not any(conversation.id == "long" for conversation in scenario.conversations):
        told = (
            "not asked: the context of a running server cannot be chosen, and its own is large or not known"
        )
        yield Row(path=view.path, capability="overlong prompt", seen=NOT_SHOWN, evidence=told)
        return
    turn = view.turn("limits", "long")
    asked = next(c for c in scenario.conversations if c.id == "long").turns[0].text.count(" ") + 1
    question = f"a prompt of {asked} numbers in a context of {size} tokens"
    yield _build_context_row(view, record, turn, question, asked)


def _build_context_row(
    view: PathView, record: CellRecord, turn: TurnRecord | None, question: str, numbers: int
) -> Row:
    seen, told, complaint = NOT_SHOWN, "not asked: the cell ended before", None
    if turn is None and record.failure is not None:
        seen = "refused" if record.failure.code == REFUSED else NOT_SHOWN
        told = record.failure.message
    elif turn is not None and turn.finish == "refused":
        seen, told = "refused", "refused"
    elif turn is not None:
        seen = "answered"
        counted = "not counted" if turn.prompt_tokens is None else f"counted as {turn.prompt_tokens}"
        told = f"answered with {turn.emitted_tokens} tokens, prompt {counted}"
        if turn.prompt_tokens is not None and turn.prompt_tokens < numbers:
            seen = "cut"
            complaint = Complaint(
                name="prompt-cut-silently",
                effect="caution",
                message=f"an overlong prompt is cut without a word: {question}: {told}",
                remedy="keep prompts below the context, raise it with --context, and watch prompt_tokens",
            )
    return Row(
        path=view.path,
        capability="overlong prompt",
        seen=seen,
        evidence=f"{question}: {told}",
        complaint=complaint,
    )


def list_state_rows(view: PathView) -> Iterator[Row]:
    """Yield whether an engine begins without the state of an earlier one, and what it leaves behind."""
    records = [record for record in view.records.values() if record.ready_ns is not None and record.argv]
    if not records:
        return
    resumed = next((record for record in records if record.kv_resumed_tokens), None)
    first = view.turn("plain", "talk")
    warm = first.cached_tokens if first is not None and view.able.cold_cells else None
    left = sorted({file.name for record in records for file in record.left_files})
    told = f"nothing resumed in {len(records)} starts; files left: {', '.join(left) or 'none'}"
    seen, complaint = "yes", None
    if resumed is not None:
        told = f"{resumed.spec.arm.label} resumed a saved conversation of {resumed.kv_resumed_tokens} tokens"
    elif warm:
        told = f"the first prompt of a new process found {warm} tokens cached"
    elif view.left:
        told = f"{view.left[0].arms[-1].label} {view.left[0].reason}"
    if resumed is not None or warm or view.left:
        seen = "no"
        complaint = Complaint(
            name="saved-state" if resumed is not None or warm else "state-left-behind",
            message=told,
            remedy="nothing measured after it is of this run alone: set KVSAVE=0, remove .coli_kv from"
            " the model"
            " directory, and let no wrapper name another directory",
        )
    yield Row(
        path=view.path,
        capability="starts without saved state",
        claimed="yes",
        seen=seen,
        evidence=told,
        complaint=complaint,
    )
