"""Records of a made-up run: what a healthy engine would have done, for tests to bend."""

from collections.abc import Callable
from dataclasses import replace

from engine_bindings.binding import UNKNOWN_DEPTH, Capabilities, Pin
from harness.budget import find_unpaid
from harness.comparison import Comparison, compare
from harness.metrics import collect_token_lengths, derive_metrics
from harness.pairing import pair_cells
from harness.plan import Arm, CellSpec, Plan, build_plan
from harness.report import Report, build_report
from harness.scenario import Conversation, Scenario, Turn, build_turn_prompt
from harness.transcript import CellRecord, Delivery, TurnRecord
from harness.verdict import Verdict, judge

CHAT_OFF = Arm(path="chat", depth=0)
CHAT_ON = Arm(path="chat", depth=3)
SERVE_OFF = Arm(path="serve", depth=0)
SERVE_ON = Arm(path="serve", depth=3)

# A server found running: one depth, which nobody knows, and a cache of its own kind.
SERVED = Capabilities(
    paths=("chat", "whole"),
    max_depth=0,
    depths=(UNKNOWN_DEPTH,),
    frames_are_tokens=frozenset(),
    reports_forwards=False,
    reports_drafted=False,
    reports_cached_tokens=False,
    cold_cells=False,
    exact_prefixes=False,
)

TOKEN_BYTES = 4
PREFILL_NS = 50_000_000
FORWARD_NS = {0: 4_000_000, 3: 6_000_000}

Bend = Callable[[CellSpec, TurnRecord], TurnRecord]


def make_scenario(name: str = "quick", *, turns: int = 2, cap: int = 24, **changes: object) -> Scenario:
    conversations = tuple(
        Conversation(
            id=f"{category}-1",
            category=category,
            system=None,
            turns=tuple(Turn(kind="user", text=f"{category} {i}", max_tokens=cap) for i in range(turns)),
        )
        for category in ("copy", "code")
    )
    scenario = Scenario(
        name=name,
        title=f"The {name} one",
        description="",
        entry="prompt",
        temperature=0.0,
        top_p=1.0,
        conversations=conversations,
    )
    return replace(scenario, **changes)  # type: ignore[arg-type]


def make_plan(*scenarios: Scenario, repetitions: int = 2) -> Plan:
    return build_plan(scenarios or (make_scenario(),), repetitions=repetitions)


def make_turn(**changes: object) -> TurnRecord:
    turn = TurnRecord(
        conversation="copy-1",
        turn=0,
        entry="prompt",
        prompt=b"[gMASK]<sop>p",
        text=b"abcd" * 6,
        deliveries=(),
        sent_ns=0,
        done_ns=1,
        emitted_tokens=6,
        prompt_tokens=10,
        cached_tokens=0,
        prefill_tokens=10,
        forwards=6,
        finish="length",
    )
    return replace(turn, **changes)  # type: ignore[arg-type]


def run_healthy(plan: Plan, bend: Bend = lambda _, turn: turn) -> tuple[CellRecord, ...]:
    """Return the records of a run in which every arm answers alike; ``bend`` may change any turn."""
    return tuple(_run_cell(plan, spec, bend) for spec in plan.cells)


def judge_run(plan: Plan, records: tuple[CellRecord, ...]) -> tuple[Comparison, Verdict]:
    lengths = collect_token_lengths(records)
    metrics = [derive_metrics(record, lengths) for record in records]
    comparison = compare(plan, records, pair_cells(plan, records), metrics)
    if unpaid := find_unpaid(plan, comparison, records):
        comparison = compare(plan, records, pair_cells(plan, records), metrics, unpaid=unpaid)
    return comparison, judge(plan, comparison)


def report_run(plan: Plan, records: tuple[CellRecord, ...]) -> Report:
    comparison, verdict = judge_run(plan, records)
    environment = {"engine": "reference 0.1.0", "model": "sha256:0123456789abcdef"}
    return build_report(plan, records, comparison, verdict, environment)


def _run_cell(plan: Plan, spec: CellSpec, bend: Bend) -> CellRecord:
    turns: list[TurnRecord] = []
    clock_ns = 1_000_000_000
    for conversation in plan.scenario(spec.scenario).conversations:
        answers: list[bytes] = []
        before = None
        for index in range(len(conversation.turns)):
            prompt = build_turn_prompt(conversation, answers, index)
            before = _answer(spec, conversation, index, prompt, before, clock_ns)
            turn = bend(spec, before)
            clock_ns = turn.done_ns + 1_000_000
            turns.append(turn)
            answers.append(turn.text)
    return CellRecord(
        spec=spec,
        started_at="2025-01-01T00:00:00Z",
        argv=("coli-ab-engine",),
        pins=(
            Pin(name="DRAFT", value=str(spec.arm.depth), reason="the arm's draft depth"),
            Pin(name="KVSAVE", value="0", reason="a saved conversation would be resumed"),
        ),
        protocol=spec.arm.path,
        ready_ns=clock_ns,
        turns=tuple(turns),
        exit_code=0,
        engine_stderr_file="stderr.txt",
    )


def _answer(
    spec: CellSpec,
    conversation: Conversation,
    index: int,
    prompt: bytes,
    before: TurnRecord | None,
    sent_ns: int,
) -> TurnRecord:
    tokens = conversation.turns[index].max_tokens
    text = b"".join(f"{conversation.id[:2]}{n % 90 + 10:02d}".encode() for n in range(tokens))
    # One forward brings depth tokens and the one it was asked for, cut at the cap.
    depth = max(0, spec.arm.depth)
    step = depth + 1
    bursts = [min(step, tokens - start) for start in range(0, tokens, step)]
    prompt_tokens = -(-len(prompt) // TOKEN_BYTES)
    cached = (before.prompt_tokens or 0) + (before.emitted_tokens or 0) if before else 0
    prompt_tokens = max(prompt_tokens, cached + 5)
    first_ns = sent_ns + PREFILL_NS
    is_serve = spec.arm.path == "serve"
    deliveries = tuple(
        Delivery(
            at_ns=first_ns + FORWARD_NS[depth] * n,
            size_bytes=burst * TOKEN_BYTES,
            tokens=burst if is_serve else None,
        )
        for n, burst in enumerate(bursts)
    )
    return TurnRecord(
        conversation=conversation.id,
        turn=index,
        entry="prompt",
        prompt=prompt,
        text=text,
        deliveries=deliveries,
        sent_ns=sent_ns,
        accepted_ns=sent_ns + 1000 if is_serve else None,
        done_ns=deliveries[-1].at_ns + 1000,
        emitted_tokens=tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        prefill_tokens=prompt_tokens - cached,
        forwards=len(bursts),
        drafted_tokens=len(bursts) * depth,
        accepted_tokens=tokens - len(bursts),
        length_limited=True,
        finish="length",
        engine_tokens_per_s=100.0,
        token_lengths=(TOKEN_BYTES,) * tokens if is_serve else None,
    )
