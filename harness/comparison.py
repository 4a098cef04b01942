"""Everything that a run showed, as values: the evidence that the verdict is given on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.cases import list_cases
from harness.circumstances import note_circumstances
from harness.contrasts import CheckedContrast, ContrastResult, check_contrasts, settle_contrast
from harness.counters import find_count_faults
from harness.degenerate import DegenerateAnswer, find_degenerate_answers
from harness.distributions import DistributionRow, compare_distributions, name_distribution
from harness.divergence import decide, describe
from harness.engagement import Engagement, judge_cells, summarise_engagement
from harness.evidence import gather_evidence
from harness.findings import Evidence, Finding, Unpaid
from harness.grammar_validity import ValidityRow, check_validity, name_breaches
from harness.left_state import find_left_state, note_left_files
from harness.logprobs import LogprobCheck, check_logprobs, find_logprob_faults, note_logprobs
from harness.metrics import CellMetrics, collect_token_lengths
from harness.pairing import Pairing, select_latest
from harness.performance import Performance, judge_performance
from harness.plan import Arm, CellSpec, Plan
from harness.prefill import PrefillRow, build_prefill_table
from harness.speed import ArmSpeed, Speedup, derive_speedups, summarise_speed
from harness.transcript import INTERRUPTED_CODE, CellRecord, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRow:
    """One expected fact of a turn: the arms whose answer holds it in every repetition, and the others."""

    scenario: str
    conversation: str
    turn: int
    fact: str
    found: tuple[Arm, ...]
    missing: tuple[Arm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFailure:
    """A cell that could not be measured, at its last attempt."""

    spec: CellSpec
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The evidence of a run.

    Attributes:
        cells_planned, cells_measured: how much of the plan there is.
        failures: cells that failed at their last attempt; a cell that the user interrupted is only not
            measured.
        engagements: what each arm did in each scenario.
        contrasts: in the plan's order.
        findings: every difference and fault, named; first those of the contrasts, in their order.
        prefill: one row for each turn and arm.
        facts: expected facts.
        speeds: medians of each arm.
        speedups: what speculation is worth.
        validity: answers under a grammar, one row for each arm and scenario with one.
        degenerate: answers that loop or recite; their speed is shown and not judged.
        tokens_decoded: by all cells and probes. probe_tokens: by the probes alone. planned_tokens: what the
            cells of the plan decode at most.
        notes: remarks that decide nothing, in plain sentences.
        distributions: tests of sampled answers, arm against arm.
        logprobs: what the reported probabilities showed, one for each drafting arm whose path reports them.
        performance: what is said of the speed of builds or depths.
    """

    cells_planned: int
    cells_measured: int
    failures: tuple[CellFailure, ...]
    engagements: tuple[Engagement, ...]
    contrasts: tuple[ContrastResult, ...]
    findings: tuple[Finding, ...]
    prefill: tuple[PrefillRow, ...]
    facts: tuple[FactRow, ...]
    speeds: tuple[ArmSpeed, ...]
    speedups: tuple[Speedup, ...]
    degenerate: tuple[DegenerateAnswer, ...]
    tokens_decoded: int
    probe_tokens: int
    planned_tokens: int
    notes: tuple[str, ...]
    validity: tuple[ValidityRow, ...] = ()
    distributions: tuple[DistributionRow, ...] = ()
    logprobs: tuple[LogprobCheck, ...] = ()
    performance: tuple[Performance, ...] = ()


def compare(
    plan: Plan,
    records: Sequence[CellRecord],
    pairing: Pairing,
    metrics: Iterable[CellMetrics],
    *,
    unpaid: Unpaid | None = None,
) -> Comparison:
    """Gather the evidence of a run.

    Args:
        plan: what was to be run.
        records: all attempts at all cells.
        pairing: the pairs of these records.
        metrics: the figures of these records, in any order, one for each record.
        unpaid: the probes that the budget did not allow.
    """
    seen = select_latest(records)
    planned = frozenset(plan.cells)
    latest = {spec: record for spec, record in seen.items() if spec in planned}
    figures = {
        cell.spec: cell
        for cell in metrics
        if cell.spec in latest and cell.attempt == latest[cell.spec].attempt
    }
    cells = judge_cells(plan, latest, figures)
    checked = check_contrasts(plan, pairing, cells)
    valid = {spec: cell for spec, cell in figures.items() if cells[spec].state not in ("void", "failed")}
    engagements = summarise_engagement(plan, cells, figures)
    judged = {spec: latest[spec] for spec in valid if not plan.is_baseline(spec.arm)}
    prefill = build_prefill_table(plan, latest, valid)
    facts = _check_facts(plan, latest)
    degenerate = find_degenerate_answers(plan, latest)
    validity = check_validity(plan, latest)
    logprobs = check_logprobs(plan, seen)
    distributions = compare_distributions(plan, judged)
    timed = {spec: cell for spec, cell in figures.items() if not latest[spec].reused_from}
    findings = (
        *(_tell_unpaid(finding, unpaid) for finding in _name_differences(plan, records, checked, seen)),
        *find_count_faults(plan, judged),
        *find_logprob_faults(plan, seen),
        *find_left_state(plan, latest),
        *_name_rows(plan, validity, prefill, distributions),
    )
    return Comparison(
        cells_planned=len(plan.cells),
        cells_measured=sum(record.is_complete for record in latest.values()),
        failures=_list_failures(plan, latest),
        engagements=engagements,
        contrasts=tuple(settle_contrast(item.result, findings) for item in checked),
        findings=findings,
        prefill=prefill,
        facts=facts,
        speeds=summarise_speed(plan, cells, timed),
        speedups=derive_speedups(plan, checked, timed, degenerate),
        degenerate=degenerate,
        tokens_decoded=count_tokens(r for r in records if r.spec in planned or r.spec.probe is not None),
        probe_tokens=count_tokens(record for record in records if record.spec.probe is not None),
        planned_tokens=plan.worst_case_tokens,
        notes=(
            *_note_end(plan, latest, findings),
            *_collect_notes(plan, records, latest, checked, engagements, prefill, facts),
            *note_logprobs(logprobs),
            *note_left_files(latest),
            *_note_unpaid(unpaid),
        ),
        validity=validity,
        distributions=distributions,
        logprobs=logprobs,
        performance=judge_performance(plan, checked, timed, _list_order(records, seen), degenerate),
    )


def _name_rows(
    plan: Plan,
    validity: Iterable[ValidityRow],
    prefill: Iterable[PrefillRow],
    distributions: Iterable[DistributionRow],
) -> Iterator[Finding]:
    """Yield the findings that rows of the evidence are; those of a baseline's arms are not judged."""
    yield from name_breaches(row for row in validity if not plan.is_baseline(row.arm))
    for row in prefill:
        if row.state == "wrong" and not plan.is_baseline(row.arm):
            yield name_prefix(row)
    yield from (name_distribution(drawn) for drawn in distributions if drawn.test.differs)


def _list_order(records: Sequence[CellRecord], seen: Mapping[CellSpec, CellRecord]) -> list[CellSpec]:
    """Return the cells in the order in which they ran here, each where its last attempt was."""
    return [record.spec for record in records if record is seen[record.spec] and not record.reused_from]


def count_tokens(records: Iterable[CellRecord]) -> int:
    """Return the tokens that cells of this run decoded, by the engine's own count."""
    own = (record for record in records if not record.reused_from)
    return sum(turn.emitted_tokens or 0 for record in own for turn in record.turns)


def _name_differences(
    plan: Plan,
    records: Sequence[CellRecord],
    checked: Sequence[CheckedContrast],
    seen: Mapping[CellSpec, CellRecord],
) -> Iterable[Finding]:
    """Yield a finding for each difference of a contrast, in the order of ``list_cases``."""
    lengths = collect_token_lengths(records)
    for case in list_cases(plan, [item.result for item in checked], seen, lengths):
        evidence = gather_evidence(plan, case, checked, seen)
        yield build_finding(evidence, case.contrast.name, case.place)


def build_finding(evidence: Evidence, contrast: str, place: tuple[str, str, int]) -> Finding:
    """Name one difference by the first rule that applies to its evidence."""
    rule, decision = decide(evidence)
    return Finding(
        verdict_class=decision.verdict_class,
        effect=decision.effect,
        rule=rule,
        contrast=contrast,
        arms=tuple(dict.fromkeys((evidence.a, evidence.b))),
        scenario=place[0],
        conversation=place[1],
        turn=place[2],
        reason=decision.reason,
        facts=describe(evidence),
        margin=evidence.gap,
        wanted=decision.wanted,
    )


def _tell_unpaid(finding: Finding, unpaid: Unpaid | None) -> Finding:
    if unpaid is None or not finding.wanted:
        return finding
    return replace(finding, reason=f"{finding.reason}; {unpaid.sentence}")


def name_prefix(row: PrefillRow) -> Finding:
    """Return the finding for a prefix that is not the one it must be."""
    expected = "" if row.expected_cached_tokens is None else f", {row.expected_cached_tokens} expected"
    if row.cached_tokens is not None and not row.declared:
        expected = f", at least {row.least_cached_tokens} of the last prompt expected"
    return Finding(
        verdict_class="prefix-reuse",
        effect="fail",
        rule="another prefix than must be",
        contrast="",
        arms=(row.arm,),
        scenario=row.scenario,
        conversation=row.conversation,
        turn=row.turn,
        reason=f"took {row.cached_tokens} of {row.prompt_tokens} tokens from the cache{expected}",
    )


def _list_failures(plan: Plan, latest: Mapping[CellSpec, CellRecord]) -> tuple[CellFailure, ...]:
    return tuple(
        CellFailure(spec=spec, attempt=latest[spec].attempt, failure=failure)
        for spec in plan.cells
        if spec in latest
        and (failure := latest[spec].failure) is not None
        and failure.code != INTERRUPTED_CODE
    )


def _check_facts(plan: Plan, latest: Mapping[CellSpec, CellRecord]) -> tuple[FactRow, ...]:
    rows = []
    for scenario in plan.scenarios:
        for conversation in scenario.conversations:
            for index, turn in enumerate(conversation.turns):
                answers = _answers(latest, scenario.name, conversation.id, index)
                rows += [
                    _check_fact(plan, (scenario.name, conversation.id, index), fact, answers)
                    for fact in turn.expect
                ]
    return tuple(rows)


def _answers(
    latest: Mapping[CellSpec, CellRecord], scenario: str, conversation: str, turn: int
) -> dict[Arm, list[bytes]]:
    answers: dict[Arm, list[bytes]] = {}
    for spec, record in latest.items():
        if spec.scenario == scenario:
            texts = [t.text for t in record.turns if (t.conversation, t.turn) == (conversation, turn)]
            answers.setdefault(spec.arm, []).extend(texts)
    return answers


def _check_fact(
    plan: Plan, place: tuple[str, str, int], fact: str, answers: Mapping[Arm, Sequence[bytes]]
) -> FactRow:
    word = fact.encode("utf-8")
    answered = [arm for arm in plan.arms if answers.get(arm)]
    found = tuple(arm for arm in answered if all(word in text for text in answers[arm]))
    return FactRow(
        scenario=place[0],
        conversation=place[1],
        turn=place[2],
        fact=fact,
        found=found,
        missing=tuple(arm for arm in answered if arm not in found),
    )


def _collect_notes(
    plan: Plan,
    records: Sequence[CellRecord],
    latest: Mapping[CellSpec, CellRecord],
    checked: Sequence[CheckedContrast],
    engagements: Sequence[Engagement],
    prefill: Sequence[PrefillRow],
    facts: Sequence[FactRow],
) -> list[str]:
    return [
        *_note_retries(records),
        *_note_stops(records, latest),
        *_note_engagement(engagements),
        *_note_prefill(prefill, plan),
        *_note_facts(facts),
        *_note_sampling(plan, checked),
        *_note_relations(checked),
        *_note_single_repetition(plan),
        *_note_baseline(plan, latest),
        *note_circumstances(plan, latest),
        *_note_probes(records),
        *plan.left_out,
        *(
            f"cell {spec.key!r}: {note}"
            for spec in plan.cells
            if spec in latest
            for note in latest[spec].notes
        ),
    ]


def _note_retries(records: Sequence[CellRecord]) -> list[str]:
    latest = select_latest(records)
    return [
        f"cell {record.spec.key!r}: attempt {record.attempt} failed ({record.failure.code}) and was repeated"
        for record in records
        if record.failure is not None and latest[record.spec] != record
    ]


def _note_stops(records: Sequence[CellRecord], latest: Mapping[CellSpec, CellRecord]) -> Iterable[str]:
    """Say of each cell that was ended early why, and what became of the turns that it left."""
    for record in records:
        if record.stop is None:
            continue
        stop = record.stop
        place = f"{stop.conversation} turn {stop.turn + 1}"
        if latest.get(record.spec) in (None, record):
            became = f"{stop.turns_left} turn{' was' if stop.turns_left == 1 else 's were'} not asked"
        else:
            became = "no fault was proven by it, so the cell was run again to its end"
        yield f"cell {record.spec.key!r} was ended early at {place}: {stop.reason}; {became}"


def _note_end(
    plan: Plan, latest: Mapping[CellSpec, CellRecord], findings: Iterable[Finding]
) -> tuple[str, ...]:
    left = len(set(plan.cells) - set(latest))
    if plan.until != "fault" or not left or not any(finding.effect == "fail" for finding in findings):
        return ()
    return (f"{left} of {len(plan.cells)} cells were not run: the run ended with the first proven fault",)


def _note_probes(records: Sequence[CellRecord]) -> list[str]:
    return [
        f"probe {record.spec.key!r} failed ({record.failure.code}): what it was to show is not known"
        for record in select_latest(records).values()
        if record.spec.probe is not None and record.failure is not None
    ]


def _note_unpaid(unpaid: Unpaid | None) -> list[str]:
    if unpaid is None:
        return []
    names = ", ".join(repr(key) for key in unpaid.keys)
    return [f"not run to keep to the budget: {names}; {unpaid.sentence}"]


def _note_engagement(engagements: Sequence[Engagement]) -> list[str]:
    notes = []
    for row in engagements:
        if row.state in ("mixed", "idle"):
            notes.append(f"{row.arm.label} in {row.scenario} is {row.state}: {row.evidence}")
        elif row.state == "on" and row.totals.accepted_tokens == 0:
            notes.append(f"{row.arm.label} in {row.scenario} drafts, but no draft was kept: {row.evidence}")
    return notes


def _note_prefill(prefill: Sequence[PrefillRow], plan: Plan) -> list[str]:
    notes = [
        f"{row.arm.label} {row.scenario} {row.conversation} turn {row.turn + 1}: prefix {row.cached_tokens}, "
        f"derived {row.expected_cached_tokens} (the last prompt and answer)"
        for row in prefill
        if row.state == "not as derived"
    ]
    for scenario in plan.scenarios:
        rows = [row for row in prefill if row.scenario == scenario.name]
        declares = any(t.expect_prompt_tokens is not None for c in scenario.conversations for t in c.turns)
        if declares and rows and not any(row.declared for row in rows):
            notes.append(
                f"{scenario.name}: the declared prompt lengths are those of another tokenizer or template"
            )
    return notes


def _note_facts(facts: Sequence[FactRow]) -> list[str]:
    return [
        f"{row.scenario} {row.conversation} turn {row.turn + 1}: no arm's answer holds {row.fact!r} "
        "(the model's doing, not a difference)"
        for row in facts
        if row.missing and not row.found
    ]


def _note_sampling(plan: Plan, checked: Sequence[CheckedContrast]) -> list[str]:
    if not any(item.result.excluded_sampled for item in checked):
        return []
    names = ", ".join(scenario.name for scenario in plan.scenarios if scenario.temperature > 0)
    return [f"{names}: sampled at a temperature above 0, so texts differ by design and are not compared"]


def _note_relations(checked: Sequence[CheckedContrast]) -> list[str]:
    """Name relations that nothing follows from, because a joined answer was read as other tokens."""
    notes = []
    for item in checked:
        lost = sum(missing.pairs for missing in item.result.missing if missing.reason == "other tokens")
        if lost:
            arm = item.result.contrast.a.label
            notes.append(
                f"{arm}: {lost} declared relations were not checked: the engine read a joined answer as "
                "other tokens than it had given"
            )
    return notes


def _note_baseline(plan: Plan, latest: Mapping[CellSpec, CellRecord]) -> list[str]:
    """Tell of the baseline's own faults, which are no news to whoever changes it and decide nothing."""
    own = {s: r for s, r in latest.items() if plan.is_baseline(s.arm) and r.failure is None}
    faults = find_count_faults(plan, own)
    if not faults:
        return []
    first = faults[0]
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return [
        f"{plan.builds[0].name} has {count} of its own, not judged here; the first is in {first.place}: "
        f"{first.reason}"
    ]


def _note_single_repetition(plan: Plan) -> list[str]:
    if plan.repetitions > 1:
        return []
    return ["each arm ran once: whether it equals itself was not checked (run with --repetitions 2)"]
