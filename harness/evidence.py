"""Gathers what is known of each difference: from the cells of the plan, and from the probes that were run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.cases import Case, Records, common_bytes, score_arm, shorten_turn, sweep_depths, undraft_arm
from harness.contrasts import CheckedContrast, unrepeated_arms, unsteady_arms
from harness.expectations import expect_answer, is_cut
from harness.findings import DepthOutcome, Evidence, Noise, Rerun, Score, Side, TurnEnd
from harness.identity import DRAFT_FIELDS, show_bytes
from harness.margins import measure_noise, pick_own_margins, read_token_margins
from harness.plan import Arm, CellSpec, Plan, ProbeKind
from harness.streams import describe_incomplete
from harness.transcript import TurnRecord

RERUNS: tuple[ProbeKind, ...] = ("cold", "replay", "again")

# Shown of what a scored prefix goes on with.
SCORE_BYTES = 24


def gather_evidence(plan: Plan, case: Case, checked: Sequence[CheckedContrast], latest: Records) -> Evidence:
    """Put together what is known of one difference."""
    selves = {item.result.contrast.a: item for item in checked if item.result.contrast.kind == "self"}
    cold, replay, again = (compare_rerun(case, kind, latest) for kind in RERUNS)
    exact = cold if case.typed else None
    cold = None if case.typed else cold
    unrepeated = _name(unrepeated_arms(case.contrast, case.found, selves))
    shown_by = reproducing_kind(cold, replay)
    related = case.contrast.kind in ("within", "slots") or case.prefix_moved
    if related and again is not None and again.outcome == "same":
        shown_by = shown_by or "again"
    margins = _read_margins(case, shown_by, latest) if shown_by else _Margins()
    return Evidence(
        kind=case.contrast.kind,
        a=case.contrast.a,
        b=case.contrast.b,
        differences=case.found.differences,
        policy=plan.near_tie,
        tie_gap=plan.tie_gap,
        cap_tokens=case.turn.max_tokens,
        end_a=_end(case.a),
        end_b=_end(case.b),
        unsteady=_name(unsteady_arms(case.contrast, selves)),
        unrepeated=unrepeated,
        prompts_equal=_compare_prompts(case),
        prefix_moved=case.prefix_moved,
        stream=_check_stream(case),
        shorter=_find_shorter(case.a.text, case.b.text),
        cold=cold,
        exact=exact,
        replay=replay,
        again=again,
        gap_a=margins.gap_a,
        gap_b=margins.gap_b,
        alike=margins.alike,
        swapped=margins.swapped,
        noise=margins.noise,
        gap_cold=_read_cold_gap(case, latest),
        cold_noise=_measure_cold_noise(case, latest) if cold and cold.outcome == "none" else None,
        by_drafts=_only_with_drafts(case, checked) or _keeps_undrafted(case, latest),
        undrafted_unknown=_is_undrafted_unknown(case, latest),
        same_undrafted=tuple(_list_same_undrafted(case, latest)),
        other_blocks=_has_other_blocks(case, checked),
        sampled=plan.scenario(case.found.scenario).temperature > 0,
        depths=_read_depths(plan, case, latest),
        score=_read_score(case, latest),
        missing=tuple(_list_missing(plan, case, latest, cold, replay, seen_once=bool(unrepeated))),
    )


def _name(arms: Iterable[Arm]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(arm.label for arm in arms))


def _only_with_drafts(case: Case, checked: Iterable[CheckedContrast]) -> bool:
    """Say whether the arm without drafts was seen to keep the relation that this arm breaks."""
    arm = case.contrast.a
    if case.contrast.kind != "within" or not arm.depth:
        return False
    undrafted = replace(arm, depth=0)
    return any(
        (pair.cell_a.scenario, pair.a.conversation, pair.a.turn) == case.place
        for item in checked
        if item.result.contrast.kind == "within" and item.result.contrast.a == undrafted
        for pair in item.identical
    )


def _has_other_blocks(case: Case, checked: Iterable[CheckedContrast]) -> bool:
    """Say whether two builds were seen to draft otherwise where their texts are the same."""
    if case.contrast.kind != "build" or not case.contrast.a.depth:
        return False
    return any(
        not found.in_tokens and any(difference.field in DRAFT_FIELDS for difference in found.differences)
        for item in checked
        if item.result.contrast == case.contrast
        for found in item.result.found
    )


def _list_same_undrafted(case: Case, latest: Records) -> Iterable[str]:
    """Yield the labels of the arms that have no drafts, or whose path gives their answer without too."""
    for arm, turn in ((case.contrast.a, case.a), (case.contrast.b, case.b)):
        cell = CellSpec(arm=replace(arm, depth=0), scenario=case.found.scenario, repetition=0)
        turns = latest[cell].turns if cell in latest else ()
        answers = [own.text for own in turns if (own.conversation, own.turn) == case.place[1:]]
        if not arm.depth or turn.text in answers:
            yield arm.label


def _keeps_undrafted(case: Case, latest: Records) -> bool:
    """Say whether the arm without drafts, asked for this, answers as the scenario says."""
    spec = case.spec(undraft_arm(case), "undrafted")
    answer = _answer_of(latest, spec)
    if case.relation is None or answer is None:
        return False
    turns = {(turn.conversation, turn.turn): turn for turn in latest[spec].turns}
    expected = expect_answer(case.relation, turns)
    return expected is not None and _agree(answer, expected, shorten_turn(case).max_tokens)


def _is_undrafted_unknown(case: Case, latest: Records) -> bool:
    """Say whether neither the cell of the arm without drafts nor a probe shows what it answers here."""
    if case.contrast.kind != "within" or not case.contrast.a.depth:
        return False
    arm = undraft_arm(case)
    cell = CellSpec(arm=arm, scenario=case.found.scenario, repetition=0)
    return cell not in latest and case.spec(arm, "undrafted") not in latest


def _end(turn: TurnRecord) -> TurnEnd:
    return TurnEnd(finish=turn.finish, emitted_tokens=turn.emitted_tokens, cached_tokens=turn.cached_tokens)


def _compare_prompts(case: Case) -> bool | None:
    """Say whether both sides were asked the same; None where one of them typed a line."""
    if "line" in (case.a.entry, case.b.entry):
        return None
    return case.relation is not None or case.a.prompt == case.b.prompt


def _check_stream(case: Case) -> str:
    sides = (
        describe_incomplete(case.contrast.a.label, case.a, case.b, case.lengths_b),
        describe_incomplete(case.contrast.b.label, case.b, case.a, case.lengths_a),
    )
    return " and ".join(filter(None, sides))


def _find_shorter(a: bytes, b: bytes) -> Side | None:
    if a == b:
        return None
    return "a" if b.startswith(a) else "b" if a.startswith(b) else None


def _answer_of(latest: Records, spec: CellSpec) -> TurnRecord | None:
    """Return the turn that a probe was run for: the last one of its conversation."""
    record = latest.get(spec)
    if record is None or record.failure is not None or spec.probe is None:
        return None
    own = [turn for turn in record.turns if turn.conversation == spec.probe.conversation]
    return own[-1] if own else None


def _sides_of(case: Case, kind: ProbeKind, latest: Records) -> tuple[TurnRecord, TurnRecord] | None:
    """Return what both sides answered when run again; None when they were not, or did not answer.

    Turns of one cell are in one probe: the turn, and what its cell makes the scenario ask for. When cold both
    are one turn.
    """
    spec_a, spec_b = (case.spec(arm, kind) for arm in (case.probed_a, case.probed_b))
    a = case.a if case.recorded_a else _answer_of(latest, spec_a)
    b = _answer_of(latest, spec_b)
    if case.relation is not None and a is not None and kind != "cold":
        turns = {(turn.conversation, turn.turn): turn for turn in latest[spec_a].turns}
        b = expect_answer(case.relation, turns)
    return None if a is None or b is None else (a, b)


def compare_rerun(case: Case, kind: ProbeKind, latest: Records) -> Rerun | None:
    """Return what running both arms again showed; None when the probes of that kind were not run."""
    sides = _sides_of(case, kind, latest)
    if sides is None:
        return None
    a, b = sides
    cap_tokens = shorten_turn(case).max_tokens
    first = _first_difference(a.text, b.text)
    expected = _first_difference(case.a.text, case.b.text)
    if case.relation is not None:
        first = None if _agree(a, b, cap_tokens) else first
        expected = None if _agree(case.a, case.b, case.turn.max_tokens) else expected
    same = first == expected
    if expected is None:
        same = first is None and (a.finish, b.finish) == (case.a.finish, case.b.finish)
    if case.relation is not None and kind == "cold":
        same = False
    agree = _repeats if case.relation is None else _agree
    return Rerun(
        outcome="same" if same else "none" if first is None else "elsewhere",
        repeats_a=agree(a, case.a, cap_tokens),
        repeats_b=agree(b, case.b, cap_tokens),
    )


def _first_difference(a: bytes, b: bytes) -> int | None:
    return None if a == b else common_bytes(a, b)


def _repeats(again: TurnRecord, first: TurnRecord, cap_tokens: int) -> bool:
    """Say whether an answer is the first one again, as far as its cap or the first one's cancel let it go."""
    if first.finish == "cancelled" and again.text.startswith(first.text):
        return True
    if is_cut(again, cap_tokens):
        return first.text.startswith(again.text)
    return again.text == first.text


def _agree(a: TurnRecord, b: TurnRecord, cap_tokens: int) -> bool:
    """Say whether two answers are the same as far as their caps, which may differ, let them go.

    ``cap_tokens`` is that of ``a``; what a scenario asks for says itself that its cap ended it.
    """
    shorter, longer = sorted((a, b), key=lambda turn: len(turn.text))
    cut = is_cut(a, cap_tokens) if shorter is a else shorter.finish == "length"
    return shorter.text == longer.text or (cut and longer.text.startswith(shorter.text))


def reproducing_kind(cold: Rerun | None, replay: Rerun | None) -> ProbeKind | None:
    """Return the probes that show the difference again: the cold ones, else the replayed ones."""
    if cold is not None and cold.outcome == "same":
        return "cold"
    return "replay" if replay is not None and replay.outcome == "same" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Margins:
    gap_a: float | None = None
    gap_b: float | None = None
    alike: bool | None = None
    swapped: bool | None = None
    noise: Noise | None = None


def _read_margins(case: Case, kind: ProbeKind, latest: Records) -> _Margins:
    """Return what the engine said of the first choice that differs, and of those before it."""
    sides = _sides_of(case, kind, latest)
    if sides is None:
        return _Margins()
    a, b = map(read_token_margins, sides)
    index = case.token_index
    if sides[1].shared_margins is not None and a and index is not None:
        # Where its lines do not show that the two candidates changed places, they are of no use.
        b = pick_own_margins(a, sides[1].shared_margins, index) or None
    if a and b:
        # The choices themselves show which token is the first that differs, also where no boundaries are
        # known, or those of one side only: a token of the other may begin before the first other byte.
        pairs = enumerate(zip(a[:index], b[:index], strict=False))
        index = next((i for i, (left, right) in pairs if left.best != right.best), index)
    if index is None:
        return _Margins()
    hidden = sides[1].shared_margins is not None and b is None
    at_a = a[index] if a and index < len(a) else None
    at_b = b[index] if b and index < len(b) else None
    both = at_a is not None and at_b is not None
    return _Margins(
        gap_a=at_a.gap if at_a else None,
        gap_b=at_b.gap if at_b else None,
        alike=at_a.best == at_b.best if at_a and at_b else None,
        swapped=(
            (at_a.best, at_a.second) == (at_b.second, at_b.best)
            if at_a and at_b
            else False
            if hidden
            else None
        ),
        noise=measure_noise(a[:index], b[:index]) if both and a and b else None,
    )


def _measure_cold_noise(case: Case, latest: Records) -> Noise | None:
    if case.contrast.kind in ("within", "slots"):
        return None
    sides = _sides_of(case, "cold", latest)
    a, b = map(read_token_margins, sides) if sides else (None, None)
    return measure_noise(a, b) if a and b and len(a) == len(b) else None


def _read_cold_gap(case: Case, latest: Records) -> float | None:
    """Return the margin of the cold turn where the two answers part, for turns of one cell and for slots.

    It is that of the turn alone, without a prefix or a neighbour, behind the text that both have in common.
    """
    answer = _answer_of(latest, case.spec(case.probed_a, "cold"))
    margins, index = read_token_margins(answer), case.token_index
    if case.contrast.kind not in ("within", "slots") or answer is None or margins is None or index is None:
        return None
    common = case.a.text[: case.prefix_bytes]
    return margins[index].gap if answer.text.startswith(common) and index < len(margins) else None


def _read_depths(plan: Plan, case: Case, latest: Records) -> tuple[DepthOutcome, ...]:
    """Return where the first difference from the undrafted answer is at other depths.

    Only a contrast between depths or builds asks that, and another could read its probes for its own.
    """
    if case.contrast.kind not in ("speculation", "build"):
        return ()
    outcomes = []
    for depth in sweep_depths(plan, case.contrast.b.depth):
        arm = replace(case.probed_b, depth=depth)
        answer = _answer_of(latest, case.spec(arm, "depth"))
        if answer is not None:
            outcomes.append(_judge_depth(case, depth, answer))
    return tuple(outcomes)


def _judge_depth(case: Case, depth: int, answer: TurnRecord) -> DepthOutcome:
    expected = common_bytes(case.a.text, case.b.text)
    if _repeats(answer, case.a, shorten_turn(case).max_tokens):
        return DepthOutcome(depth=depth, outcome="none", byte_offset=None)
    offset = common_bytes(case.a.text, answer.text)
    end = min(len(answer.text), len(case.b.text))
    same = offset == expected and answer.text[:end] == case.b.text[:end]
    # The answers may part again behind the place that is looked at; one more token there is enough.
    same = same or (offset == expected and answer.text[: expected + 1] == case.b.text[: expected + 1])
    return DepthOutcome(depth=depth, outcome="same" if same else "elsewhere", byte_offset=offset)


def _read_score(case: Case, latest: Records) -> Score | None:
    answer = _answer_of(latest, case.spec(score_arm(case), "score"))
    if answer is None:
        return None
    rests: tuple[tuple[Side, bytes], ...] = (
        ("a", case.a.text[case.prefix_bytes :]),
        ("b", case.b.text[case.prefix_bytes :]),
    )
    agrees = [side for side, rest in rests if (rest.startswith(answer.text) if answer.text else not rest)]
    gap = answer.margins[0].gap if answer.margins else None
    shown = show_bytes(answer.text[:SCORE_BYTES]) if answer.text else "the end of the answer"
    return Score(agrees=agrees[0] if len(agrees) == 1 else None, shown=shown, gap=gap)


def _list_missing(
    plan: Plan,
    case: Case,
    latest: Records,
    cold: Rerun | None,
    replay: Rerun | None,
    *,
    seen_once: bool,
) -> Iterable[ProbeKind]:
    """Yield the probes that were not tried, in the order in which they are worth their tokens.

    A turn is first asked again alone. Its whole conversation is replayed only where that does not show the
    difference, or where a typed line cannot be asked alone; and all that ran before it only where that does
    not show it either and an arm was not repeated.
    """
    if case.contrast.kind in ("within", "slots"):
        yield from _list_missing_reruns(plan, case, latest, cold, replay, seen_once=seen_once)
        return
    yield from _list_missing_repeats(case, latest, cold, replay, seen_once=seen_once)
    if case.a.text == case.b.text:
        return
    if _can_ask_exactly(case, replay) and not _was_tried(case, "cold", latest):
        yield "cold"
    if case.contrast.kind in ("speculation", "build") and reproducing_kind(cold, replay):
        depths = [replace(case.probed_b, depth=d) for d in sweep_depths(plan, case.contrast.b.depth)]
        if any(case.spec(arm, "depth") not in latest for arm in depths):
            yield "depth"
    if _can_score(plan, case) and case.spec(score_arm(case), "score") not in latest:
        yield "score"


def _list_missing_repeats(
    case: Case, latest: Records, cold: Rerun | None, replay: Rerun | None, *, seen_once: bool
) -> Iterable[ProbeKind]:
    if not case.typed and not _was_tried(case, "cold", latest):
        yield "cold"
    gone = case.typed or (cold is not None and cold.outcome != "same")
    if gone and (case.typed or case.found.turn > 0) and not _was_tried(case, "replay", latest):
        yield "replay"
    alone: list[ProbeKind] = [] if case.typed else ["cold"]
    if gone and (case.typed or case.found.turn > 0):
        alone.append("replay")
    tried_alone = all(_was_tried(case, kind, latest) for kind in alone)
    hidden = (seen_once or case.prefix_moved) and tried_alone and not reproducing_kind(cold, replay)
    if hidden and not _was_tried(case, "again", latest):
        yield "again"


def _can_ask_exactly(case: Case, replay: Rerun | None) -> bool:
    """Say whether an exact prompt can stand for the typed line, and nothing else ran before it."""
    first = case.found.turn == 0 and replay is not None and replay.outcome == "same"
    return case.typed and first and case.contrast.kind == "path" and case.exact_prompt is not None


def _list_missing_reruns(
    plan: Plan, case: Case, latest: Records, cold: Rerun | None, replay: Rerun | None, *, seen_once: bool
) -> Iterable[ProbeKind]:
    """Yield the probes of turns of one cell, or of several slots, that were not tried.

    The cold turn gives the margin, and so convicts what rounding cannot explain. Only the replay shows both
    sides of the difference with their margins. Other depths say nothing here.
    """
    in_tokens = case.found.in_tokens
    asked_cold, replayed, asked_again = (_was_tried(case, kind, latest) for kind in RERUNS)
    if in_tokens and not case.typed and not asked_cold:
        yield "cold"
    if (in_tokens or seen_once) and not replayed:
        yield "replay"
    if (in_tokens or seen_once) and replayed and not reproducing_kind(cold, replay) and not asked_again:
        yield "again"
    lacks_margin = in_tokens and asked_cold and _read_cold_gap(case, latest) is None
    if lacks_margin and _can_score(plan, case) and case.spec(score_arm(case), "score") not in latest:
        yield "score"


def _was_tried(case: Case, kind: ProbeKind, latest: Records) -> bool:
    return all(case.spec(arm, kind) in latest for arm in case.asked)


def _can_score(plan: Plan, case: Case) -> bool:
    # A grammar that binds would begin anew behind the common part and force another token.
    grammar = plan.scenario(case.found.scenario).grammar
    return not case.typed and not (grammar is not None and grammar.binds)
