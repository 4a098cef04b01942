"""Names a difference: a table of rules, read from the top, and the first one that applies decides.

``docs/verdicts.md`` explains each class in prose.
"""

from collections.abc import Callable

from harness.findings import Decision, Effect, Evidence, TurnEnd, VerdictClass
from harness.plan import Arm, ProbeKind

# Above this, no rounding that we know of explains a flip: 8-bit activations were measured to move two logits
# against each other by up to 0.2 where they flipped a choice.
NUMERICS_GAP = 0.5
# Margins may agree to the last digit by chance over fewer tokens.
MIN_QUIET_TOKENS = 8

# Turns of one cell, and one slot against several: what differs is not the depth, so no other one is asked.
RELATED = ("within", "slots")

Rule = Callable[[Evidence], Decision | None]


def decide(evidence: Evidence) -> tuple[str, Decision]:
    """Return the name of the first rule that applies, and its decision."""
    for name, rule in RULES:
        decision = rule(evidence)
        if decision is not None:
            return name, decision
    raise AssertionError("the last rule always applies")


def describe(evidence: Evidence) -> tuple[str, ...]:
    """Return what was gathered, one sentence each, whatever was decided."""
    return tuple(sentence for tell in _FACTS for sentence in tell(evidence))


# Preconditions


def _cell_failed(e: Evidence) -> Decision | None:
    return Decision(verdict_class="failed", effect="fail", reason=e.failed) if e.failed else None


def _arm_is_void(e: Evidence) -> Decision | None:
    return Decision(verdict_class="void", effect="open", reason=e.void) if e.void else None


def _arm_is_unsteady(e: Evidence) -> Decision | None:
    if not e.unsteady:
        return None
    names = " and ".join(e.unsteady)
    return _decision("nondeterministic", "open", f"{names} does not give its own answer again")


def _seen_once(e: Evidence) -> Decision | None:
    """Refuse to conclude from one run of an arm, unless running it again showed the same."""
    reruns = [rerun for rerun in (e.cold, e.replay, e.again) if rerun]
    if not e.differences or not e.unrepeated or any(r.repeats_a and r.repeats_b for r in reruns):
        return None
    names = " and ".join(e.unrepeated)
    reason = f"{names} was not repeated: it cannot be told from nondeterminism (run with --repetitions 2)"
    return Decision(verdict_class="unproven", effect="open", reason=reason, wanted=e.missing)


def _draws_differ(e: Evidence) -> Decision | None:
    """Name turns of one cell that drew other answers, though the seed and the prompt are the same."""
    if e.kind != "within" or not e.sampled or not e.field("tokens"):
        return None
    reason = f"{e.a.label} does not draw one answer again in one process, from one seed and one prompt"
    return _decision("nondeterministic", "open", reason)


def _was_not_refused(e: Evidence) -> Decision | None:
    finish = e.field("finish_reason")
    if e.kind != "within" or finish is None or finish.b != "refused":
        return None
    return _decision("prompt-mismatch", "fail", "a prompt that must be refused was answered")


def _prompts_differ(e: Evidence) -> Decision | None:
    if e.prompts_equal is False:
        return _decision("prompt-mismatch", "fail", "the two arms were not sent the same prompt")
    counts = e.field("prompt_tokens") or (e.field("prefill_tokens") if e.prompts_equal is None else None)
    if counts is None:
        return None
    said = f"{e.a.label} reads it as {counts.a} tokens, {e.b.label} as {counts.b}"
    return _decision("prompt-mismatch", "fail", f"the same prompt is not the same tokens: {said}")


def _is_typed_otherwise(e: Evidence) -> Decision | None:
    """Blame the template for a typed line, if the exact prompt is answered alike and nothing ran before."""
    if e.prompts_equal is not None or not e.field("tokens"):
        return None
    if "cold" in e.missing:
        reason = "whether the exact prompt is answered alike was not tried"
        return Decision(verdict_class="unproven", effect="open", reason=reason, wanted=("cold",))
    if e.exact is None or e.exact.outcome != "none" or e.exact.repeats_a == e.exact.repeats_b:
        return None
    name = e.b if e.exact.repeats_a else e.a
    reason = f"{name.label} answers a typed line otherwise than the prompt that it stands for"
    return _decision("prompt-mismatch", "fail", reason)


# Differing text


def _stream_is_incomplete(e: Evidence) -> Decision | None:
    """Blame the stream for a text that differs, when it does not hold the tokens that were counted."""
    if not e.stream or not e.field("tokens"):
        return None
    return _decision("counters", "fail", f"the stream is not what was generated: {e.stream}")


def _is_near_tie(e: Evidence) -> Decision | None:
    """Explain a flip between depths or builds: its margin is one of rounding, and its place stays."""
    if e.kind not in ("speculation", "build") or not e.field("tokens") or not _is_tie(e) or not e.stays_put:
        return None
    return _explain(e, "the difference stays at its place from depth to depth")


def _is_flipped_tie(e: Evidence) -> Decision | None:
    """Explain a flip within a cell or beside another request by a margin that rounding can bridge.

    There is no depth to sweep. In its place stands that both sides have the same two candidates there, and
    margins before that agree as a sound state's do.
    """
    if not _may_round_otherwise(e) or not e.field("tokens") or not _is_tie(e):
        return None
    if not e.swapped or not _agrees_before(e):
        return None
    return _explain(
        e, "both sides have the same two" + (", and agree on the tokens before" if e.noise else "")
    )


def _may_round_otherwise(e: Evidence) -> bool:
    """Say whether the two sides were computed in another chunking, or beside other rows, by design."""
    return e.kind in RELATED or e.prefix_moved


def _explain(e: Evidence, shown: str) -> Decision:
    effect: Effect = "explained" if e.policy == "explain" else "fail"
    reason = f"the two candidates are {_gap(e.gap)} apart, at most {e.tie_gap:g} is a tie, and {shown}"
    return Decision(verdict_class="near-tie", effect=effect, reason=reason)


def _agrees_before(e: Evidence) -> bool:
    return e.noise is None or e.noise.largest <= e.tie_gap


def _is_tie(e: Evidence) -> bool:
    return e.gap is not None and e.gap <= e.tie_gap


def _ends_elsewhere(e: Evidence) -> Decision | None:
    if e.shorter is None or not e.field("tokens"):
        return None
    end, other = (e.end_a, e.end_b) if e.shorter == "a" else (e.end_b, e.end_a)
    name, longer = (e.a, e.b) if e.shorter == "a" else (e.b, e.a)
    if end.finish == "stop" and e.score is not None and e.score.agrees not in (None, e.shorter):
        return None  # no stop was due there, so it was a wrong choice and not a wrong end
    if end.finish == "stop" and (e.alike is False or (e.kind in RELATED and not e.alike)):
        return None  # one side chose the stop and the other did not: a choice again
    told = f"{name.label} ends with {end.finish} where {longer.label} goes on"
    if other.emitted_tokens is not None and other.emitted_tokens > e.cap_tokens:
        told += f", {other.emitted_tokens - e.cap_tokens} tokens over the cap of {e.cap_tokens}"
    known = end.finish != "stop" or e.kind == "path" or e.score is not None
    known = known or (e.gap is not None and e.gap > e.tie_gap)
    return Decision(
        verdict_class="stop-or-cap",
        effect="fail" if known else "open",
        reason=told,
        wanted=() if e.score else e.missing,
    )


def _needs_the_cache(e: Evidence) -> Decision | None:
    """Blame the reused prefix for a difference that its own conversation brings back and a cold prompt does
    not. Where drafts alone make the difference, they left something in that prefix: that is state.
    """
    cached = [end.cached_tokens for end in (e.end_a, e.end_b) if end.cached_tokens]
    brought_back = e.replay is not None and e.replay.outcome == "same"
    if not _gone_when_cold(e) or not cached or not brought_back:
        return None
    by_drafts = e.kind == "speculation" and e.cold is not None and e.cold.repeats_a
    counts = " and ".join(map(str, dict.fromkeys(cached)))
    reason = (
        f"{_name_changed(e)} answers otherwise when the prompt is cold; {counts} prompt tokens were cached"
    )
    return _decision("state" if by_drafts else "prefix-reuse", "fail", reason)


def _needs_what_ran_before(e: Evidence) -> Decision | None:
    if not _gone_when_cold(e) or "replay" in e.missing or (e.prefix_moved and "again" in e.missing):
        return None
    # Without drafts nothing is left in a context but what prompts and answers put there.
    undrafted = [end for arm, end in _changed_sides(e) if arm.label in e.same_undrafted and end.cached_tokens]
    by_prefix = bool(undrafted) or (e.prefix_moved and not e.a.depth)
    reason = f"{_name_changed(e)} answers otherwise as the first request of a process"
    if undrafted:
        counts = " and ".join(dict.fromkeys(str(end.cached_tokens) for end in undrafted))
        reason += f"; {counts} prompt tokens were cached, also without drafts"
    return _decision("prefix-reuse" if by_prefix else "state", "fail", reason)


def _gone_when_cold(e: Evidence) -> bool:
    """Say whether an arm answers otherwise in a fresh process, by more than rounding can explain.

    Rounding explains no gap where the two arms, cold, give the same margins to the last digit.
    """
    if not e.field("tokens") or e.kind in RELATED or e.cold is None or e.cold.outcome == "same":
        return False
    if e.cold.repeats_a and e.cold.repeats_b:
        return False
    noise = e.cold_noise
    quiet = noise is not None and noise.largest == 0 and noise.tokens >= MIN_QUIET_TOKENS
    return e.gap is None or e.gap > NUMERICS_GAP or (quiet and e.gap > e.tie_gap)


def _changed_sides(e: Evidence) -> list[tuple[Arm, TurnEnd]]:
    """Return the arms that answer otherwise when cold, each with how its own turn ended."""
    sides = ((e.a, e.end_a, e.cold and e.cold.repeats_a), (e.b, e.end_b, e.cold and e.cold.repeats_b))
    return [(arm, end) for arm, end, same in sides if not same]


def _name_changed(e: Evidence) -> str:
    return " and ".join(arm.label for arm, _ in _changed_sides(e))


def _moves_with_depth(e: Evidence) -> Decision | None:
    # A tie that moves may be two ties; it stays open.
    if not e.field("tokens") or not e.moves or _is_tie(e) or _may_round_by_block(e):
        return None
    return _decision("state", "fail", "the first difference moves with the draft depth, as rounding does not")


def _may_round_by_block(e: Evidence) -> bool:
    """Say whether two builds may round otherwise because other drafts make up their forwards."""
    return e.other_blocks and (e.gap is None or e.gap <= NUMERICS_GAP)


def _too_far_apart(e: Evidence) -> Decision | None:
    gap = e.gap
    if gap is None and e.score is not None and e.score.agrees is not None:
        gap = e.score.gap
    if not e.field("tokens") or e.kind in RELATED or gap is None or gap <= NUMERICS_GAP:
        return None
    reason = f"the candidates are {_gap(gap)} apart; rounding explains at most {NUMERICS_GAP:g}"
    return _decision("state", "fail", reason)


def _prefix_or_neighbour_tells(e: Evidence) -> Decision | None:
    """Blame a reused prefix, or a request beside it, for what rounding cannot explain."""
    gaps = (e.gap, e.gap_cold, e.score.gap if e.score else None)
    gap = max((known for known in gaps if known is not None), default=0.0)
    if not e.field("tokens") or e.kind not in RELATED or gap <= NUMERICS_GAP:
        return None
    apart = f"the candidates are {_gap(gap)} apart; rounding explains at most {NUMERICS_GAP:g}"
    if e.kind == "slots" and e.cold is None and "cold" in e.missing:
        return None  # without it a neighbour cannot be told from a prefix
    if e.kind == "slots" and not _is_changed_by_prefix(e):
        return _decision("state", "fail", f"{e.b.label} answers otherwise beside another request: {apart}")
    if e.by_drafts:
        reason = f"{e.a.label} answers one prompt in two ways, and only with drafts: {apart}"
        return _decision("state", "fail", reason)
    reason = f"{e.a.label} answers one prompt in two ways, with another prefix from the cache: {apart}"
    wanted: tuple[ProbeKind, ...] = ("undrafted",) if e.undrafted_unknown else ()
    return Decision(verdict_class="prefix-reuse", effect="fail", reason=reason, wanted=wanted)


def _is_changed_by_prefix(e: Evidence) -> bool:
    """Say whether already the request alone is answered otherwise without the prefix that it found."""
    return e.cold is not None and not e.cold.repeats_a and bool(e.end_a.cached_tokens)


def _rounds_otherwise(e: Evidence) -> Decision | None:
    """Report a flip that another kernel can explain. It is never acquitted: a fault can be as small."""
    if e.kind not in ("speculation", "build") or not e.field("tokens") or e.gap is None:
        return None
    apart = f"the two candidates are {_gap(e.gap)} apart, more than a tie of {e.tie_gap:g}"
    if e.moves and not _is_tie(e) and _may_round_by_block(e):
        return _leave_open(
            e, f"the builds keep other drafts, so their forwards have other shapes, and {apart}"
        )
    if not e.stays_put:
        return None
    return _leave_open(e, f"the difference stays at its place from depth to depth, but {apart}")


def _flips_no_tie(e: Evidence) -> Decision | None:
    """Report the same within a cell or beside another request."""
    if not _may_round_otherwise(e) or not e.field("tokens") or e.gap is None or e.gap > NUMERICS_GAP:
        return None
    if not _is_tie(e):
        return _leave_open(e, f"the candidates are {_gap(e.gap)} apart, more than a tie of {e.tie_gap:g}")
    if e.swapped and e.noise:
        apart = _gap(e.noise.largest)
        return _leave_open(e, f"the candidates tie, but margins before it are up to {apart} apart")
    return None


def _leave_open(e: Evidence, reason: str) -> Decision:
    effect: Effect = "open" if e.policy == "explain" else "fail"
    reason += ": another kernel family, or a fault as small"
    return Decision(verdict_class="numerics", effect=effect, reason=reason)


def _paths_differ(e: Evidence) -> Decision | None:
    """Fail on any differing text between chat and serve at one depth: no tie is an excuse there."""
    if e.kind != "path" or not e.field("tokens"):
        return None
    if e.gap is not None and e.gap <= NUMERICS_GAP and e.a.depth == 0:
        reason = f"{_gap(e.gap)} apart, so rounding may do it; between the paths it is not allowed to"
        return Decision(verdict_class="numerics", effect="fail", reason=reason, wanted=e.missing)
    reason = "one prompt, one depth, two answers"
    return Decision(verdict_class="state", effect="fail", reason=reason, wanted=e.missing)


def _not_shown(e: Evidence) -> Decision | None:
    if not e.field("tokens"):
        return None
    lacks = [] if e.gap is not None else ["the engine gave no margin"]
    if e.kind in RELATED:
        if e.cold is None and e.replay is None:
            lacks = ["it was not asked again"]
        elif e.replay is not None and e.replay.outcome != "same":
            lacks = ["what ran in a fresh process does not show it"]
        elif e.gap is not None and not e.swapped:
            lacks.append("the two candidates did not just change places")
    elif not e.depths:
        lacks.append("no other depth was tried")
    elif e.moves:
        lacks.append("the first difference moves with the depth")
    elif not e.stays_put:
        lacks.append("no other depth shows it")
    reason = f"neither a fault nor a near-tie is shown: {' and '.join(lacks)}"
    return Decision(verdict_class="unproven", effect="open", reason=reason, wanted=e.missing)


# The same text


def _finishes_otherwise(e: Evidence) -> Decision | None:
    finish = e.field("finish_reason")
    if finish is None:
        return None
    return _decision(
        "finish-reason",
        "fail",
        f"the same text ends with {finish.a} in {_sides(e)[0]} and with {finish.b} in {_sides(e)[1]}",
    )


def _prefix_differs(e: Evidence) -> Decision | None:
    for name in ("cached_tokens", "prefill_tokens"):
        if count := e.field(name):
            said = f"{name} {count.a} in {_sides(e)[0]}, {count.b} in {_sides(e)[1]}"
            return _decision("prefix-reuse", "fail", f"the same prompt was not reused alike: {said}")
    return None


def _counts_differ(e: Evidence) -> Decision | None:
    if not e.differences:
        return None
    a, b = _sides(e)
    said = ", ".join(f"{d.field} {d.a} in {a}, {d.b} in {b}" for d in e.differences)
    return _decision("counters", "fail", f"the same text, but {said}")


def _nothing_differs(_: Evidence) -> Decision:
    return Decision(verdict_class="identical", effect="none", reason="nothing differs")


RULES: tuple[tuple[str, Rule], ...] = (
    ("a cell failed", _cell_failed),
    ("an arm is void", _arm_is_void),
    ("an arm does not equal itself", _arm_is_unsteady),
    ("another draw", _draws_differ),
    ("a refusal is missing", _was_not_refused),
    ("seen once", _seen_once),
    ("the prompts differ", _prompts_differ),
    ("a typed line is another prompt", _is_typed_otherwise),
    ("the stream is incomplete", _stream_is_incomplete),
    ("a tie that stays put", _is_near_tie),
    ("a tie that a prefix or a neighbour flips", _is_flipped_tie),
    ("one answer is the beginning of the other", _ends_elsewhere),
    ("gone without the cached prefix", _needs_the_cache),
    ("gone in a fresh process", _needs_what_ran_before),
    ("moves with the depth", _moves_with_depth),
    ("too far apart for rounding", _too_far_apart),
    ("another prefix or a neighbour tells", _prefix_or_neighbour_tells),
    ("stays put, but is no tie", _rounds_otherwise),
    ("a prefix or a neighbour flips what is no tie", _flips_no_tie),
    ("the paths are strict", _paths_differ),
    ("not shown", _not_shown),
    ("the same text, another finish reason", _finishes_otherwise),
    ("the same text, another prefix", _prefix_differs),
    ("the same text, other counts", _counts_differ),
    ("nothing differs", _nothing_differs),
)
"""The whole order of decisions."""


# What is told of the evidence


def _tell_margin(e: Evidence) -> list[str]:
    sides = zip(_sides(e), (e.gap_a, e.gap_b), strict=True)
    known = [f"{_gap(gap)} in {side}" for side, gap in sides if gap is not None]
    cold = [] if e.gap_cold is None else [f"margin of the turn alone in a fresh process: {_gap(e.gap_cold)}"]
    if not known:
        return cold
    swap = {True: ", the same two candidates in the other order", False: ", other candidates", None: ""}
    return [f"margin between the two best logits: {', '.join(known)}{swap[e.swapped]}", *cold]


def _tell_noise(e: Evidence) -> list[str]:
    if e.noise is None:
        return []
    n = e.noise
    apart = f"{n.median:.2g} in the median, {n.largest:.2g} at most"
    return [f"over the {n.tokens} tokens before, the margins of the two arms are {apart} apart"]


def _tell_reruns(e: Evidence) -> list[str]:
    words = {"same": "shows it again", "none": "does not show it", "elsewhere": "differs at another place"}
    told = []
    if e.cold and e.kind == "within":
        like = "as asked for" if e.cold.repeats_b else "as given" if e.cold.repeats_a else "in a third way"
        told.append(f"the turn alone in a fresh process is answered {like}")
    elif e.cold:
        told.append(f"the turn alone in a fresh process {words[e.cold.outcome]}")
    if e.exact:
        told.append(f"asked as an exact prompt in a fresh process, it {words[e.exact.outcome]}")
    if e.replay:
        beside = "with those beside it" if e.kind == "slots" else "alone"
        told.append(f"its conversation {beside} in a fresh process {words[e.replay.outcome]}")
    if e.again:
        told.append(f"everything up to it in a fresh process {words[e.again.outcome]}")
    return told


def _tell_depths(e: Evidence) -> list[str]:
    if not e.depths:
        return []
    words = {"same": "at the same place", "none": "not at all"}
    said = [f"{item.depth}: {words.get(item.outcome, f'at byte {item.byte_offset}')}" for item in e.depths]
    return [f"first difference at other draft depths: {', '.join(said)}"]


def _tell_score(e: Evidence) -> list[str]:
    if e.score is None:
        return []
    sides = {"a": f"as in {e.a.label}", "b": f"as in {e.b.label}", None: "as in neither arm"}
    gap = "" if e.score.gap is None else f", margin {_gap(e.score.gap)}"
    shown = f"goes on with {e.score.shown}, {sides[e.score.agrees]}{gap}"
    return [f"the common part scored cold without drafts {shown}"]


_FACTS = (_tell_margin, _tell_noise, _tell_reruns, _tell_depths, _tell_score)


def _sides(e: Evidence) -> tuple[str, str]:
    if e.kind == "within":
        return "the answer", "what it must equal"
    return e.a.label, e.b.label


def _decision(verdict_class: VerdictClass, effect: Effect, reason: str) -> Decision:
    return Decision(verdict_class=verdict_class, effect=effect, reason=reason)


def _gap(gap: float | None) -> str:
    return "an unknown gap" if gap is None else f"{gap:.3g}"
