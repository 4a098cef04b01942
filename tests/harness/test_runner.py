"""The runner over scripted sessions: which turns it asks for, and what it makes of failures."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import BinaryIO

import pytest

from engine_bindings.binding import Launch, Pin
from engine_bindings.errors import EngineDiedError, EngineStartError
from harness.drivers.base import EngineSession, EngineStart, TurnRequest
from harness.plan import Arm, CellSpec, Plan, build_plan
from harness.runner import MAX_LEFT_FILES, Runner
from harness.scenario import Scenario, parse_scenario
from harness.transcript import CellRecord, LeftFile, Stop, TurnRecord

TEXT = """
schema = 1
name = "talks"
title = "t"
description = "d"
entry = "line"
[defaults]
max_tokens = 8
[[conversation]]
id = "a"
class = "chat"
[[conversation.turn]]
user = "one"
[[conversation.turn]]
user = "two"
[[conversation]]
id = "b"
class = "chat"
[[conversation.turn]]
user = "three"
"""
Script = Callable[[Arm, TurnRequest], bytes]


class FakeSession:
    """Answers by a script, which may raise."""

    def __init__(self, arm: Arm, script: Script, asked: list[object]) -> None:
        self._arm, self._script, self._asked = arm, script, asked

    def start(self) -> EngineStart:
        return EngineStart(protocol=self._arm.path, banner=("banner",), kv_resumed_tokens=None)

    def begin_conversation(self) -> None:
        self._asked.append("begin")

    def run_turn(self, request: TurnRequest) -> TurnRecord:
        self._asked.append(request)
        text = self._script(self._arm, request)
        return TurnRecord(
            conversation=request.conversation,
            turn=request.turn,
            entry="prompt",
            prompt=request.prompt,
            text=text,
            deliveries=(),
            sent_ns=0,
            done_ns=1,
            finish="stop",
        )

    def run_together(self, requests: Sequence[TurnRequest]) -> tuple[TurnRecord, ...]:
        self._asked.append(len(requests))
        return tuple(self.run_turn(request) for request in reversed(requests))[::-1]

    def end(self) -> int:
        return 0

    def kill(self) -> int | None:
        return -9

    def now_ns(self) -> int:
        return 7

    def stderr_tail(self) -> tuple[str, ...]:
        return ("last words",)


class FakeLauncher:
    """Opens fake sessions; with no script the engine cannot be started."""

    def __init__(self, script: Script | None) -> None:
        self.asked: dict[str, list[object]] = {}
        self.left: tuple[LeftFile, ...] = ()
        self._script = script

    def launch(self, arm: Arm, scenario: Scenario, extra: Iterable[Pin] = ()) -> Launch:
        return Launch(
            argv=("engine",),
            pins=(Pin(name="DRAFT", value=str(arm.depth), reason="r"), *extra),
            driver=arm.path,
        )

    @contextmanager
    def open(
        self,
        arm: Arm,
        scenario: Scenario,
        extra: Iterable[Pin] = (),
        *,
        stderr_file: BinaryIO,
        on_output: Callable[[int], None],
        on_left: Callable[[tuple[LeftFile, ...]], None],
    ) -> Iterator[EngineSession]:
        if self._script is None:
            raise EngineStartError("cannot run it")
        try:
            yield FakeSession(arm, self._script, self.asked.setdefault(arm.label, []))
        finally:
            on_left(self.left)


class Sink:
    """Keeps records in memory, and hears of the run."""

    def __init__(self) -> None:
        self.records: list[CellRecord] = []
        self.heard: list[str] = []

    def append_cell(self, record: CellRecord) -> None:
        self.records.append(record)

    def open_stderr(self, spec: CellSpec, attempt: int = 0) -> BinaryIO:
        return io.BytesIO()

    def stderr_name(self, spec: CellSpec, attempt: int = 0) -> str:
        return f"stderr/{spec.key}" + (f" {attempt}" if attempt else "")

    def cell_started(self, spec: CellSpec) -> None:
        self.heard.append(f"start {spec.key}")

    def output_arrived(self, tokens: int) -> None:
        pass

    def turn_ended(self, record: TurnRecord, cap_tokens: int) -> None:
        self.heard.append(f"turn of {cap_tokens}")

    def cell_ended(self, record: CellRecord) -> None:
        self.heard.append(f"end {record.spec.key}")


@pytest.fixture
def plan() -> Plan:
    return build_plan([parse_scenario(TEXT, "s.toml", lambda name: "")], repetitions=1)


def run(plan: Plan, script: Script | None) -> tuple[Sink, FakeLauncher]:
    sink, launcher = Sink(), FakeLauncher(script)
    runner = Runner(plan, launcher, sink, observer=sink, wall_clock=lambda: "now")
    assert list(runner.run_plan()) == sink.records
    return sink, launcher


def requests(launcher: FakeLauncher, arm: str) -> list[TurnRequest]:
    return [item for item in launcher.asked[arm] if isinstance(item, TurnRequest)]


def answer(arm: Arm, request: TurnRequest) -> bytes:
    return b"answer\xff"


def test_each_turn_is_asked_for_with_the_answers_really_given(plan: Plan) -> None:
    _, launcher = run(plan, answer)

    one, two, three = requests(launcher, "serve/3")
    assert one.prompt == b"[gMASK]<sop><|user|>one<|assistant|><think></think>"
    assert two.prompt == one.prompt + b"answer\xff<|user|>two<|assistant|><think></think>"
    assert three.prompt == b"[gMASK]<sop><|user|>three<|assistant|><think></think>"
    assert launcher.asked["serve/3"].count("begin") == 2


def test_only_chat_arms_type_lines(plan: Plan) -> None:
    _, launcher = run(plan, answer)

    assert [request.line for request in requests(launcher, "chat/0")] == [b"one", b"two", b"three"]
    assert [request.line for request in requests(launcher, "serve/0")] == [None, None, None]


def test_record_holds_how_the_engine_was_started_and_what_it_said(plan: Plan) -> None:
    sink, _ = run(plan, answer)

    record = sink.records[1]
    assert record.spec.key == "chat/3 talks 0"
    assert (record.argv, record.started_at, record.banner, record.protocol) == (
        ("engine",),
        "now",
        ("banner",),
        "chat",
    )
    assert record.pins[0].value == "3"
    assert (record.ready_ns, record.ended_ns, record.exit_code, record.failure) == (7, 7, 0, None)
    assert record.engine_stderr_file == "stderr/chat/3 talks 0"
    assert sink.heard[:5] == ["start chat/0 talks 0", *["turn of 8"] * 3, "end chat/0 talks 0"]


def test_failure_keeps_the_turns_before_it_and_the_cells_after_it(plan: Plan) -> None:
    def script(arm: Arm, request: TurnRequest) -> bytes:
        if arm.label == "chat/0" and request.turn == 1:
            raise EngineDiedError("died", hint="look")
        return b"x"

    sink, _ = run(plan, script)

    failed, *others = sink.records
    assert failed.failure is not None
    assert (failed.failure.code, failed.failure.message, failed.failure.hint) == (
        "engine-died",
        "died",
        "look",
    )
    assert failed.failure.stderr_tail == ("last words",)
    assert (len(failed.turns), failed.exit_code) == (1, -9)
    assert all(record.failure is None for record in others)


@pytest.mark.parametrize(("number", "named", "notes"), [(64, 64, 0), (65, 64, 1)])
def test_files_that_the_engine_left_are_recorded_up_to_a_limit(
    plan: Plan, number: int, named: int, notes: int
) -> None:
    sink, launcher = Sink(), FakeLauncher(answer)
    launcher.left = tuple(LeftFile(name=f"{n:03}", size_bytes=n) for n in range(number))

    record = next(iter(Runner(plan, launcher, sink, observer=sink, wall_clock=lambda: "now").run_plan()))

    assert MAX_LEFT_FILES == 64
    assert (len(record.left_files), len(record.notes)) == (named, notes)


def test_interruption_is_recorded_with_the_turns_so_far(plan: Plan) -> None:
    def script(arm: Arm, request: TurnRequest) -> bytes:
        if request.turn == 1:
            raise KeyboardInterrupt
        return b"x"

    sink, launcher = Sink(), FakeLauncher(script)
    runner = Runner(plan, launcher, sink, observer=sink, wall_clock=lambda: "now")
    with pytest.raises(KeyboardInterrupt):
        list(runner.run_plan())

    (record,) = sink.records
    assert record.failure is not None
    assert record.failure.code == "interrupted"
    assert len(record.turns) == 1


def test_engine_that_no_arm_can_start_is_tried_once_for_each_arm(plan: Plan) -> None:
    twice = build_plan(plan.scenarios, repetitions=2)
    sink, _ = run(twice, None)

    codes = [record.failure and record.failure.code for record in sink.records]
    assert codes == ["engine-start"] * 4 + ["not-run"] * 4


def test_engine_that_one_arm_could_start_is_tried_to_the_end(plan: Plan) -> None:
    class OneArmStarts(FakeLauncher):
        @contextmanager
        def open(
            self,
            arm: Arm,
            scenario: Scenario,
            extra: Iterable[Pin] = (),
            *,
            stderr_file: BinaryIO,
            on_output: Callable[[int], None],
            on_left: Callable[[tuple[LeftFile, ...]], None],
        ) -> Iterator[EngineSession]:
            if arm.label != "serve/3":
                raise EngineStartError("cannot run it")
            yield FakeSession(arm, answer, [])

    sink = Sink()
    twice = build_plan(plan.scenarios, repetitions=2)
    list(Runner(twice, OneArmStarts(None), sink, observer=sink, wall_clock=lambda: "now").run_plan())

    codes = [record.failure and record.failure.code for record in sink.records]
    assert codes.count("engine-start") == 6
    assert codes.count(None) == 2


def test_conversations_of_a_slotted_arm_run_side_by_side_and_are_recorded_in_their_order() -> None:
    text = TEXT.replace('entry = "line"', "slots = 2")
    plan = build_plan([parse_scenario(text, "s.toml", lambda name: "")], repetitions=1)
    sink, launcher = run(plan, lambda arm, request: request.conversation.encode())

    asked = launcher.asked["serve/0x2"]
    assert [item for item in asked if isinstance(item, int)] == [2]
    assert [(r.conversation, r.turn, r.slot) for r in requests(launcher, "serve/0x2")] == [
        ("b", 0, 1),
        ("a", 0, 0),
        ("a", 1, 0),
    ]
    record = next(r for r in sink.records if r.spec.arm.slots == 2)
    assert [(turn.conversation, turn.turn) for turn in record.turns] == [("a", 0), ("a", 1), ("b", 0)]


def test_a_conversation_runs_in_the_context_that_it_names_where_a_path_can_choose_it() -> None:
    text = TEXT.replace('entry = "line"', "").replace('id = "b"', 'id = "b"\nslot = 1')
    plan = build_plan([parse_scenario(text, "s.toml", lambda name: "")], repetitions=1)
    _, launcher = run(replace(plan, context_paths=("chat",)), answer)

    assert [request.slot for request in requests(launcher, "chat/3")] == [0, 0, 1]
    assert [request.slot for request in requests(launcher, "serve/3")] == [0, 0, 0]


def end_behind_the_first(partial: CellRecord, fresh: Sequence[TurnRecord]) -> Stop | None:
    if partial.spec.arm.label != "chat/3":
        return None
    assert fresh == partial.turns[-1:]
    return Stop(conversation="a", turn=0, reason="it differs", turns_left=2)


def test_a_cell_ends_where_the_check_says_and_is_run_again_when_the_caller_goes_on(plan: Plan) -> None:
    sink, launcher = Sink(), FakeLauncher(answer)
    runner = Runner(plan, launcher, sink, observer=sink, wall_clock=lambda: "now")
    done = runner.run_plan(end_behind_the_first)

    next(done)
    stopped = next(done)
    assert (stopped.spec.arm.label, stopped.attempt, len(stopped.turns)) == ("chat/3", 0, 1)
    assert (stopped.failure, stopped.exit_code, stopped.is_complete) == (None, 0, False)
    assert CellRecord.from_json(stopped.to_json()) == stopped
    assert len(requests(launcher, "chat/3")) == 1
    whole = next(done)
    assert (whole.spec, whole.attempt, len(whole.turns), whole.stop) == (stopped.spec, 1, 3, None)
    assert whole.engine_stderr_file != stopped.engine_stderr_file
    assert [record.spec.arm.label for record in done] == ["serve/0", "serve/3"]


def test_a_cell_is_not_ended_behind_its_last_turn(plan: Plan) -> None:
    asked: list[int] = []

    def note(partial: CellRecord, fresh: Sequence[TurnRecord]) -> None:
        asked.append(len(partial.turns))

    sink = Sink()
    runner = Runner(plan, FakeLauncher(answer), sink, observer=sink, wall_clock=lambda: "now")
    list(runner.run_plan(note))
    assert asked == [1, 2] * 4


def test_a_cell_that_was_ended_early_before_an_interruption_is_run_to_its_end(plan: Plan) -> None:
    sink = Sink()
    first = next(Runner(plan, FakeLauncher(answer), sink, observer=sink, wall_clock=lambda: "now").run_plan())
    stopped = replace(
        first, turns=first.turns[:1], stop=Stop(conversation="a", turn=0, reason="", turns_left=2)
    )
    runner = Runner(
        plan, FakeLauncher(answer), sink, observer=sink, wall_clock=lambda: "now", earlier=[stopped]
    )
    record = next(runner.run_plan(lambda partial, fresh: stopped.stop))
    assert (record.spec, record.attempt, record.is_complete) == (stopped.spec, 1, True)
