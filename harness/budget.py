"""What a verdict may cost: tokens are its price on a machine that decodes one in a second."""

from collections.abc import Sequence
from dataclasses import replace

from engine_bindings.errors import UsageError
from harness.comparison import Comparison, count_tokens
from harness.findings import Unpaid
from harness.logprobs import price_logprobs
from harness.plan import CellSpec, Plan
from harness.probes import Probe, plan_probes, price_probes
from harness.scenario import Scenario
from harness.stopping import FIRST_SAVING_RATIO, LATER_SAVING_RATIO
from harness.transcript import CellRecord


def cut_plan(plan: Plan, budget_tokens: int) -> Plan:
    """Return the plan cut to ``budget_tokens``, with what was left out in its notes.

    Repetitions go first: what they show, a probe shows where a difference was seen. Then conversations go,
    from the last scenario backwards, as the user named the most telling one first. Last goes what asking for
    logprobs takes. Other probes are paid from what is left when the cells are done.

    Raises:
        UsageError: not even one conversation on every arm fits.
    """
    left_out: list[str] = []
    whole, plan = plan.worst_case_tokens, replace(plan, budget_tokens=budget_tokens)
    if _price(plan) > budget_tokens and plan.repetitions > 1:
        plan = replace(plan, repetitions=1, cells=tuple(spec for spec in plan.cells if spec.repetition == 0))
        left_out.append("left out to keep to the budget: every repetition but the first")
    while _price(plan) > budget_tokens:
        if plan.logprob_paths and sum(len(scenario.conversations) for scenario in plan.scenarios) == 1:
            plan = replace(plan, logprob_paths=())
            left_out.append("left out to keep to the budget: the logprobs")
            continue
        plan, dropped = _drop_last_conversation(plan, whole)
        left_out.append(f"left out to keep to the budget: {dropped}")
    return replace(plan, left_out=(*plan.left_out, *left_out))


def _price(plan: Plan) -> int:
    return plan.worst_case_tokens + price_logprobs(plan)


def _drop_last_conversation(plan: Plan, whole_tokens: int) -> tuple[Plan, str]:
    *others, last = plan.scenarios
    *kept, dropped = last.conversations
    if not kept and not others:
        raise UsageError(
            f"--budget {plan.budget_tokens}: the first conversation, {dropped.id!r} of {last.name!r}, takes "
            f"{plan.worst_case_tokens:,} tokens on the {len(plan.arms)} arms",
            hint=f"the whole plan takes {whole_tokens:,} tokens at most; --dry-run lists them",
        )
    if kept:
        return _with_scenarios(plan, (*others, replace(last, conversations=tuple(kept)))), (
            f"conversation {dropped.id!r} of {last.name!r}"
        )
    return _with_scenarios(plan, others), f"scenario {last.name!r}"


def _with_scenarios(plan: Plan, scenarios: Sequence[Scenario]) -> Plan:
    names = {scenario.name for scenario in scenarios}
    cells = tuple(spec for spec in plan.cells if spec.scenario in names)
    return replace(plan, scenarios=tuple(scenarios), cells=cells)


def end_at_fault(plan: Plan) -> Plan:
    """Return the plan that ends with the first proven fault, its cells in the order that finds one for least.

    The cheapest scenario comes first. Within one, arms that draft come before those that do not: they show
    alone what is wrong with counts and grammars. Paths come in reverse: the first one is what the others are
    held against, and a fault of its own is seen as well from the other side. Conversations stay in their
    order, as what ran before is part of what a scenario asks.
    """
    paths = list(dict.fromkeys(arm.path for arm in plan.arms))
    names = [scenario.name for scenario in plan.scenarios]

    def rank(spec: CellSpec) -> tuple[int, ...]:
        tokens = plan.scenario(spec.scenario).worst_case_tokens
        arm = spec.arm
        order = (arm.slots, -paths.index(arm.path), -arm.depth)
        return (spec.repetition, tokens, names.index(spec.scenario), *order)

    return replace(plan, until="fault", cells=tuple(sorted(plan.cells, key=rank)))


def select_affordable(
    plan: Plan, probes: Sequence[Probe], decoded_tokens: int
) -> tuple[tuple[Probe, ...], tuple[Probe, ...]]:
    """Return the probes that still fit into the budget, and those that do not.

    ``decoded_tokens`` holds what was decoded, and what the cells that are not at their end still may.
    """
    if plan.budget_tokens is None:
        return tuple(probes), ()
    room, fits = plan.budget_tokens - decoded_tokens, []
    for probe in probes:
        if probe.worst_case_tokens > room:
            break
        room -= probe.worst_case_tokens
        fits.append(probe)
    return tuple(fits), tuple(probes[len(fits) :])


def find_unpaid(plan: Plan, comparison: Comparison, records: Sequence[CellRecord]) -> Unpaid | None:
    """Return the probes that the verdict needs next and the budget does not allow, None without any."""
    decoded = count_tokens(records)
    _, dear = select_affordable(plan, plan_probes(plan, comparison, records), decoded)
    if not dear or plan.budget_tokens is None:
        return None
    return Unpaid(
        keys=tuple(probe.spec.key for probe in dear),
        tokens=sum(probe.worst_case_tokens for probe in dear),
        left_tokens=max(0, plan.budget_tokens - decoded),
        budget_tokens=plan.budget_tokens,
    )


def describe_price(plan: Plan) -> str:
    """Return what the run decodes at most, as one line."""
    parts = [
        f"{plan.worst_case_tokens:,} decoded at most",
        f"{price_probes(plan):,} more at most to look into one difference",
    ]
    if plan.logprob_paths:
        parts.append(f"{price_logprobs(plan):,} at most for the logprobs of one turn")
    if plan.until == "fault":
        parts.append(f"{price_reruns(plan):,} more at most for cells that end early and prove nothing")
    budget = "" if plan.budget_tokens is None else f"; never more than {plan.budget_tokens:,} in all"
    return f"{', '.join(parts)}{budget}"


def price_reruns(plan: Plan) -> int:
    """Return the tokens that running cells again decodes at most, where each was ended early for nothing."""
    cells = [plan.scenario(spec.scenario).worst_case_tokens for spec in plan.cells]
    first, later = (1 / (1 + ratio) for ratio in (FIRST_SAVING_RATIO, LATER_SAVING_RATIO))
    return int(sum(cells) * later + max(cells) * (first - later))
