"""The verdict: one status, one sentence, and the reasons, from the evidence alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.comparison import CellFailure, Comparison
from harness.contrasts import ContrastResult, FoundDifference
from harness.identity import Difference
from harness.plan import Plan
from harness.prefill import PrefillRow

Status = Literal["pass", "fail", "inconclusive", "invalid"]

EXIT_STATUSES: dict[Status, int] = {"pass": 0, "fail": 1, "inconclusive": 3, "invalid": 4}

# The order in which differences are named: what the tool is for comes first.
_ORDER = {"path": 0, "within": 1, "slots": 2, "speculation": 3, "self": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer of a run. ``sentence`` stands alone; ``reasons`` say what it rests on when it is not a
    pass.
    """

    status: Status
    exit_status: int
    sentence: str
    reasons: tuple[str, ...]


def judge(plan: Plan, comparison: Comparison) -> Verdict:
    """Give the verdict.

    A failed cell makes the run invalid. Else a proven difference between two valid arms, or a prefix
    proven wrong, is a failure. Else anything void, unsteady, missing or not compared leaves it
    inconclusive. Only what is left passes.
    """
    if comparison.failures:
        return _invalid(comparison)
    different = [c for c in comparison.contrasts if c.state == "different" and c.contrast.kind != "self"]
    wrong = [row for row in comparison.prefill if row.state == "wrong"]
    unlike = [row for row in comparison.distributions if row.test.differs]
    if unlike and not different and not wrong:
        first = unlike[0].sentence
        return _verdict("fail", f"FAIL: sampled answers differ: {first}", [row.sentence for row in unlike])
    if different or wrong:
        return _fail(comparison, sorted(different, key=lambda c: _ORDER[c.contrast.kind]), wrong)
    doubts = _list_doubts(comparison)
    if doubts:
        return _verdict("inconclusive", f"INCONCLUSIVE: {doubts[0]}{_more(doubts)}", doubts)
    return _pass(plan, comparison)


def _verdict(status: Status, sentence: str, reasons: Sequence[str]) -> Verdict:
    return Verdict(
        status=status,
        exit_status=EXIT_STATUSES[status],
        sentence=sentence,
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _more(reasons: Sequence[str]) -> str:
    number = len(dict.fromkeys(reasons)) - 1
    return f" (and {number} more reason{'' if number == 1 else 's'})" if number > 0 else ""


def _invalid(comparison: Comparison) -> Verdict:
    reasons = [_describe_failure(failure) for failure in comparison.failures]
    count = len(comparison.failures)
    cells = f"{count} of {comparison.cells_planned} cells"
    sentence = f"INVALID: {cells} could not be measured; the first is {reasons[0]}"
    return _verdict("invalid", sentence, reasons)


def _describe_failure(item: CellFailure) -> str:
    return f"cell {item.spec.key!r}: {item.failure.code}: {item.failure.message}"


def _fail(
    comparison: Comparison, different: Sequence[ContrastResult], wrong: Sequence[PrefillRow]
) -> Verdict:
    reasons = [_describe_contrast(result) for result in different]
    reasons += [_describe_prefix(row) for row in wrong]
    reasons += _name_odd_arm(comparison)
    claim = _claim(different)
    first = (
        f"{different[0].contrast.name} differs in {describe_found(different[0])}" if different else reasons[0]
    )
    return _verdict("fail", f"FAIL: {claim}: {first}", reasons)


def _claim(different: Sequence[ContrastResult]) -> str:
    if not different:
        return "a prefix was not reused as it must be"
    in_tokens = different[0].found[0].differences[0].field == "tokens"
    if different[0].contrast.kind == "path":
        return f"serve mode does not {'give the same tokens' if in_tokens else 'do the same'} as chat mode"
    if different[0].contrast.kind == "slots":
        return "requests that run at once are not answered as each alone"
    if different[0].contrast.kind == "within":
        return f"{different[0].contrast.a.label} does not answer as the scenario says it must"
    return f"speculation changes {'the tokens' if in_tokens else 'more than the speed'}"


def _describe_contrast(result: ContrastResult) -> str:
    count = len({(found.scenario, found.conversation) for found in result.found})
    conversations = "1 conversation differs" if count == 1 else f"{count} conversations differ, the first"
    first = result.found[0]
    where = f"{_place(first)}, {describe_position(first.differences[0])}"
    return f"{result.contrast.name}: {conversations} in {where}"


def _place(found: FoundDifference) -> str:
    return f"{found.scenario}, {found.conversation}, turn {found.turn + 1}"


def describe_position(difference: Difference) -> str:
    """Return the field and, for tokens, where in the answer it differs."""
    if difference.byte_offset is None:
        return difference.field
    token = "" if difference.token_index is None else f", token {difference.token_index}"
    return f"{difference.field} at byte {difference.byte_offset}{token}"


def describe_found(result: ContrastResult) -> str:
    """Return the first difference of a contrast as one line: the place, the position and what each side
    gives.
    """
    found = result.found[0]
    first = found.differences[0]
    a, b = result.contrast.a.label, result.contrast.b.label
    sides = f"{a} gives {first.a}, {b} gives {first.b}"
    if result.contrast.kind == "self":
        sides = f"{first.a}, and {first.b} when run again"
    if result.contrast.kind == "within":
        sides = f"{a} gives {first.a}, the scenario asks for {first.b}"
    return f"{_place(found)}, {describe_position(first)}: {sides}"


def _describe_prefix(row: PrefillRow) -> str:
    return (
        f"prefix reuse: {row.arm.label} in {row.scenario}, {row.conversation}, turn {row.turn + 1} took "
        f"{row.cached_tokens} of {row.prompt_tokens} tokens from the cache, {row.expected_cached_tokens} "
        "expected"
    )


def _name_odd_arm(comparison: Comparison) -> list[str]:
    """Name the arm that is in every differing contrast and in no identical one, if there is just one."""
    between = [c for c in comparison.contrasts if c.contrast.kind not in ("self", "within")]
    different = [{c.contrast.a, c.contrast.b} for c in between if c.state == "different"]
    cleared = [{c.contrast.a, c.contrast.b} for c in between if c.state == "identical"]
    if len(different) < 2:
        return []
    suspects = set.intersection(*different).difference(*cleared)
    if len(suspects) != 1:
        return []
    return [f"{suspects.pop().label} is the odd one out: it is in every contrast that differs"]


def _list_doubts(comparison: Comparison) -> list[str]:
    doubts = [
        f"{row.arm.label} is void in {row.scenario}: {row.evidence}"
        for row in comparison.engagements
        if row.state == "void"
    ]
    doubts += [
        f"{c.contrast.a.label} does not equal itself in {describe_found(c)}"
        for c in comparison.contrasts
        if c.contrast.kind == "self" and c.found
    ]
    missing = comparison.cells_planned - comparison.cells_measured
    if missing:
        doubts.append(f"{missing} of {comparison.cells_planned} cells were not measured")
    for result in comparison.contrasts:
        if result.state == "undecided":
            doubts += [f"{result.contrast.name} is undecided: {reason}" for reason in result.reasons]
    return doubts


def _pass(plan: Plan, comparison: Comparison) -> Verdict:
    pairs = sum(result.pairs_checked for result in comparison.contrasts)
    tokens = sum(result.tokens_compared for result in comparison.contrasts)
    depths = " and ".join(str(depth) for depth in sorted({arm.depth for arm in plan.arms}))
    counts = f"{len(plan.arms)} arms, {pairs:,} pairs, {tokens:,} tokens compared"
    sentence = f"PASS: serve mode gives the same tokens as chat mode at depth {depths} ({counts})"
    return _verdict("pass", sentence, ())
