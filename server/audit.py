"""The guard at run time: finished greedy answers are replayed with speculation off while nobody waits.

A replay starts cold: a throw-away prompt empties the slot first, so that no row that speculation wrote is
read again. A difference that is not a proven near-tie switches MTP off at once, and both transcripts are
kept.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from engine_bindings.wire.mux_extension import Options
from server.admission import Admission, Grant
from server.audit_record import DifferenceStore, Sides
from server.choice import Choice
from server.engine_link import EngineLink
from server.engine_supervisor import EngineSupervisor
from server.engine_turn import EngineTurn, Token, TurnFailed, TurnRefused, TurnRequest
from server.job import Ended, Job
from server.prometheus_metrics import Metrics
from server.slots import Slots
from server.speculation import SpeculationSwitch

LOG = logging.getLogger("coli_ab.server")
# An answer waits for a quiet moment; more than these are dropped, oldest first.
MAX_PENDING = 64
# A replay that made room this many times is given up: under steady load it would begin for ever.
MAX_PREEMPTIONS = 3
# Alternatives per token: the other side's token is nearly always the second one.
REPLAY_LOGPROBS = 5
# Two candidates closer than this are told apart by rounding alone. Margins of 1e-3 come from mixed kernel
# families and are no excuse here: a certificate names one family.
NEAR_TIE_LOGPROB = 1e-4
# Both logprobs of a margin are rounded to six digits.
ROUNDING_LOGPROB = 2e-6
LOGPROB_DIGITS = 6


FLUSH_OPTIONS = Options(depth=0, payload="ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An answer that was given with speculation on, and how it was asked for.

    ``preemptions`` counts the replays of it that made room for a request.
    """

    job: Job
    request: TurnRequest
    ids: tuple[int, ...]
    length_limited: bool
    cached_tokens: int | None
    preemptions: int = 0


class _Preempted(Exception):  # noqa: N818
    """A request came; the replay starts again later."""


class AuditGuard:
    """Collects samples and replays them.

    ``draw`` returns a number from 0 to 1; ``store`` keeps differences.
    """

    def __init__(
        self,
        *,
        rate: float,
        draw: Callable[[], float],
        store: DifferenceStore,
        switch: SpeculationSwitch,
        admission: Admission,
        slots: Slots,
        supervisor: EngineSupervisor,
        metrics: Metrics,
    ) -> None:
        self.rate = rate
        self.replayed = self.near_ties = self.differences = self.dropped = self.failed = 0
        self.kept_file: str | None = None
        self.write_error: str | None = None
        # Why the difference may not show again in a run of its file; None before there is one.
        self.obstacles: tuple[str, ...] | None = None
        self._draw = draw
        self._store = store
        self._switch = switch
        self._admission = admission
        self._slots = slots
        self._supervisor = supervisor
        self._metrics = metrics
        self._pending: deque[Sample] = deque()
        self._news = asyncio.Event()
        self._turn: EngineTurn | None = None
        self._preempted = False

    @property
    def pending(self) -> int:
        """Answers that wait for their replay."""
        return len(self._pending)

    def offer(self, job: Job, request: TurnRequest, choice: Choice, ended: Ended) -> None:
        """Take an answer into the sample, when it can be replayed and chance wants it."""
        eligible = (
            self.rate > 0
            and self._switch.decision.enabled
            and request.options is not None
            and request.temperature == 0
            and not choice.stopped
            and _speculated(ended)
        )
        if not eligible or self._draw() >= self.rate:
            return
        if len(self._pending) >= MAX_PENDING:
            self._pending.popleft()
            self.dropped += 1
        limited = ended.finish_reason == "length"
        sample = Sample(
            job=job,
            request=request,
            ids=tuple(choice.ids),
            length_limited=limited,
            cached_tokens=ended.counts.cached_tokens,
        )
        self._pending.append(sample)
        self._news.set()

    def preempt(self) -> None:
        """Make room for a request that waits."""
        self._preempted = True
        if self._turn is not None:
            self._turn.cancel()

    async def run(self) -> None:
        """Replay samples until cancelled, one at a time, only while nobody runs or waits."""
        while True:
            await self._admission.idle()
            grant = self._admission.acquire_idle() if self._pending else None
            if grant is None:
                self._news.clear()
                await self._news.wait()
                continue
            sample, self._preempted = self._pending.popleft(), False
            try:
                await self._audit(sample, grant)
            except _Preempted:
                self._put_back(sample)
            except (TurnFailed, TurnRefused) as error:
                self.failed += 1
                LOG.warning("a replay for the audit could not be done: %s", error)
            except Exception:  # the guard outlives a fault in one sample, or nothing more is audited
                self.failed += 1
                LOG.exception("unexpected error in the audit")
            finally:
                self._slots.record(grant.slot, ())
                grant.release()

    def _put_back(self, sample: Sample) -> None:
        if sample.preemptions + 1 >= MAX_PREEMPTIONS:
            self.dropped += 1
        else:
            self._pending.append(replace(sample, preemptions=sample.preemptions + 1))

    async def _audit(self, sample: Sample, grant: Grant) -> None:
        engine = await self._supervisor.engine()
        request = replay_request(sample.request, grant.slot)
        await self._run_turn(engine, flush_request(request))
        tokens, limited = await self._run_turn(engine, request)
        self.replayed += 1
        self._metrics.add("audit_replays")
        self._judge(sample, tokens, limited)

    async def _run_turn(self, engine: EngineLink, request: TurnRequest) -> tuple[list[Token], bool]:
        if self._preempted:
            raise _Preempted
        turn = self._turn = engine.submit(request)
        tokens: list[Token] = []
        try:
            async with aclosing(turn.batches()) as batches:
                async for batch in batches:
                    tokens += batch
        except TurnRefused as error:
            raise (_Preempted() if self._preempted else error) from error
        finally:
            self._turn = None
            turn.cancel()
        return tokens, bool(turn.outcome and turn.outcome.stat.length_limited)

    def _judge(self, sample: Sample, tokens: list[Token], limited: bool) -> None:
        replayed = tuple(token.detail.token_id for token in tokens if token.detail)
        if (sample.ids, sample.length_limited) == (replayed, limited):
            return
        gap = near_tie_gap(sample.ids, tokens)
        if gap is not None and is_near_tie(gap, constrained=bool(sample.request.grammar)):
            self.near_ties += 1
            self._metrics.add("audit_near_ties")
            LOG.warning("an audited answer differs at a near-tie of %.6f", gap)
            return
        self._trip(sample, replayed, gap)

    def _trip(self, sample: Sample, replayed: tuple[int, ...], gap: float | None) -> None:
        self.differences += 1
        self._metrics.add("audit_differences")
        reason = f"the audit of {sample.job.id} gave another answer with speculation off"
        if not self._switch.tripped:
            self._switch.trip(reason)
        LOG.error("MTP is off now: %s", reason)
        sides = Sides(
            job=sample.job,
            max_tokens=sample.request.max_tokens,
            on=sample.ids,
            off=replayed,
            gap=gap,
            cached_tokens=sample.cached_tokens,
        )
        self.obstacles = sides.obstacles
        self._keep(sides)

    def _keep(self, sides: Sides) -> None:
        try:
            self.kept_file, self.write_error = self._store.write(sides), None
        except OSError as error:
            self.kept_file, self.write_error = None, f"{self._store.directory}: {error.strerror or error}"
            LOG.error("the difference could not be kept: %s\n%s", self.write_error, self._store.render(sides))
        else:
            LOG.error("both transcripts are in %s", self.kept_file)


def _speculated(ended: Ended) -> bool:
    """Say whether anything was verified in a batch: MTP drafts, or tokens that a grammar forced."""
    counts = ended.counts
    saved = counts.forwards is not None and counts.forwards < counts.completion_tokens
    return bool(counts.drafted_tokens) or saved


def replay_request(request: TurnRequest, slot: int) -> TurnRequest:
    """Return the turn that asks for the same answer without speculation."""
    assert request.options is not None  # noqa: S101 - only such turns are sampled
    options = replace(request.options, depth=0, logprobs=REPLAY_LOGPROBS)
    return replace(request, slot=slot, options=options)


def flush_request(request: TurnRequest) -> TurnRequest:
    """Return a turn of one token whose prompt shares no beginning with the request's."""
    first = request.prompt.partition(b" ")[0]
    other = b"1" if first == b"0" else b"0"
    return replace(request, prompt=other, max_tokens=1, grammar=b"", options=FLUSH_OPTIONS)


def near_tie_gap(ids: tuple[int, ...], replayed: list[Token]) -> float | None:
    """Return how far apart both candidates were at the first difference; None when that is not known."""
    for token_id, token in zip(ids, replayed, strict=False):
        if token.detail is None or token.detail.token_id == token_id:
            continue
        others = {one.token_id: one.logprob for one in token.detail.alternatives}
        return token.detail.logprob - others[token_id] if token_id in others else None
    return None


def is_near_tie(gap: float, *, constrained: bool) -> bool:
    """Say whether a margin excuses a difference.

    A negative one does not: the replay took another token than its own favourite. Under a grammar none does:
    logprobs are those before the grammar's mask, so they do not say how close the allowed candidates were.
    """
    rounded = round(gap, LOGPROB_DIGITS)
    return not constrained and -ROUNDING_LOGPROB <= rounded <= NEAR_TIE_LOGPROB + ROUNDING_LOGPROB
