"""Counts of one turn that contradict each other, or what they count, whatever the text says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine_bindings.binding import UNKNOWN_DEPTH
from harness.findings import Finding, VerdictClass
from harness.plan import Arm, CellSpec, Plan
from harness.scenario import Turn
from harness.transcript import CellRecord, TurnRecord

# An untrained head is right about as often as chance; a trained one keeps one draft in two or more.
MIN_ACCEPTANCE_RATE = 0.02
# So many drafts make that a fact about the head and not about one text.
MIN_DRAFTED_TOKENS = 64
# So many drafts at the end of a cell, of several turns, show that a head has gone blind.
MIN_LATE_DRAFTED_TOKENS = 256
MIN_LATE_TURNS = 4
# Text that was generated may be read back as other tokens, a few less; not as three quarters of them.
MIN_READ_BACK_RATE = 0.75
MIN_READ_BACK_TOKENS = 16
# Reads that may bring what an engine wrote before it could hear of a stop: all that its pipe held, and the
# forward that was running. An engine that hears at the end of a forward needs two.
IN_FLIGHT_READS = 8
# So many tokens behind those are no matter of time any more.
MAX_LATE_TOKENS = 16
# The most drafts that a step of a server may hold whose depth nobody knows.
MAX_STEP_DRAFTS = 64
# A token is far shorter in every vocabulary, and what a template adds to an answer is a mark or two.
MAX_TOKEN_BYTES = 256
TEMPLATE_BYTES = 64
# Engines keep a few rows of the context free for drafts and for the token behind the last one.
CONTEXT_MARGIN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTurn:
    """A turn with what was asked of it, and the one before it in its conversation."""

    arm: Arm
    asked: Turn
    turn: TurnRecord
    before: TurnRecord | None
    context_tokens: int | None
    span_drafts: bool
    """A grammar that only drafts adds spans of forced tokens, which may be longer than the depth."""


Check = Callable[[CountedTurn], str | None]


def find_count_faults(plan: Plan, latest: Mapping[CellSpec, CellRecord]) -> tuple[Finding, ...]:
    """Return a finding for each count that cannot be right, once for each arm and turn."""
    found: dict[tuple[object, ...], Finding] = {}
    for spec, record in latest.items():
        if spec.probe is None:
            for finding in _check_cell(plan, spec, record):
                found.setdefault((finding.arms, finding.place, finding.rule), finding)
    useless = _find_useless_heads(plan, latest)
    known = {finding.arms for finding in useless}
    late = (finding for finding in _find_lost_heads(latest) if finding.arms not in known)
    return (*found.values(), *useless, *late)


def _check_cell(plan: Plan, spec: CellSpec, record: CellRecord) -> Iterable[Finding]:
    scenario = plan.scenario(spec.scenario)
    turns = {c.id: c.turns for c in scenario.conversations}
    known = {(turn.conversation, turn.turn): turn for turn in record.turns}
    for turn in record.turns:
        counted = CountedTurn(
            arm=spec.arm,
            asked=turns[turn.conversation][turn.turn],
            turn=turn,
            before=known.get((turn.conversation, turn.turn - 1)),
            context_tokens=scenario.context_tokens or plan.context_tokens,
            span_drafts=scenario.grammar is not None and not scenario.grammar.binds,
        )
        for name, verdict_class, check in CHECKS:
            if reason := check(counted):
                yield Finding(
                    verdict_class=verdict_class,
                    effect="fail",
                    rule=name,
                    contrast="",
                    arms=(spec.arm,),
                    scenario=spec.scenario,
                    conversation=turn.conversation,
                    turn=turn.turn,
                    reason=reason,
                )


def _accepts_too_many(c: CountedTurn) -> str | None:
    drafted, accepted = c.turn.drafted_tokens, c.turn.accepted_tokens
    if drafted is None or accepted is None or accepted <= drafted:
        return None
    return f"accepted {accepted} of {drafted} drafts"


def _does_not_add_up(c: CountedTurn) -> str | None:
    emitted, forwards, accepted = c.turn.emitted_tokens, c.turn.forwards, c.turn.accepted_tokens
    if emitted is None or forwards is None or accepted is None:
        return None
    if c.turn.finish in ("stop-string", "cancelled"):
        return None
    # The forward of the last token may be left out by an engine that needs no logits behind it.
    if forwards + accepted in (emitted, emitted - (c.turn.finish != "stop")):
        return None
    return f"{forwards} forwards and {accepted} accepted drafts do not give {emitted} tokens"


def _drafts_too_many(c: CountedTurn) -> str | None:
    drafted, forwards = c.turn.drafted_tokens, c.turn.forwards
    if c.span_drafts or c.arm.depth == UNKNOWN_DEPTH or drafted is None or forwards is None:
        return None
    if drafted <= c.arm.depth * forwards:
        return None
    return f"drafted {drafted} in {forwards} forwards of at most {c.arm.depth} drafts"


def _splits_the_prompt_wrongly(c: CountedTurn) -> str | None:
    prompt, cached, prefill = c.turn.prompt_tokens, c.turn.cached_tokens, c.turn.prefill_tokens
    if prompt is None or cached is None or prefill is None or cached + prefill == prompt:
        return None
    return f"cached_tokens {cached} and prefill_tokens {prefill} do not give a prompt of {prompt}"


def _reuses_more_than_the_prompt(c: CountedTurn) -> str | None:
    prompt, cached = c.turn.prompt_tokens, c.turn.cached_tokens
    if prompt is None or cached is None or cached <= prompt:
        return None
    return f"cached_tokens {cached} of a prompt of {prompt}"


def _accepts_more_than_came(c: CountedTurn) -> str | None:
    """Hold kept drafts against the tokens of the answer.

    Drafts of the last forward may be right behind the end of the answer, and some servers count those too.
    """
    emitted, accepted = c.turn.emitted_tokens, c.turn.accepted_tokens
    if emitted is None or accepted is None or c.span_drafts or c.turn.finish in ("stop-string", "cancelled"):
        return None
    behind = MAX_STEP_DRAFTS if c.arm.depth == UNKNOWN_DEPTH else c.arm.depth
    if accepted <= emitted + behind:
        return None
    return f"accepted {accepted} drafts in an answer of {emitted} tokens"


def _counts_too_few_tokens(c: CountedTurn) -> str | None:
    """Hold the count against the bytes; a template may begin the answer with a few of its own."""
    emitted, size_bytes = c.turn.emitted_tokens, len(c.turn.text)
    if emitted is None or size_bytes <= MAX_TOKEN_BYTES * emitted + TEMPLATE_BYTES:
        return None
    return f"emitted_tokens {emitted} for an answer of {size_bytes} bytes"


def _counts_other_frames(c: CountedTurn) -> str | None:
    lengths, emitted = c.turn.token_lengths, c.turn.emitted_tokens
    if lengths is None or emitted is None or len(lengths) == emitted:
        return None
    return f"{len(lengths)} tokens were sent and emitted_tokens says {emitted}"


def _was_read_back_shorter(c: CountedTurn) -> str | None:
    """Hold the answer before, as it was streamed and came back in this prompt, against what was counted.

    A template that is not ours may leave parts of an answer out, so only exact prompts say anything.
    """
    before = c.before
    if before is None or before.finish not in ("stop", "length") or c.turn.entry != "prompt":
        return None
    first, emitted, prompt = before.prompt_tokens, before.emitted_tokens, c.turn.prompt_tokens
    if first is None or emitted is None or prompt is None or emitted < MIN_READ_BACK_TOKENS:
        return None
    if not c.turn.prompt.startswith(before.prompt + before.text):
        return None
    if prompt - first >= MIN_READ_BACK_RATE * emitted:
        return None
    return (
        f"emitted_tokens was {emitted} in the turn before, and its streamed text adds no more than "
        f"{prompt - first} tokens to this prompt"
    )


def _exceeds_the_cap(c: CountedTurn) -> str | None:
    emitted, cap = c.turn.emitted_tokens, c.asked.max_tokens
    if emitted is None or emitted <= cap:
        return None
    return f"{emitted} tokens at a cap of {cap}"


def _passes_over_its_stop(c: CountedTurn) -> str | None:
    """Refuse an answer that goes on and on after the engine was told to stop or cancel it.

    What counts is what arrives read by read after that, not the time: on a slow machine much may be on its
    way.
    """
    asked_ns = c.turn.asked_to_end_ns
    if asked_ns is None:
        return None
    late = [delivery for delivery in c.turn.deliveries if delivery.at_ns > asked_ns][IN_FLIGHT_READS:]
    tokens = sum(delivery.tokens or 1 for delivery in late)
    if tokens <= MAX_LATE_TOKENS:
        return None
    return f"told to end its answer, and went on for {tokens} tokens and more in {len(late)} pieces"


def _is_short_of_its_limit(c: CountedTurn) -> str | None:
    """Refuse the finish reason ``length`` where neither the cap nor the context was reached."""
    if c.turn.finish != "length" or not has_room(c.turn, c.asked.max_tokens, c.context_tokens):
        return None
    used = (c.turn.prompt_tokens or 0) + (c.turn.emitted_tokens or 0)
    in_use = f"{used} of {c.context_tokens} in use"
    return f"finish_reason length after {c.turn.emitted_tokens} of {c.asked.max_tokens} tokens, {in_use}"


def has_room(turn: TurnRecord, cap_tokens: int, context_tokens: int | None) -> bool:
    """Say whether a turn surely ended before its cap and before the end of the context."""
    emitted, prompt = turn.emitted_tokens, turn.prompt_tokens
    if emitted is None or prompt is None or context_tokens is None:
        return False
    return emitted < cap_tokens and prompt + emitted <= context_tokens - CONTEXT_MARGIN


Checks = tuple[tuple[str, VerdictClass, Check], ...]

CHECKS: Checks = (
    ("more accepted than drafted", "counters", _accepts_too_many),
    ("tokens are not forwards and accepted drafts", "counters", _does_not_add_up),
    ("more drafts than the depth allows", "counters", _drafts_too_many),
    ("more accepted than came", "counters", _accepts_more_than_came),
    ("more cached than the prompt", "counters", _reuses_more_than_the_prompt),
    ("text without tokens", "counters", _counts_too_few_tokens),
    ("the prompt is not what was cached and computed", "counters", _splits_the_prompt_wrongly),
    ("another number of tokens than was sent", "counters", _counts_other_frames),
    ("more tokens than come back in the next prompt", "counters", _was_read_back_shorter),
    ("over the cap", "stop-or-cap", _exceeds_the_cap),
    ("a stop that is not heard", "stop-or-cap", _passes_over_its_stop),
    ("a limit that was not reached", "finish-reason", _is_short_of_its_limit),
)
"""The checks of one turn, each with the class of a fault that it finds."""


def _find_useless_heads(plan: Plan, latest: Mapping[CellSpec, CellRecord]) -> Sequence[Finding]:
    """Report arms whose drafts are almost never right: no head, or not the model's."""
    findings = []
    for arm in plan.arms:
        own = [r for spec, r in latest.items() if spec.arm == arm and spec.probe is None]
        turns = [turn for record in own for turn in record.turns]
        drafted = sum(turn.drafted_tokens or 0 for turn in turns)
        accepted = sum(turn.accepted_tokens or 0 for turn in turns)
        if drafted < MIN_DRAFTED_TOKENS or accepted >= MIN_ACCEPTANCE_RATE * drafted:
            continue
        findings.append(
            Finding(
                verdict_class="counters",
                effect="fail",
                rule="almost no draft is kept",
                contrast="",
                arms=(arm,),
                scenario=own[0].spec.scenario,
                conversation=turns[0].conversation,
                turn=turns[0].turn,
                reason=f"accepted_tokens {accepted} of {drafted} drafts: a head guesses better than that",
            )
        )
    return findings


def _find_lost_heads(latest: Mapping[CellSpec, CellRecord]) -> Sequence[Finding]:
    """Report arms whose drafts were kept at first and are not from some turn of a cell on, once for each."""
    found: dict[Arm, Finding] = {}
    for spec, record in latest.items():
        start = _find_loss(record.turns)
        if spec.probe is not None or start is None or spec.arm in found:
            continue
        turn, late = record.turns[start], record.turns[start:]
        drafted = sum(turn.drafted_tokens or 0 for turn in late)
        accepted = sum(turn.accepted_tokens or 0 for turn in late)
        found[spec.arm] = Finding(
            verdict_class="counters",
            effect="fail",
            rule="no draft is kept any more",
            contrast="",
            arms=(spec.arm,),
            scenario=spec.scenario,
            conversation=turn.conversation,
            turn=turn.turn,
            reason=f"accepted_tokens {accepted} of {drafted} drafts from there on; before, drafts were kept",
        )
    return tuple(found.values())


def _find_loss(turns: Sequence[TurnRecord]) -> int | None:
    """Return the first turn from which on almost no draft was kept to the end; None if there is none."""
    drafted = accepted = 0
    start = None
    for index in range(len(turns) - 1, 0, -1):
        drafted += turns[index].drafted_tokens or 0
        accepted += turns[index].accepted_tokens or 0
        if accepted >= MIN_ACCEPTANCE_RATE * max(1, drafted):
            break
        enough = drafted >= MIN_LATE_DRAFTED_TOKENS and len(turns) - index >= MIN_LATE_TURNS
        start = index if enough else start
    return start
