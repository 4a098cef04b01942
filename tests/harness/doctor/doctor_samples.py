"""Records of a made-up engine that does all that its binding claims, for tests to bend."""

from collections.abc import Callable
from dataclasses import replace

from engine_bindings.binding import Capabilities, Pin
from harness.doctor.diagnosis import diagnose
from harness.doctor.probes import Examination, Visit, plan_examination
from harness.doctor.rows import Diagnosis, Row
from harness.plan import Timeouts
from harness.scenario import Turn
from harness.transcript import CellRecord, Delivery, Margin, TurnRecord

ABLE = Capabilities(
    paths=("chat", "serve"),
    max_depth=8,
    frames_are_tokens=frozenset({"serve"}),
    reports_forwards=True,
    reports_drafted=True,
    reports_cached_tokens=True,
    grammar="constraint",
    draws_repeat=True,
    context_tokens=4096,
    margin_pin=Pin(name="GAPS", value="1", reason="prints them"),
    reports_logprobs=frozenset({"serve"}),
)
FORBIDS = Pin(name="KVSAVE", value="0", reason="no saved state", forbids=(".coli_kv",))

BendTurn = Callable[[Visit, TurnRecord], TurnRecord]
BendCell = Callable[[Visit, CellRecord], CellRecord]


def keep_turn(_: Visit, turn: TurnRecord) -> TurnRecord:
    return turn


def keep_cell(_: Visit, record: CellRecord) -> CellRecord:
    return record


def plan_visits(able: Capabilities = ABLE, **more: bool) -> Examination:
    return plan_examination(
        able, engine="made-up", depth=3, timeouts=Timeouts(), clampable=able.paths, **more
    )


def examine(
    able: Capabilities = ABLE,
    *,
    bend: BendTurn = keep_turn,
    bend_cell: BendCell = keep_cell,
    examination: Examination | None = None,
) -> Diagnosis:
    """Return the diagnosis of the made-up engine, each turn and record of it bent."""
    planned = examination or plan_visits(able)
    seen = [(visit, bend_cell(visit, _run(able, visit, bend))) for visit in planned.visits]
    return diagnose(planned, able, seen)


def find_row(diagnosis: Diagnosis, path: str, capability: str) -> Row:
    return next(row for row in diagnosis.rows if (row.path, row.capability) == (path, capability))


def list_names(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    return {(path, complaint.name) for path, complaint in diagnosis.complaints("problem")}


def _run(able: Capabilities, visit: Visit, bend: BendTurn) -> CellRecord:
    spec = visit.probe.spec
    turns = []
    for conversation in visit.probe.scenario.conversations:
        for index, asked in enumerate(conversation.turns):
            turns.append(bend(visit, _answer(able, visit, conversation.id, index, asked)))
    return CellRecord(
        spec=spec,
        started_at="2025-01-01T00:00:00Z",
        argv=("engine",),
        pins=(FORBIDS, Pin(name="SEED", value="1", reason="repeats")),
        protocol=visit.path,
        ready_ns=1,
        turns=tuple(turns),
        exit_code=0,
    )


def _answer(able: Capabilities, visit: Visit, conversation: str, index: int, asked: Turn) -> TurnRecord:
    """Answer as a healthy engine: the count ends by itself, the others at their cap or when told to."""
    depth, cap = max(0, visit.probe.spec.arm.depth), asked.max_tokens
    text = {"talk": b"wxyz" * 9 if index == 0 else b"abcd" * cap, "grammar": b"red"}.get(conversation)
    if text is None:
        text = (b"QRST" if visit.probe.scenario.temperature else b"abcd") * cap
    tokens = max(1, len(text) // 4)
    forwards = -(-tokens // (depth + 1))
    turn = TurnRecord(
        conversation=conversation,
        turn=index,
        entry="prompt",
        prompt=b"p",
        text=text,
        deliveries=tuple(Delivery(at_ns=n, size_bytes=4, tokens=1) for n in range(tokens)),
        sent_ns=0,
        done_ns=100,
        emitted_tokens=tokens,
        prompt_tokens=30 if index else 10,
        cached_tokens=19 if index else 0,
        prefill_tokens=11 if index else 10,
        forwards=forwards,
        drafted_tokens=forwards * depth,
        accepted_tokens=tokens - forwards,
        finish="length" if tokens == cap else "stop",
        token_lengths=(4,) * tokens if visit.path in able.frames_are_tokens and tokens > 1 else None,
        margins=(Margin(best=1, second=2, gap=0.5),) * tokens if visit.probe.settings else None,
        logprobs=(-0.5,) * tokens if visit.kind == "asked" and visit.path in able.reports_logprobs else None,
    )
    if conversation in ("cancel", "stop"):
        finish = "cancelled" if conversation == "cancel" else "stop-string"
        return replace(
            turn,
            text=text[:8],
            emitted_tokens=2,
            deliveries=turn.deliveries[:2],
            forwards=2,
            drafted_tokens=0,
            accepted_tokens=0,
            token_lengths=turn.token_lengths and turn.token_lengths[:2],
            asked_to_end_ns=1,
            finish=finish,  # type: ignore[arg-type]
        )
    if conversation == "long":
        return replace(turn, text=b"", emitted_tokens=None, forwards=None, finish="refused")
    return turn
