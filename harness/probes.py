"""Which cells to run after those of the plan: to look into a difference, and to ask for logprobs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine_bindings.binding import Pin
from harness.cases import Case, list_cases, score_arm, shorten_turn, sweep_depths, undraft_arm
from harness.comparison import Comparison
from harness.evidence import compare_rerun, reproducing_kind
from harness.findings import Finding
from harness.logprobs import LOGPROB_TOKENS, choose_logprob_turns
from harness.metrics import collect_token_lengths
from harness.pairing import select_latest
from harness.plan import Arm, CellSpec, Plan, ProbeKind
from harness.scenario import Conversation, Scenario, Turn
from harness.transcript import INTERRUPTED_CODE, CellRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One extra cell: its own scenario of one conversation, and settings besides those of its arm."""

    spec: CellSpec
    scenario: Scenario
    settings: tuple[Pin, ...]

    @property
    def worst_case_tokens(self) -> int:
        """Tokens decoded at most."""
        return self.scenario.worst_case_tokens


def plan_probes(
    plan: Plan,
    comparison: Comparison,
    records: Sequence[CellRecord],
    *,
    first_only: bool = False,
    place: tuple[str, str, int] | None = None,
) -> tuple[Probe, ...]:
    """Return the probes that the verdict needs next; none when nothing is left to find out.

    One difference is looked into at a time. Once a fault is proven and named, the others are left: the
    verdict would not change. Other tokens would change it where only counts or ends have differed so far, so
    they are looked into all the same, unless the run ends with the first fault. With ``first_only`` no other
    difference is looked into after the first, however that ended: cells that are still to come may say more
    for less. With ``place``, a scenario, conversation and turn, only differences there are.
    """
    named = has_named_fault(comparison)
    if named and plan.until == "fault":
        return ()
    latest = select_latest(records)
    cases = list_cases(plan, comparison.contrasts, latest, collect_token_lengths(records))
    found = list(zip(comparison.findings, cases, strict=False))
    if named and _name_the_verdict(comparison, found):
        return ()
    pending = [
        (finding, case)
        for finding, case in found
        if place in (None, case.place) and (case.found.in_tokens or not named)
    ]
    pending.sort(key=lambda item: item[0].effect != "fail")
    for finding, case in pending[:1] if first_only else pending:
        probes = _build_probes(plan, case, finding.wanted[0], latest) if finding.wanted else ()
        if probes:
            return probes
    return () if first_only or named else tuple(_build_logprob_probes(plan, latest))


def _name_the_verdict(comparison: Comparison, found: Iterable[tuple[Finding, Case]]) -> bool:
    """Say whether a fault is named that no other could come before: other tokens, or a broken grammar."""
    return any(finding.verdict_class == "grammar" for finding in comparison.findings) or any(
        finding.effect == "fail" and not finding.wanted and case.found.in_tokens for finding, case in found
    )


def has_named_fault(comparison: Comparison) -> bool:
    """Say whether a fault is proven, and no probe could rename it.

    Counts that contradict themselves are a fault too, but where texts differ they may be its shadow.
    """
    named = [f for f in comparison.findings if f.effect == "fail" and not f.wanted]
    sure = any(f.contrast or f.verdict_class == "grammar" for f in named)
    return sure or (bool(named) and not any(f.wanted for f in comparison.findings))


def price_probes(plan: Plan) -> int:
    """Return the tokens that looking into one difference decodes at most.

    The dearest conversation is asked again cold and replayed on both arms, then at every other depth, and its
    common part is scored with one token. Where an arm ran once, all that ran before may be needed again too.
    """
    depths = len(sweep_depths(plan, plan.depth))
    slots = max(arm.slots for arm in plan.arms)
    dearest = max(
        sum(turn.max_tokens for turn in conversation.turns)
        for scenario in plan.scenarios
        for conversation in scenario.conversations
    )
    # Between numbers of slots no other depth is asked, but a replay holds as many conversations as slots.
    again = 2 * max(scenario.worst_case_tokens for scenario in plan.scenarios)
    return dearest * (2 + 2 + max(depths, slots - 1)) + 1 + (again if plan.repetitions == 1 else 0)


def _build_logprob_probes(plan: Plan, latest: dict[CellSpec, CellRecord]) -> Iterator[Probe]:
    """Yield the cells that ask for logprobs, unless every cell of the plan is not there yet."""
    if any(spec not in latest for spec in plan.cells):
        return
    for asked in choose_logprob_turns(plan, latest):
        scenario = plan.scenario(asked.scenario)
        conversation = next(c for c in scenario.conversations if c.id == asked.conversation)
        turn = conversation.turns[asked.turn]
        turn = replace(turn, max_tokens=min(turn.max_tokens, LOGPROB_TOKENS))
        alone = replace(conversation, turns=(turn,))
        if asked.entry == "prompt":
            alone = _as_exact_prompt(conversation, turn, asked.prompt)
        scenario = replace(scenario, entry="prompt", conversations=(alone,))
        for spec in asked.specs:
            record = latest.get(spec)
            interrupted = (
                record is not None and record.failure is not None and record.failure.code == INTERRUPTED_CODE
            )
            if record is None or interrupted:
                yield Probe(spec=spec, scenario=scenario, settings=_margin_settings(plan, spec.arm))


def _build_probes(
    plan: Plan, case: Case, kind: ProbeKind, latest: dict[CellSpec, CellRecord]
) -> tuple[Probe, ...]:
    specs = [case.spec(arm, kind) for arm in _arms(plan, case, kind)]
    return tuple(
        Probe(
            spec=spec,
            scenario=_build_scenario(plan, case, spec, latest),
            settings=_margin_settings(plan, spec.arm),
        )
        for spec in specs
        if spec not in latest
    )


def _margin_settings(plan: Plan, arm: Arm) -> tuple[Pin, ...]:
    pin = plan.margin_pin_of(arm)
    return (pin,) if pin else ()


def _arms(plan: Plan, case: Case, kind: ProbeKind) -> list[Arm]:
    if kind == "score":
        return [score_arm(case)]
    if kind == "undrafted":
        return [undraft_arm(case)]
    if kind == "depth":
        return [replace(case.probed_b, depth=d) for d in sweep_depths(plan, case.contrast.b.depth)]
    return list(case.asked)


def _build_scenario(plan: Plan, case: Case, spec: CellSpec, latest: dict[CellSpec, CellRecord]) -> Scenario:
    scenario = plan.scenario(case.found.scenario)
    conversation = next(c for c in scenario.conversations if c.id == case.found.conversation)
    kind = spec.probe.kind if spec.probe else "cold"
    if kind == "depth":
        shown = reproducing_kind(*(compare_rerun(case, k, latest) for k in ("cold", "replay")))
        kind = shown or "cold"
    if kind in ("replay", "again", "undrafted"):
        turns = (*conversation.turns[: case.found.turn], shorten_turn(case))
        position = scenario.conversations.index(conversation)
        # As many as there are slots run at once; a conversation keeps its neighbours, as far as its turn.
        first = position - position % spec.arm.slots
        group = [
            replace(other, turns=turns if other is conversation else other.turns[: case.found.turn + 1])
            for other in scenario.conversations[first : first + spec.arm.slots]
        ]
        before = () if kind == "replay" else scenario.conversations[:first]
        return replace(scenario, conversations=(*before, *group))
    alone = _ask_alone(case, conversation, kind)
    return replace(scenario, entry="prompt", conversations=(alone,))


def _ask_alone(case: Case, conversation: Conversation, kind: ProbeKind) -> Conversation:
    """Return the differing turn as an exact prompt; a score prompt holds the common part of the answers."""
    prompt = case.exact_prompt or case.a.prompt
    turn = shorten_turn(case)
    if kind == "score":
        prompt += case.a.text[: case.prefix_bytes]
        turn = replace(turn, max_tokens=1, stop=())
    return _as_exact_prompt(conversation, turn, prompt)


def _as_exact_prompt(conversation: Conversation, turn: Turn, prompt: bytes) -> Conversation:
    # Bytes that are no UTF-8 go through: ``build_turn_prompt`` turns them back.
    text = prompt.decode("utf-8", "surrogateescape")
    exact = replace(
        turn, kind="prompt", text=text, expect=(), expect_prompt_tokens=None, expect_cached_tokens=None
    )
    return replace(conversation, system=None, turns=(exact,))
