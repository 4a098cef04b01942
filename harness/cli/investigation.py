"""Runs a plan's cells and, where they differ, the probes that show why."""

from collections.abc import Iterable, Sequence

from harness.budget import select_affordable
from harness.cli.results import compare_records
from harness.comparison import Comparison, count_tokens
from harness.early_end import list_looks
from harness.performance import is_settled
from harness.plan import Plan
from harness.probes import has_named_fault, plan_probes
from harness.runner import Runner
from harness.stopping import StopJudge, reserve_tokens
from harness.transcript import CellRecord, Stop, TurnRecord
from harness.verdict import is_void_for_good


class Investigation:
    """One run: the cells of the plan first, then probes until nothing is left to find out.

    Where the plan ends with the first fault, a cell is ended early at the first difference, as far as that
    saves tokens, and probes look into it at once. The run ends with the first fault that is proven and named,
    or with the first cell that fails: what is left could not change the verdict. It also ends once a depth is
    void on every path, since it cannot pass any more. Otherwise a cell that was ended is run again, to its
    end. ``earlier`` are records that the run starts from. A run whose plan lets it end early ends with the
    pair that settles the speed of every contrast.
    """

    def __init__(self, plan: Plan, runner: Runner, earlier: Iterable[CellRecord] = ()) -> None:
        self._plan = plan
        self._runner = runner
        self._judge = StopJudge(plan)
        self._records: list[CellRecord] = list(earlier)

    @property
    def records(self) -> tuple[CellRecord, ...]:
        """Records of the cells and probes so far."""
        return tuple(self._records)

    def run(self) -> None:
        """Run everything that is called for. Raises KeyboardInterrupt as the runner does."""
        to_fault = self._plan.until == "fault"
        if to_fault and has_named_fault(compare_records(self._plan, self._records)):
            return
        looks = list_looks(self._plan)
        # A run that is gone on with may have ended by its rule before it was cut off.
        ended = bool(looks) and self._is_speed_settled()
        for record in () if ended else self._runner.run_plan(self._check if to_fault else None):
            self._records.append(record)
            if record.spec in looks and self._is_speed_settled():
                break
            if to_fault and (record.failure or self._is_decided(record)):
                return
        self._probe()

    def _is_speed_settled(self) -> bool:
        return is_settled(compare_records(self._plan, self._records).performance)

    def _check(self, partial: CellRecord, fresh: Sequence[TurnRecord]) -> Stop | None:
        return self._judge.check(self._records, partial, fresh)

    def _is_decided(self, record: CellRecord) -> bool:
        comparison = self._probe_at(record)
        return has_named_fault(comparison) or is_void_for_good(self._plan, comparison)

    def _probe_at(self, record: CellRecord) -> Comparison:
        """Look into what ended a cell early, or else into the first difference that there is."""
        if record.stop is None:
            return self._probe(first_only=True)
        return self._probe(place=(record.spec.scenario, record.stop.conversation, record.stop.turn))

    def _probe(self, *, first_only: bool = False, place: tuple[str, str, int] | None = None) -> Comparison:
        """Run probes round by round, as each round decides what the next one needs."""
        while True:
            comparison = compare_records(self._plan, self._records)
            wanted = plan_probes(self._plan, comparison, self._records, first_only=first_only, place=place)
            reserved = count_tokens(self._records) + reserve_tokens(self._plan, self._records)
            probes, dear = select_affordable(self._plan, wanted, reserved)
            self._records += self._runner.run_probes(probes)
            if dear or not probes:
                return comparison
