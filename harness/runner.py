"""Runs a plan: one engine process a cell, one record a cell. The only stage that touches engines."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Protocol

from engine_bindings.binding import Launch, Pin
from engine_bindings.errors import ColiAbError, EngineError
from harness.drivers.base import EngineSession, EngineStart, TurnRequest
from harness.plan import Arm, CellSpec, Plan
from harness.probes import Probe
from harness.reuse import list_measured
from harness.scenario import Conversation, Scenario, build_turn_line, build_turn_messages, build_turn_prompt
from harness.transcript import INTERRUPTED_CODE, CellRecord, Conditions, Failure, LeftFile, Stop, TurnRecord

# An engine that writes a file for every request must not fill the records.
MAX_LEFT_FILES = 64
NOT_RUN = Failure(
    code="not-run",
    message="not run: the engine of no arm became ready",
    hint="the first cell of each arm says why",
)
INTERRUPTED = Failure(code=INTERRUPTED_CODE, message="interrupted before its last turn", hint="run it again")


StopCheck = Callable[[CellRecord, Sequence[TurnRecord]], Stop | None]
"""Is shown the record of a running cell and the turns that are new in it; returns why it is to end there."""


class Launcher(Protocol):
    """Starts engines; see :class:`harness.drivers.launcher.EngineLauncher`."""

    def launch(self, arm: Arm, scenario: Scenario, extra: Iterable[Pin] = ()) -> Launch:
        """Return how the engine of an arm is started; ``extra`` are the settings of a probe."""

    def open(
        self,
        arm: Arm,
        scenario: Scenario,
        extra: Iterable[Pin] = (),
        *,
        stderr_file: BinaryIO,
        on_output: Callable[[int], None],
        on_left: Callable[[tuple[LeftFile, ...]], None],
    ) -> AbstractContextManager[EngineSession]:
        """Start it; leaving the block ends what still runs of it, and then tells what files it left."""


class RecordSink(Protocol):
    """Where records and stderr go; see :class:`harness.rundir.RunDirectory`."""

    def append_cell(self, record: CellRecord) -> None:
        """Keep a record for good."""

    def open_stderr(self, spec: CellSpec, attempt: int = 0) -> BinaryIO:
        """Open the file for the stderr of a cell's engine."""

    def stderr_name(self, spec: CellSpec, attempt: int = 0) -> str:
        """Return that file's path inside the run directory."""


class Observer(Protocol):
    """Hears how the run goes on."""

    def cell_started(self, spec: CellSpec) -> None:
        """Take note that a cell begins."""

    def output_arrived(self, tokens: int) -> None:
        """Take note of a piece of an answer."""

    def turn_ended(self, record: TurnRecord, cap_tokens: int) -> None:
        """Take note of the end of a turn that might have taken ``cap_tokens``."""

    def cell_ended(self, record: CellRecord) -> None:
        """Take note that a cell ended and its record is on disk."""


@dataclass(kw_only=True)
class _Cell:
    """What is known of a cell while it runs."""

    spec: CellSpec
    attempt: int = 0
    scenario: Scenario
    extra: tuple[Pin, ...] = ()
    started_at: str
    before: Conditions | None = None
    check: StopCheck | None = None
    start: EngineStart | None = None
    ready_ns: int | None = None
    ended_ns: int | None = None
    turns: list[TurnRecord] = field(default_factory=list)
    failure: Failure | None = None
    stop: Stop | None = None
    exit_code: int | None = None
    left_files: tuple[LeftFile, ...] = ()
    notes: tuple[str, ...] = ()

    def take_left_files(self, files: tuple[LeftFile, ...]) -> None:
        """Keep the names of the files that the engine left, and a remark on those that are too many."""
        self.left_files = files[:MAX_LEFT_FILES]
        if len(files) > MAX_LEFT_FILES:
            self.notes = (f"the engine left {len(files):,} files; the first {MAX_LEFT_FILES} are named",)


class Runner:
    """Runs the cells of a plan in its order.

    ``wall_clock`` returns the time of day as ISO 8601 text; it is only recorded, never measured with.
    ``earlier`` are records that the run starts from: what they measured is not measured again.
    ``read_conditions`` tells the state of the machine, before and after each cell.
    """

    def __init__(
        self,
        plan: Plan,
        launcher: Launcher,
        sink: RecordSink,
        *,
        observer: Observer,
        wall_clock: Callable[[], str],
        earlier: Iterable[CellRecord] = (),
        read_conditions: Callable[[], Conditions | None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._launcher = launcher
        self._sink = sink
        self._observer = observer
        self._wall_clock = wall_clock
        self._read_conditions = read_conditions
        known = tuple(earlier)
        self._measured = list_measured(plan, known)
        self._attempts = Counter(record.spec for record in known)

    def run_plan(self, check: StopCheck | None = None) -> Iterator[CellRecord]:
        """Yield the record of each cell once it is on disk.

        ``check`` may end a cell early. A caller who goes on after the record of such a cell gets the whole
        cell next, run again: in a fresh process the rest alone would find another cache than in other arms.

        When the engine of no arm became ready, the cells that are left are recorded as not run: starting a
        large model takes many minutes, and it would fail again.

        Raises:
            KeyboardInterrupt: after the interrupted cell has been recorded with the turns so far.
        """
        unready: set[Arm] = set()
        any_ready = False
        to_run = {spec.arm for spec in self._plan.cells if spec not in self._measured}
        for spec in self._plan.cells:
            if spec in self._measured:
                continue
            cell = self._new_cell(spec, self._plan.scenario(spec.scenario))
            if not any_ready and unready == to_run:
                cell.failure = NOT_RUN
                yield self._keep(self._build_record(cell, after=self._read_conditions()))
                continue
            cell.check = None if cell.attempt else check
            record = self._run_kept(cell)
            yield record
            if record.stop is not None:
                yield self._run_kept(self._new_cell(spec, cell.scenario))
            any_ready |= record.ready_ns is not None
            if record.ready_ns is None:
                unready.add(spec.arm)

    def run_probes(self, probes: Iterable[Probe]) -> Iterator[CellRecord]:
        """Yield the record of each probe once it is on disk.

        Raises:
            KeyboardInterrupt: after the interrupted probe has been recorded.
        """
        for probe in probes:
            yield self._run_kept(self._new_cell(probe.spec, probe.scenario, probe.settings))

    def _new_cell(self, spec: CellSpec, scenario: Scenario, extra: tuple[Pin, ...] = ()) -> _Cell:
        return _Cell(
            spec=spec,
            attempt=self._attempts[spec],
            scenario=scenario,
            extra=extra,
            started_at=self._wall_clock(),
            before=self._read_conditions(),
        )

    def _run_kept(self, cell: _Cell) -> CellRecord:
        record = self._keep(self._run_cell(cell))
        self._attempts[cell.spec] += 1
        if record.failure == INTERRUPTED:
            raise KeyboardInterrupt
        return record

    def _keep(self, record: CellRecord) -> CellRecord:
        self._sink.append_cell(record)
        self._observer.cell_ended(record)
        return record

    def _run_cell(self, cell: _Cell) -> CellRecord:
        spec = cell.spec
        self._observer.cell_started(spec)
        try:
            with self._sink.open_stderr(spec, cell.attempt) as stderr_file:
                opened = self._launcher.open(
                    spec.arm,
                    cell.scenario,
                    cell.extra,
                    stderr_file=stderr_file,
                    on_output=self._observer.output_arrived,
                    on_left=cell.take_left_files,
                )
                with opened as session:
                    self._measure(cell, session)
        except EngineError as error:
            cell.failure = _failure(error)
        except KeyboardInterrupt:
            cell.failure = INTERRUPTED
        return self._build_record(cell, after=self._read_conditions())

    def _measure(self, cell: _Cell, session: EngineSession) -> None:
        """Run all turns. An engine's error becomes the cell's failure; the turns so far stay."""
        try:
            cell.start = session.start()
            cell.ready_ns = session.now_ns()
            slots = cell.spec.arm.slots
            for start in range(0, len(cell.scenario.conversations), slots):
                together = cell.scenario.conversations[start : start + slots]
                self._run_conversations(cell, together, session)
                if cell.stop is not None:
                    break
            session.end()
        except EngineError as error:
            cell.exit_code = session.kill()
            cell.failure = _failure(error, session.stderr_tail())
        else:
            cell.exit_code = 0
        finally:
            cell.ended_ns = session.now_ns()

    def _run_conversations(
        self, cell: _Cell, conversations: Sequence[Conversation], session: EngineSession
    ) -> None:
        """Run conversations side by side, one turn of each at a time; one alone where the arm has one slot.

        The records stand in the order of the conversations, whatever ended first.
        """
        scenario = cell.scenario
        session.begin_conversation()
        records: list[list[TurnRecord]] = [[] for _ in conversations]
        first = len(cell.turns)
        for index in range(max(len(conversation.turns) for conversation in conversations)):
            asked = [i for i, conversation in enumerate(conversations) if index < len(conversation.turns)]
            requests = [
                replace(
                    self._build_request(cell.spec.arm, scenario, conversations[i], records[i]),
                    slot=self._choose_slot(cell.spec.arm, conversations[i], i),
                    logprobs=cell.spec.probe is not None and cell.spec.probe.kind == "logprobs",
                )
                for i in asked
            ]
            answered = (
                session.run_together(requests) if len(requests) > 1 else (session.run_turn(requests[0]),)
            )
            for i, record in zip(asked, answered, strict=True):
                records[i].append(record)
                self._observer.turn_ended(record, conversations[i].turns[index].max_tokens)
            cell.turns[first:] = [record for own in records for record in own]
            if self._stops(cell, answered):
                return

    def _stops(self, cell: _Cell, answered: Sequence[TurnRecord]) -> bool:
        left = cell.scenario.turn_count - len(cell.turns)
        if cell.check is not None and left:
            cell.stop = cell.check(self._build_record(cell), answered)
        return cell.stop is not None

    def _build_request(
        self, arm: Arm, scenario: Scenario, conversation: Conversation, answered: Sequence[TurnRecord]
    ) -> TurnRequest:
        """Build the request for the turn behind the ones that have been answered."""
        index, answers = len(answered), [record.text for record in answered]
        turn, entry = conversation.turns[index], self._plan.entry(arm, scenario)
        return TurnRequest(
            conversation=conversation.id,
            turn=index,
            prompt=build_turn_prompt(conversation, answers, index),
            line=build_turn_line(conversation, index) if entry == "line" else None,
            messages=build_turn_messages(conversation, answers, index) if entry == "messages" else (),
            max_tokens=turn.max_tokens,
            temperature=scenario.temperature,
            top_p=scenario.top_p,
            stop=turn.stop,
            cancel_after_tokens=turn.cancel_after_tokens,
            may_refuse=turn.refusal != "never",
        )

    def _choose_slot(self, arm: Arm, conversation: Conversation, position: int) -> int:
        """Return the context of a conversation: its own where several run at once, else the one it names."""
        if arm.slots > 1:
            return position
        return conversation.slot if arm.path in self._plan.context_paths else 0

    def _build_record(self, cell: _Cell, after: Conditions | None = None) -> CellRecord:
        launch = self._launcher.launch(cell.spec.arm, cell.scenario, cell.extra)
        start = cell.start
        return CellRecord(
            spec=cell.spec,
            attempt=cell.attempt,
            started_at=cell.started_at,
            argv=launch.argv,
            pins=launch.pins,
            banner=start.banner if start else (),
            protocol=start.protocol if start else None,
            ready_ns=cell.ready_ns,
            ended_ns=cell.ended_ns,
            kv_resumed_tokens=start.kv_resumed_tokens if start else None,
            turns=tuple(cell.turns),
            failure=cell.failure,
            stop=cell.stop,
            exit_code=cell.exit_code,
            engine_stderr_file=self._sink.stderr_name(cell.spec, cell.attempt),
            left_files=cell.left_files,
            notes=cell.notes,
            before=cell.before,
            after=after,
        )


def _failure(error: ColiAbError, stderr_tail: Sequence[str] = ()) -> Failure:
    return Failure(code=error.code, message=error.message, hint=error.hint, stderr_tail=tuple(stderr_tail))
