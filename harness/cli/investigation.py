"""Runs a plan's cells and, where they differ, the probes that show why."""

from collections.abc import Iterable
from typing import Literal

from harness.budget import select_affordable
from harness.cli.results import compare_records
from harness.comparison import Comparison, count_tokens
from harness.plan import Plan
from harness.probes import has_named_fault, plan_probes
from harness.runner import Runner
from harness.transcript import CellRecord
from harness.verdict import is_void_for_good

Until = Literal["end", "fault"]


class Investigation:
    """One run: the cells of the plan first, then probes until nothing is left to find out.

    With ``until="fault"`` the first difference is looked into after each cell, and the run ends with the
    first fault that is proven and named, or with the first cell that fails: what is left could not change
    the verdict. It also ends once a depth is void on every path, since it cannot pass any more. ``earlier``
    are records that the run starts from.
    """

    def __init__(self, plan: Plan, runner: Runner, earlier: Iterable[CellRecord] = ()) -> None:
        self._plan = plan
        self._runner = runner
        self._records: list[CellRecord] = list(earlier)

    @property
    def records(self) -> tuple[CellRecord, ...]:
        """Records of the cells and probes so far."""
        return tuple(self._records)

    def run(self, *, until: Until = "end") -> None:
        """Run everything that is called for. Raises KeyboardInterrupt as the runner does."""
        for record in self._runner.run_plan():
            self._records.append(record)
            if until == "fault" and (record.failure or self._is_decided()):
                return
        self._probe()

    def _is_decided(self) -> bool:
        comparison = self._probe(first_only=True)
        return has_named_fault(comparison) or is_void_for_good(self._plan, comparison)

    def _probe(self, *, first_only: bool = False) -> Comparison:
        """Run probes round by round, as each round decides what the next one needs."""
        while True:
            comparison = compare_records(self._plan, self._records)
            wanted = plan_probes(self._plan, comparison, self._records, first_only=first_only)
            probes, dear = select_affordable(self._plan, wanted, count_tokens(self._records))
            self._records += self._runner.run_probes(probes)
            if dear or not probes:
                return comparison
