"""The verdict: one status, one sentence, and the reasons, from the evidence alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from engine_bindings.binding import UNKNOWN_DEPTH, EnginePath
from harness.comparison import CellFailure, Comparison
from harness.contrasts import ContrastResult, FoundDifference
from harness.degenerate import DegenerateAnswer
from harness.findings import Finding, VerdictClass
from harness.grammar_validity import BREACH, describe_unjudged
from harness.identity import Difference
from harness.plan import PATH_WORDS, Arm, Plan
from harness.speed_words import describe_row
from harness.two_sample import ALPHA

Status = Literal["pass", "fail", "inconclusive", "invalid"]

EXIT_STATUSES: dict[Status, int] = {"pass": 0, "fail": 1, "inconclusive": 3, "invalid": 4}

# An arm whose answers loop or recite for more than this share of a scenario shows nothing there: any head
# drafts them, and any fault that needs a surprise stays hidden.
MAX_DEGENERATE_SHARE = 0.5

# The order in which differences are named: what the tool is for comes first.
_ORDER = {"path": 0, "within": 1, "slots": 2, "speculation": 3, "build": 4, "self": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer of a run. ``sentence`` stands alone; ``reasons`` say what it rests on when it is not a
    pass. ``verdict_class`` names the kind of difference that decided.
    """

    status: Status
    verdict_class: VerdictClass
    exit_status: int
    sentence: str
    reasons: tuple[str, ...]


def judge(plan: Plan, comparison: Comparison, replaced: Sequence[str] = ()) -> Verdict:
    """Give the verdict.

    An engine or model that was ``replaced`` while the run went on makes it invalid, and so does a failed
    cell. Else a fault that is proven and named is a failure, and then a build that is slower beyond the
    bound. Else anything void, unsteady, missing, not compared or not explained leaves it inconclusive. Only
    what is left passes.
    """
    if replaced:
        sentence = f"INVALID: the cells are not of one engine and model: {replaced[0]}{_more(replaced)}"
        return _verdict("invalid", "failed", sentence, replaced)
    if comparison.failures:
        return _invalid(comparison)
    if faults := list_faults(comparison):
        return _fail(comparison, faults)
    if slow := list_slow_builds(comparison):
        return _verdict("fail", "slower", f"FAIL: slower: {slow[0]}{_more(slow)}", slow)
    doubts = [
        *_list_degenerate(plan, comparison),
        *_list_doubts(comparison),
        *_list_unjudged_speed(plan, comparison),
    ]
    compared = any(result.pairs_checked for result in comparison.contrasts) or comparison.distributions
    if not doubts and not compared:
        doubts = [("void", "no pair of turns was compared")]
    tokens = sum(result.tokens_compared for result in comparison.contrasts)
    if not doubts and tokens and not any(result.bytes_compared for result in comparison.contrasts):
        doubts = [("void", "every answer that was compared is empty, so no token was seen")]
    if doubts:
        sentence = f"INCONCLUSIVE: {doubts[0][1]}{_more([text for _, text in doubts])}"
        return _verdict("inconclusive", doubts[0][0], sentence, [text for _, text in doubts])
    return _pass(plan, comparison)


def list_faults(comparison: Comparison) -> list[Finding]:
    """Return the proven faults, the one that names the verdict first.

    What is decided for good comes before what more probes could rename.
    """
    faults = [finding for finding in comparison.findings if finding.effect == "fail"]
    faults.sort(key=lambda finding: _rank(comparison, finding))
    return sorted(faults, key=lambda finding: bool(finding.wanted))


def _rank(comparison: Comparison, finding: Finding) -> int:
    """Return which fault names the verdict: an answer outside its grammar, then other tokens, then counts
    that contradict themselves.
    """
    if finding.rule == BREACH:
        return -1  # a text that differs because one side ignored its grammar is named by the cause
    if not finding.contrast:
        return len(_ORDER) + (finding.verdict_class == "prefix-reuse") * (len(_ORDER) + 1)
    result = next(r for r in comparison.contrasts if r.contrast.name == finding.contrast)
    in_tokens = _found_of(result, finding).in_tokens
    return _ORDER[result.contrast.kind] + (0 if in_tokens else len(_ORDER) + 1)


def _verdict(status: Status, verdict_class: VerdictClass, sentence: str, reasons: Sequence[str]) -> Verdict:
    return Verdict(
        status=status,
        verdict_class=verdict_class,
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
    return _verdict("invalid", "failed", sentence, reasons)


def _describe_failure(item: CellFailure) -> str:
    return f"cell {item.spec.key!r}: {item.failure.code}: {item.failure.message}"


def _fail(comparison: Comparison, faults: Sequence[Finding]) -> Verdict:
    first = faults[0]
    results = {result.contrast.name: result for result in comparison.contrasts}
    different = [result for name, result in results.items() if any(f.contrast == name for f in faults)]
    different.sort(key=lambda result: _ORDER[result.contrast.kind])
    reasons = [_describe_contrast(result) for result in different]
    reasons += [_describe_fault(finding) for finding in faults if not finding.contrast]
    reasons += _name_odd_arm(comparison)
    reasons = [describe_reason(first), *reasons]
    result = results.get(first.contrast)
    if result is None:
        what = f"{BREACH}: " if first.rule == BREACH else ""
        sentence = f"FAIL: {first.verdict_class}: {what}{_describe_fault(first)}"
    else:
        found = _found_of(result, first)
        sentence = (
            f"FAIL: {first.verdict_class}: {_claim(result, found)}: {result.contrast.name} differs in "
            f"{describe_found(result, found)}"
        )
    return _verdict("fail", first.verdict_class, sentence, reasons)


def _found_of(result: ContrastResult, finding: Finding) -> FoundDifference:
    place = (finding.scenario, finding.conversation, finding.turn)
    return next(item for item in result.found if (item.scenario, item.conversation, item.turn) == place)


def _claim(result: ContrastResult, found: FoundDifference) -> str:
    in_tokens = found.in_tokens
    if result.contrast.kind == "path":
        first, other = (_name_path(arm.path) for arm in (result.contrast.a, result.contrast.b))
        return f"{other} does not {'give the same tokens' if in_tokens else 'do the same'} as {first}"
    if result.contrast.kind == "build":
        what = "give the same tokens" if in_tokens else "count the same"
        return f"{_name_build(result.contrast.b)} does not {what} as {result.contrast.a.build}"
    if result.contrast.kind == "slots":
        return "requests that run at once are not answered as each alone"
    if result.contrast.kind == "within":
        return f"{result.contrast.a.label} does not answer as the scenario says it must"
    return f"speculation changes {'the tokens' if in_tokens else 'more than the speed'}"


def _name_build(arm: Arm) -> str:
    return arm.build or "this engine"


def describe_reason(finding: Finding) -> str:
    """Return the class, the rule that decided and why, as one line."""
    return f"{finding.verdict_class}, by the rule {finding.rule!r}: {finding.reason}"


def _describe_fault(finding: Finding) -> str:
    arms = " and ".join(arm.label for arm in finding.arms)
    return f"{arms} in {finding.place}: {finding.reason}"


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


def describe_found(result: ContrastResult, found: FoundDifference) -> str:
    """Return a difference of a contrast as one line: the place, the position and what each side gives."""
    first = found.differences[0]
    a, b = result.contrast.a.label, result.contrast.b.label
    sides = f"{a} gives {first.a}, {b} gives {first.b}"
    if result.contrast.kind == "self":
        sides = f"{first.a}, and {first.b} when run again"
    if result.contrast.kind == "within":
        sides = f"{a} gives {first.a}, the scenario asks for {first.b}"
    return f"{_place(found)}, {describe_position(first)}: {sides}"


def _name_odd_arm(comparison: Comparison) -> list[str]:
    """Name the arm that is in every differing contrast and in no identical one, if there is just one."""
    between = [c for c in comparison.contrasts if c.contrast.kind not in ("self", "within")]
    different = [{c.contrast.a, c.contrast.b} for c in between if c.found]
    cleared = [{c.contrast.a, c.contrast.b} for c in between if c.state == "identical"]
    if len(different) < 2:
        return []
    suspects = set.intersection(*different).difference(*cleared)
    if len(suspects) != 1:
        return []
    return [f"{suspects.pop().label} is the odd one out: it is in every contrast that differs"]


def _list_doubts(comparison: Comparison) -> list[tuple[VerdictClass, str]]:
    doubts: list[tuple[VerdictClass, str]] = [
        ("void", f"{row.arm.label} is void in {row.scenario}: {row.evidence}")
        for row in comparison.engagements
        if row.state == "void"
    ]
    doubts += [
        (
            "nondeterministic",
            f"{c.contrast.a.label} does not equal itself in {describe_found(c, c.found[0])}",
        )
        for c in comparison.contrasts
        if c.contrast.kind == "self" and c.found
    ]
    doubts += [
        (
            finding.verdict_class,
            f"{finding.verdict_class}: {finding.contrast} differs in {finding.place}: {finding.reason}",
        )
        for finding in _list_open(comparison)
    ]
    missing = comparison.cells_planned - comparison.cells_measured
    if missing:
        doubts.append(("unproven", f"{missing} of {comparison.cells_planned} cells were not measured"))
    doubts += [("unproven", reason) for reason in _list_undecided(comparison)]
    doubts += [("unproven", reason) for reason in describe_unjudged(comparison.validity)]
    doubts += [
        ("unproven", f"logprobs of {check.arm.label} were not checked: {check.evidence}")
        for check in comparison.logprobs
        if check.state == "not checked"
    ]
    doubts += [("unproven", reason) for reason in _list_untested(comparison)]
    return doubts


def _list_undecided(comparison: Comparison) -> list[str]:
    """Return why contrasts are undecided, without what an open finding says already."""
    told = {(found.contrast, f"{found.place}: {found.reason}") for found in _list_open(comparison)}
    return [
        f"{result.contrast.name} is undecided: {reason}"
        for result in comparison.contrasts
        if result.state == "undecided"
        for reason in result.reasons
        if (result.contrast.name, reason) not in told
    ]


def _list_untested(comparison: Comparison) -> list[str]:
    """Return what is open about sampled answers: too few draws, or none that could be tested."""
    few = [row.sentence for row in comparison.distributions if row.test.p_value is None]
    tested = {row.contrast for row in comparison.distributions}
    untested = [
        f"{result.contrast.name}: all answers are sampled, and no turn has draws that could be tested"
        for result in comparison.contrasts
        if result.state == "sampled" and result.contrast.kind != "within"
        if result.contrast.name not in tested
    ]
    return [*few, *untested]


def _list_open(comparison: Comparison) -> list[Finding]:
    """Return what is open; an arm that does not repeat itself comes first, since it may be all there is."""
    found = [finding for finding in comparison.findings if finding.effect == "open"]
    return sorted(found, key=lambda finding: finding.verdict_class != "nondeterministic")


def is_void_for_good(plan: Plan, comparison: Comparison) -> bool:
    """Say whether all arms of one depth are void in a scenario of which each of them was run.

    Then the depth was not compared there on any path, and no other cell can make up for it.
    """
    void = {(row.arm, row.scenario) for row in comparison.engagements if row.state == "void"}
    void |= {(arm, scenario) for arm, scenario, _ in _find_degenerate(plan, comparison)}
    for scenario in plan.scenarios:
        arms = {spec.arm for spec in plan.cells if spec.scenario == scenario.name}
        depths = {arm.depth for arm, name in void if name == scenario.name}
        if any(all((arm, scenario.name) in void for arm in arms if arm.depth == depth) for depth in depths):
            return True
    return False


def _list_degenerate(plan: Plan, comparison: Comparison) -> list[tuple[VerdictClass, str]]:
    return [
        ("void", f"{arm.label} is void in {scenario}: {reason}")
        for arm, scenario, reason in _find_degenerate(plan, comparison)
    ]


def _find_degenerate(plan: Plan, comparison: Comparison) -> list[tuple[Arm, str, str]]:
    found = []
    for own in find_degenerate_arms(plan, comparison):
        arm, scenario = own[0].arm, plan.scenario(own[0].scenario)
        marked = len({(d.conversation, d.turn) for d in own})
        share = f"{marked} of {scenario.turn_count} answers are degenerate"
        found.append((arm, scenario.name, f"{share}; the first is a {own[0].kind}: {own[0].evidence}"))
    return found


def find_degenerate_arms(plan: Plan, comparison: Comparison) -> Iterator[list[DegenerateAnswer]]:
    """Yield the marked answers of each arm and scenario where they are too many for anything to be shown."""
    for scenario in plan.scenarios:
        for arm in plan.arms:
            own = [d for d in comparison.degenerate if (d.arm, d.scenario) == (arm, scenario.name)]
            if len({(d.conversation, d.turn) for d in own}) > MAX_DEGENERATE_SHARE * scenario.turn_count:
                yield own


def list_slow_builds(comparison: Comparison) -> list[str]:
    """Say of each build that is shown to be slower beyond the bound by how much it is."""
    return [
        f"{item.contrast.b.label} is slower than {item.contrast.a.label}: {describe_row(row)}"
        for item in comparison.performance
        for row in item.rows
        if item.contrast.kind == "build" and row.fails
    ]


def _list_unjudged_speed(plan: Plan, comparison: Comparison) -> list[tuple[VerdictClass, str]]:
    """Return what was to be said of the speed and could not be; a depth decides nothing by its speed."""
    return [
        ("unproven", f"the speed of {item.contrast.b.label} is not judged: {describe_row(row)}")
        for item in comparison.performance
        for row in item.rows[:1]
        if plan.speed is not None
        and item.contrast.kind == "build"
        and row.statement in ("too few pairs", "not judged")
    ]


def _pass(plan: Plan, comparison: Comparison) -> Verdict:
    pairs = sum(result.pairs_checked for result in comparison.contrasts)
    tokens = sum(result.tokens_compared for result in comparison.contrasts)
    known = sorted({arm.depth for arm in plan.arms} - {UNKNOWN_DEPTH})
    depths = f"depth {' and '.join(map(str, known))}" if known else "whatever depth the server runs"
    counts = f"{len(plan.arms)} arms, {pairs:,} pairs, {tokens:,} tokens compared"
    ties = _list_near_ties(comparison)
    places = count_near_ties(comparison)
    between = f" between {'builds or depths' if plan.builds else 'depths'}"
    between = between if all(finding.between_arms for finding in ties) else ""
    but = f" but for {places} proven near-tie{'' if places == 1 else 's'}{between}" if ties else ""
    tests = _describe_tests(comparison)
    sentence = f"PASS: {_claim_pass(plan)} at {depths}{but} ({counts}{tests and f'; {tests}'})"
    if not tests and not tokens and pairs:
        # Texts and finish reasons were compared; nobody said how many tokens they are.
        claim = _claim_pass(plan).replace("the same tokens", "the same answers")
        sentence = (
            f"PASS: {claim} at {depths}{but} ({len(plan.arms)} arms, {pairs:,} pairs, tokens not counted)"
        )
    elif not has_compared_arms(comparison):
        selves = [result for result in comparison.contrasts if result.contrast.kind == "self"]
        repeats = ", and each arm repeats its own" if all(r.state == "identical" for r in selves) else ""
        sentence = f"PASS: sampled answers at {depths}: {tests}{repeats} ({counts})"
    reasons = [f"{finding.contrast}, {finding.place}: {describe_reason(finding)}" for finding in ties]
    return _verdict("pass", "near-tie" if ties else "identical", sentence, reasons)


def has_compared_arms(comparison: Comparison) -> bool:
    """Say whether any token of one arm was held against one of another, which sampled answers never are."""
    between = [r for r in comparison.contrasts if r.contrast.kind not in ("self", "within")]
    return any(result.tokens_compared for result in between)


def _describe_tests(comparison: Comparison) -> str:
    rows = comparison.distributions
    if not rows:
        return ""
    draws = sorted({row.test.pairs for row in rows})
    size = f"{draws[0]}" if len(draws) == 1 else f"{draws[0]} to {draws[-1]}"
    return f"{len(rows)} tests of {size} draws show no other distribution, error rate {ALPHA:g} each"


def _claim_pass(plan: Plan) -> str:
    judged = [arm for arm in plan.arms if not plan.is_baseline(arm)]
    first, *others = dict.fromkeys(_name_path(arm.path) for arm in judged)
    if plan.builds:
        first += f" and {plan.builds[0].name}"
    if not others:
        if all(arm.depth == UNKNOWN_DEPTH for arm in judged):
            return f"{first} gives the same tokens each time"
        return f"{first} gives the same tokens with speculation as without"
    names = " and ".join(filter(None, (", ".join(others[:-1]), others[-1])))
    return f"{names} {'gives' if len(others) == 1 else 'give'} the same tokens as {first}"


def _name_path(path: EnginePath) -> str:
    return PATH_WORDS.get(path, path)


def count_near_ties(comparison: Comparison) -> int:
    """Return the turns that differ by a proven near-tie which the policy explains."""
    return len({(f.scenario, f.conversation, f.turn) for f in _list_near_ties(comparison)})


def _list_near_ties(comparison: Comparison) -> list[Finding]:
    return [finding for finding in comparison.findings if finding.effect == "explained"]
