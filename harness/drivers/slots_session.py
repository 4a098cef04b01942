"""A session in serve mode with several slots: requests that run at once, told apart by their ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_bindings.errors import EngineGarbageError, EngineRefusedError
from engine_bindings.wire.errors import LocalProtocolError
from engine_bindings.wire.events import Accepted, Data, Done, Refused, TurnProfile
from engine_bindings.wire.stderr_lines import LogitGap, PrefixReuse, StderrEvent
from harness.drivers.answer import Answer
from harness.drivers.base import TurnRequest
from harness.drivers.serve_session import ServeSession, build_refusal
from harness.drivers.stdio import Ending, Reply, build_record
from harness.drivers.turn_counts import TurnCounts
from harness.drivers.waits import Waits
from harness.transcript import Margin, TurnRecord


@dataclass(kw_only=True)
class _Running:
    """One of the turns that run at once."""

    request: TurnRequest
    answer: Answer
    sent_ns: int
    accepted_ns: int | None = None
    ending: Ending | None = None


class SlotsSession(ServeSession):
    """Serve mode with as many slots as requests are asked for at once."""

    def run_together(self, requests: Sequence[TurnRequest]) -> tuple[TurnRecord, ...]:
        """Ask for all turns, each in its slot, before reading any answer; return when all have ended."""
        self._transport.drain_stderr()
        self._log.take_events()
        running = {}
        for request in requests:
            turn = self._submit(request)
            running[self._request_id] = turn
        self._read_answers(running, " and ".join(request.place for request in requests))
        self._transport.drain_stderr()
        events = self._read_slots([request.slot for request in requests])
        shared = _read_margins(events)
        return tuple(
            replace(
                build_record(
                    turn.request,
                    turn.answer,
                    turn.ending,
                    _count_slot(turn.request.slot, events),
                    turn.sent_ns,
                ),
                shared_margins=shared,
            )
            for turn in running.values()
            if turn.ending is not None
        )

    def _read_slots(self, slots: Sequence[int]) -> list[StderrEvent]:
        """Return what stderr says of the turns, waiting until it has told of the prefix of each."""
        expected = self._reported & {"cached_tokens"}
        events: list[StderrEvent] = []
        for more in self._follow_stderr():
            events += more
            if not any(_count_slot(slot, events).list_missing(expected) for slot in slots):
                break
        return events

    def _submit(self, request: TurnRequest) -> _Running:
        try:
            data = self._encode(request)
        except LocalProtocolError as error:
            raise EngineRefusedError(f"{request.place}: the protocol cannot carry it: {error}") from error
        answer = Answer(request.stop, max_tokens=request.max_tokens)
        turn = _Running(request=request, answer=answer, sent_ns=self._transport.now_ns())
        self._transport.send(data)
        return turn

    def _read_answers(self, running: dict[int, _Running], place: str) -> None:
        waits = Waits(self._timeouts, self._transport.now_ns, place=place)
        waits.begin("turn-timeout")
        waits.begin("first-output-timeout")
        self._forwards = None
        while any(turn.ending is None for turn in running.values()):
            at_ns, events = self._receive(waits, place)
            for event in events:
                self._take_event(at_ns, event, running, waits)
            for turn in running.values():
                if turn.answer.is_endless:
                    raise EngineGarbageError(
                        f"{turn.request.place}: no end of the turn after {len(turn.answer.raw)} bytes",
                        hint="that is far more than its cap allows; the engine does not stop",
                    )

    def _take_event(self, at_ns: int, event: Reply, running: dict[int, _Running], waits: Waits) -> None:
        match event:
            case Data(request_id=request_id, payload=payload) if request_id in running:
                running[request_id].answer.add_tokens(at_ns, [payload])
                waits.note_output()
                self._on_output(1)
            case Accepted(request_id=request_id) if request_id in running:
                running[request_id].accepted_ns = at_ns
            case TurnProfile():
                self._forwards = event.profile.forwards
            case Refused(request_id=request_id):
                refused = running.get(request_id) or next(iter(running.values()))
                raise build_refusal(event, refused.request.place)
            case Done(request_id=request_id) if request_id in running:
                turn = running[request_id]
                turn.ending = Ending(
                    done_ns=at_ns,
                    stat=event.stat,
                    accepted_ns=turn.accepted_ns,
                    prompt_tokens=event.stat.prompt_tokens,
                    forwards=self._forwards,
                )
            case _:
                pass


def _count_slot(slot: int, events: Sequence[StderrEvent]) -> TurnCounts:
    """Return what stderr said of one slot; lines that name no slot may belong to any."""
    counts = TurnCounts()
    for event in events:
        if isinstance(event, PrefixReuse) and event.slot == slot:
            counts = counts.add(event)
    return counts


def _read_margins(events: Sequence[StderrEvent]) -> tuple[Margin, ...] | None:
    """Return the margins of all turns together, None where none was printed."""
    counts = TurnCounts()
    for event in events:
        if isinstance(event, LogitGap):
            counts = counts.add(event)
    return counts.margins
