"""Gathers what is known of each difference: from the cells of the plan, and from the probes that were run."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.cases import Case, Records, common_bytes, score_arm, sweep_depths
from harness.contrasts import CheckedContrast, unrepeated_arms, unsteady_arms
from harness.findings import DepthOutcome, Evidence, Noise, Rerun, Score, Side, TurnEnd
from harness.identity import show_bytes
from harness.plan import CellSpec, Plan, ProbeKind
from harness.streams import describe_incomplete
from harness.transcript import Margin, TurnRecord

RERUNS: tuple[ProbeKind, ...] = ("cold", "replay", "again")

# Shown of what a scored prefix goes on with.
SCORE_BYTES = 24


def gather_evidence(plan: Plan, case: Case, checked: Sequence[CheckedContrast], latest: Records) -> Evidence:
    """Put together what is known of one difference."""
    selves = {item.result.contrast.a: item for item in checked if item.result.contrast.kind == "self"}
    cold, replay, again = (compare_rerun(case, kind, latest) for kind in RERUNS)
    unrepeated = tuple(arm.label for arm in unrepeated_arms(case.contrast, case.found, selves))
    shown_by = reproducing_kind(cold, replay)
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
        unsteady=tuple(arm.label for arm in unsteady_arms(case.contrast, selves)),
        unrepeated=unrepeated,
        prompts_equal=None if case.typed else case.a.prompt == case.b.prompt,
        stream=_check_stream(case),
        shorter=_find_shorter(case.a.text, case.b.text),
        cold=cold,
        replay=replay,
        again=again,
        gap_a=margins.gap_a,
        gap_b=margins.gap_b,
        alike=margins.alike,
        swapped=margins.swapped,
        noise=margins.noise,
        cold_noise=_measure_cold_noise(case, latest) if cold and cold.outcome == "none" else None,
        depths=_read_depths(plan, case, latest),
        score=_read_score(case, latest),
        missing=tuple(_list_missing(plan, case, latest, cold, replay, seen_once=bool(unrepeated))),
    )


def _end(turn: TurnRecord) -> TurnEnd:
    return TurnEnd(finish=turn.finish, emitted_tokens=turn.emitted_tokens, cached_tokens=turn.cached_tokens)


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
    """Return the turn that a probe was run for: its last one."""
    record = latest.get(spec)
    if record is None or record.failure is not None or not record.turns:
        return None
    return record.turns[-1]


def compare_rerun(case: Case, kind: ProbeKind, latest: Records) -> Rerun | None:
    """Return what running both arms again showed; None when the probes of that kind were not run."""
    a = case.a if case.recorded_a else _answer_of(latest, case.spec(case.probed_a, kind))
    b = _answer_of(latest, case.spec(case.probed_b, kind))
    if a is None or b is None:
        return None
    first = _first_difference(a.text, b.text)
    expected = _first_difference(case.a.text, case.b.text)
    same = first == expected
    if expected is None:
        same = first is None and (a.finish, b.finish) == (case.a.finish, case.b.finish)
    return Rerun(
        outcome="same" if same else "none" if first is None else "elsewhere",
        repeats_a=_repeats(a, case.a),
        repeats_b=_repeats(b, case.b),
    )


def _first_difference(a: bytes, b: bytes) -> int | None:
    return None if a == b else common_bytes(a, b)


def _repeats(again: TurnRecord, first: TurnRecord) -> bool:
    """Say whether an answer is the first one again, as far as its cap let it go."""
    if again.finish == "length":
        return first.text.startswith(again.text)
    return again.text == first.text


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
    a = _margins_of(_answer_of(latest, case.spec(case.probed_a, kind)))
    b = _margins_of(_answer_of(latest, case.spec(case.probed_b, kind)))
    index = case.token_index
    if index is None and a and b:
        # Without boundaries the choices themselves show which token is the first that differs.
        pairs = enumerate(zip(a, b, strict=False))
        index = next((i for i, (left, right) in pairs if left.best != right.best), None)
    if index is None:
        return _Margins()
    at_a = a[index] if a and index < len(a) else None
    at_b = b[index] if b and index < len(b) else None
    both = at_a is not None and at_b is not None
    return _Margins(
        gap_a=at_a.gap if at_a else None,
        gap_b=at_b.gap if at_b else None,
        alike=at_a.best == at_b.best if at_a and at_b else None,
        swapped=(at_a.best, at_a.second) == (at_b.second, at_b.best) if at_a and at_b else None,
        noise=_measure_noise(a[:index], b[:index]) if both and a and b else None,
    )


def _measure_cold_noise(case: Case, latest: Records) -> Noise | None:
    a = _margins_of(_answer_of(latest, case.spec(case.probed_a, "cold")))
    b = _margins_of(_answer_of(latest, case.spec(case.probed_b, "cold")))
    return _measure_noise(a, b) if a and b and len(a) == len(b) else None


def _margins_of(turn: TurnRecord | None) -> tuple[Margin, ...] | None:
    return None if turn is None else match_margins(turn)


def match_margins(turn: TurnRecord) -> tuple[Margin, ...] | None:
    """Return one margin for each token, or None when they cannot be told apart.

    An engine that prints one line for each forward gives fewer lines than tokens with speculation on. Lines
    and tokens match when there is a line for each token, and one more for a stop token that was chosen.
    """
    if turn.margins is None or turn.emitted_tokens is None:
        return None
    extra = len(turn.margins) - turn.emitted_tokens
    return turn.margins if extra == 0 or (extra == 1 and turn.finish != "length") else None


def _measure_noise(a: Sequence[Margin], b: Sequence[Margin]) -> Noise | None:
    apart = [abs(left.gap - right.gap) for left, right in zip(a, b, strict=True)]
    if not apart:
        return None
    return Noise(tokens=len(apart), median=statistics.median(apart), largest=max(apart))


def _read_depths(plan: Plan, case: Case, latest: Records) -> tuple[DepthOutcome, ...]:
    """Return where the first difference from the undrafted answer is at other depths."""
    outcomes = []
    for depth in sweep_depths(plan, case.contrast.b.depth):
        arm = replace(case.probed_b, depth=depth)
        answer = _answer_of(latest, case.spec(arm, "depth"))
        if answer is not None:
            outcomes.append(_judge_depth(case, depth, answer))
    return tuple(outcomes)


def _judge_depth(case: Case, depth: int, answer: TurnRecord) -> DepthOutcome:
    expected = common_bytes(case.a.text, case.b.text)
    if _repeats(answer, case.a):
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
    tried = {spec for spec in latest if spec.probe is not None}
    if not case.typed and case.spec(case.asked[0], "cold") not in tried:
        yield "cold"
    gone = case.typed or (cold is not None and cold.outcome != "same")
    if gone and (case.typed or case.found.turn > 0) and case.spec(case.asked[0], "replay") not in tried:
        yield "replay"
    alone: list[ProbeKind] = [] if case.typed else ["cold"]
    if gone and (case.typed or case.found.turn > 0):
        alone.append("replay")
    tried_alone = all(case.spec(case.asked[0], kind) in tried for kind in alone)
    hidden = seen_once and tried_alone and not reproducing_kind(cold, replay)
    if hidden and case.spec(case.asked[0], "again") not in tried:
        yield "again"
    if case.a.text == case.b.text:
        return
    if case.contrast.kind in ("speculation", "build") and reproducing_kind(cold, replay):
        depths = [replace(case.probed_b, depth=d) for d in sweep_depths(plan, case.contrast.b.depth)]
        if any(case.spec(arm, "depth") not in tried for arm in depths):
            yield "depth"
    # A grammar that binds would begin anew behind the common part and force another token.
    grammar = plan.scenario(case.found.scenario).grammar
    forced = grammar is not None and grammar.binds
    if not case.typed and not forced and case.spec(score_arm(case), "score") not in tried:
        yield "score"
