"""Findings that no probe can look into: relations within a cell, requests at once, and sampled answers.

A prefix that was computed in other pieces, or beside another request, may be rounded in another way and flip
a near-tie. Without the margin between the two candidates such a difference in the text is open, not proven.
"""

from collections.abc import Iterable, Iterator

from harness.contrasts import ContrastResult, FoundDifference
from harness.distributions import DistributionRow
from harness.findings import Effect, Finding, VerdictClass
from harness.plan import Arm

_WHY_OPEN = {
    "within": "a prefix that was computed in other pieces may flip a near-tie, and no margin is known",
    "slots": "another request beside it may flip a near-tie, and no margin is known",
}


def name_unprobed(results: Iterable[ContrastResult]) -> Iterator[Finding]:
    """Yield a finding for each difference in a contrast ``within`` a cell or between numbers of slots."""
    known = tuple(results)
    unsteady = {r.contrast.a for r in known if r.contrast.kind == "self" and r.found}
    for result in known:
        if result.contrast.kind in _WHY_OPEN:
            for found in result.found:
                yield _name(result, found, unsteady)


def name_distribution(row: DistributionRow) -> Finding:
    """Return the finding for two arms that draw from different distributions."""
    return Finding(
        verdict_class="state",
        effect="fail",
        rule="another distribution",
        contrast="",
        arms=(row.a, row.b),
        scenario=row.scenario,
        conversation=row.group,
        turn=0,
        reason=row.sentence,
    )


def _name(result: ContrastResult, found: FoundDifference, unsteady: set[Arm]) -> Finding:
    contrast = result.contrast
    verdict_class, effect, reason = _judge(result, found)
    if unsteady & {contrast.a, contrast.b}:
        names = " and ".join(sorted(arm.label for arm in unsteady & {contrast.a, contrast.b}))
        verdict_class, effect = "nondeterministic", "open"
        reason = f"{names} does not give its own answer again"
    return Finding(
        verdict_class=verdict_class,
        effect=effect,
        rule=f"a difference {'within a cell' if contrast.kind == 'within' else 'between numbers of slots'}",
        contrast=contrast.name,
        arms=tuple(dict.fromkeys((contrast.a, contrast.b))),
        scenario=found.scenario,
        conversation=found.conversation,
        turn=found.turn,
        reason=reason,
    )


def _judge(result: ContrastResult, found: FoundDifference) -> tuple[VerdictClass, Effect, str]:
    by_field = {difference.field: difference for difference in found.differences}
    finish = by_field.get("finish_reason")
    if finish is not None and finish.b == "refused":
        return "prompt-mismatch", "fail", "a prompt that must be refused was answered"
    if "tokens" in by_field:
        return "unproven", "open", _WHY_OPEN[result.contrast.kind]
    first = found.differences[0]
    verdict_class: VerdictClass = "finish-reason" if first.field == "finish_reason" else "counters"
    return verdict_class, "fail", f"the text is the same, and {first.field} is {first.a} and {first.b}"
