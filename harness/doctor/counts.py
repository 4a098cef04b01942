"""Rows on which counts a path reports, and whether they fit together."""

from collections.abc import Iterator

from harness.doctor.rows import NOT_SHOWN, Complaint, Row, claim, contradict
from harness.doctor.view import PathView
from harness.transcript import TurnRecord


def list_count_rows(view: PathView) -> Iterator[Row]:
    """Yield which counts are reported, and whether they fit together."""
    drafting = view.whole_turns("drafting") or view.whole_turns("plain")
    plain = view.whole_turns("plain")
    yield _build_count_row(view, "forwards", view.able.reports_forwards, plain, [t.forwards for t in plain])
    drafted = [t.drafted_tokens for t in drafting]
    yield _build_count_row(view, "drafted tokens", view.able.reports_drafted, drafting, drafted)
    yield _build_token_row(view, plain)
    yield from _list_prompt_rows(view)
    if view.faults:
        reason = view.faults[0].reason
        arm = view.faults[0].arms[-1].label
        yield Row(
            path=view.path,
            capability="counts fit together",
            claimed="yes",
            seen="no",
            evidence=f"{arm}: {reason}",
            complaint=Complaint(
                name="counts-contradict",
                message=f"{arm}: {view.faults[0].rule}: {reason}",
                remedy="no rate or cost from this engine can be trusted before its counters are right",
            ),
        )


def _build_count_row(
    view: PathView, name: str, claimed: bool, turns: tuple[TurnRecord, ...], values: list[int | None]
) -> Row:
    known = [value for value in values if value is not None]
    seen = NOT_SHOWN if not turns else "yes" if len(known) == len(turns) else "no"
    told = f"{sum(known)} in {len(turns)} turns" if known else f"none told for {len(turns)} turns"
    if known and len(known) < len(turns):
        told = f"told for {len(known)} of {len(turns)} turns"
    complaint = contradict(
        claim(claimed),
        seen,
        "count-not-reported",
        f"{name} are not reported: {told}",
        "without them drafting cannot be proved; check PROF=1 or the server's /metrics, and that nothing"
        " swallows"
        " the engine's stderr",
    )
    capability = f"{name} reported"
    return Row(
        path=view.path,
        capability=capability,
        claimed=claim(claimed),
        seen=seen,
        evidence=told,
        complaint=complaint,
    )


def _build_token_row(view: PathView, turns: tuple[TurnRecord, ...]) -> Row:
    claimed = claim(view.path in view.able.frames_are_tokens)
    shown = [t for t in turns if t.token_lengths is not None]
    lost = [
        t for t in shown if t.emitted_tokens is not None and len(t.token_lengths or ()) != t.emitted_tokens
    ]
    seen = NOT_SHOWN if not turns else "yes" if len(shown) == len(turns) and not lost else "no"
    if lost:
        evidence = (
            f"{len(lost[0].token_lengths or ())} tokens were sent, {lost[0].emitted_tokens} are counted"
        )
    elif shown:
        tokens = sum(len(t.token_lengths or ()) for t in shown)
        evidence = f"{tokens} tokens told apart in {len(shown)} of {len(turns)} answers"
    else:
        evidence = f"{len(turns)} answers came as bytes or pieces"
    complaint = contradict(
        claimed,
        seen,
        "tokens-not-shown",
        f"the path does not show which bytes are a token: {evidence}",
        "look for a proxy or a wrapper that joins or drops frames",
    )
    return Row(
        path=view.path,
        capability="token boundaries",
        claimed=claimed,
        seen=seen,
        evidence=evidence,
        complaint=complaint,
    )


def _list_prompt_rows(view: PathView) -> Iterator[Row]:
    first, second = view.turn("plain", "talk"), view.turn("plain", "talk", 1)
    if first is None or second is None:
        return
    told = [_describe_prompt(number, turn) for number, turn in ((1, first), (2, second))]
    counted = second.prompt_tokens is not None
    yield Row(
        path=view.path,
        capability="prompt tokens reported",
        seen=claim(counted),
        evidence="; ".join(told),
    )
    cached = second.cached_tokens is not None and counted
    # The binding speaks of exact prompts only.
    claimed = claim(view.able.reports_cached_tokens) if second.entry == "prompt" else ""
    yield Row(
        path=view.path,
        capability="cached tokens reported",
        claimed=claimed,
        seen=claim(cached),
        evidence="; ".join(told),
        complaint=contradict(
            claimed,
            claim(cached),
            "count-not-reported",
            "the reused prefix of a prompt is not reported",
            "without it prefix reuse cannot be checked; see that nothing swallows the engine's stderr",
        ),
    )
    if second.cached_tokens is not None:
        yield Row(
            path=view.path,
            capability="second turn reuses the first",
            seen=claim(second.cached_tokens > 0),
            evidence=told[1],
        )


def _describe_prompt(number: int, turn: TurnRecord) -> str:
    prompt, cached, prefill = turn.prompt_tokens, turn.cached_tokens, turn.prefill_tokens
    if prompt is None:
        return f"turn {number}: no prompt count"
    parts = f"{'?' if cached is None else cached} cached, {'?' if prefill is None else prefill} computed"
    return f"turn {number}: prompt of {prompt}, {parts}"
