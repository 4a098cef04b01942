"""Sampled answers, arm against arm: the draws of a scenario, tested for coming from one distribution."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.findings import Finding
from harness.plan import Arm, CellSpec, Plan
from harness.transcript import CellRecord
from harness.two_sample import ALPHA, MIN_PAIRS, TwoSample, compare_draws

# A sweep over draws names its conversations so; see docs/scenario-format.md.
_DRAW = re.compile(r"(.+)\.draw-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionRow:
    """One group of draws in two arms, over all repetitions but the repeated ones of one seed: the first."""

    contrast: str
    a: Arm
    b: Arm
    scenario: str
    group: str
    test: TwoSample

    @property
    def sentence(self) -> str:
        """What the test says, in words and numbers."""
        return f"{self.scenario}, {self.group}: {self.a.label} and {self.b.label} {self.result}"

    @property
    def result(self) -> str:
        """The same without the place and the arms."""
        size = f"{self.test.pairs} draws, {self.test.outcomes} different answers"
        if self.test.p_value is None:
            return f"gave {size}: too few to test, {MIN_PAIRS} are needed"
        found = "draw from different distributions" if self.test.differs else "show no different distribution"
        return f"{found} (p = {self.test.p_value:.4f}, error rate {ALPHA:g}, {size})"


def compare_distributions(plan: Plan, records: Mapping[CellSpec, CellRecord]) -> tuple[DistributionRow, ...]:
    """Test every group of draws in every contrast between two arms."""
    rows = []
    for contrast in plan.contrasts:
        if contrast.kind in ("self", "within"):
            continue
        for scenario in plan.scenarios:
            if scenario.temperature == 0:
                continue
            sides = [
                records.get(CellSpec(arm=arm, scenario=scenario.name, repetition=0))
                for arm in (contrast.a, contrast.b)
            ]
            drawn = [_collect_draws(record) for record in sides if record is not None]
            if len(drawn) == 2:
                for group in _list_groups(drawn[0]):
                    test = compare_draws(_pair_draws(group, *drawn))
                    rows.append(
                        DistributionRow(
                            contrast=contrast.name,
                            a=contrast.a,
                            b=contrast.b,
                            scenario=scenario.name,
                            group=group,
                            test=test,
                        )
                    )
    return tuple(rows)


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
        reason=row.result,
    )


def _collect_draws(record: CellRecord) -> dict[str, bytes]:
    """Return the first answer of each drawn conversation, by its id."""
    return {
        turn.conversation: turn.text
        for turn in record.turns
        if turn.turn == 0 and _DRAW.fullmatch(turn.conversation)
    }


def _list_groups(draws: Iterable[str]) -> list[str]:
    matches = [_DRAW.fullmatch(name) for name in draws]
    return list(dict.fromkeys(match[1] for match in matches if match))


def _pair_draws(group: str, a: Mapping[str, bytes], b: Mapping[str, bytes]) -> list[tuple[bytes, bytes]]:
    names = [name for name in a if name in b and (match := _DRAW.fullmatch(name)) and match[1] == group]
    return [(a[name], b[name]) for name in names]
