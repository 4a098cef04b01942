"""Running a job: wait for a slot, submit, read the turn, and leave the slot clean whatever happens."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from engine_bindings.wire.mux_extension import Options
from server.admission import Admission, Grant
from server.api_errors import ApiError, context_exceeded, engine_failed, invalid, unsupported
from server.choice import Choice, pieces_of
from server.engine_link import EngineLink
from server.engine_supervisor import EngineSupervisor
from server.engine_turn import EngineTurn, TurnFailed, TurnRefused, TurnRequest
from server.job import Ended, Job, JobEvent, Started
from server.slots import Slots
from server.speculation import SpeculationSwitch

NEEDS_EXTENSION = "the engine does not take options per request (OPTIONS), which this needs"


class Listener(Protocol):
    """Who hears of what happens to jobs."""

    def accepted(self, job: Job) -> None:
        """Hear that the engine took the prompt of a choice."""

    def first_output(self, job: Job) -> None:
        """Hear that the first text of a job is there."""

    def finished(self, job: Job, request: TurnRequest, choice: Choice, ended: Ended) -> None:
        """Hear that a choice ended well."""


class _Lease:
    """A slot and the turn that runs in it. The slot is free again only when the engine has ended the turn."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.turn: EngineTurn | None = None

    def end(self) -> None:
        if self.turn is None:
            self.grant.release()
            return
        self.turn.cancel()
        self.turn.on_end(self.grant.release)


class Generation:
    """Runs jobs on the engine."""

    def __init__(
        self,
        *,
        supervisor: EngineSupervisor,
        admission: Admission,
        slots: Slots,
        switch: SpeculationSwitch,
        context_tokens: int,
        listener: Listener,
    ) -> None:
        self._supervisor = supervisor
        self._admission = admission
        self._slots = slots
        self._switch = switch
        self._context_tokens = context_tokens
        self._listener = listener

    async def run(self, job: Job) -> AsyncGenerator[list[JobEvent], None]:
        """Yield what happens, several events at a time when the engine was faster than the client.

        Closing the iterator, or cancelling the task that reads it, cancels the engine's turn.

        Raises:
            ApiError: the job cannot be carried out; before the first Started, nothing of it has begun.
        """
        lease = _Lease(await self._admission.acquire(job.prompt.ids))
        try:
            for index in range(job.choices):
                async with aclosing(self._run_choice(job, index, lease)) as events:
                    async for event in events:
                        yield event
        except TurnFailed as error:
            raise engine_failed(str(error)) from error
        except TurnRefused as error:
            raise refusal_error(error, job) from error
        finally:
            lease.end()

    async def _run_choice(self, job: Job, index: int, lease: _Lease) -> AsyncGenerator[list[JobEvent], None]:
        engine = await self._supervisor.engine()
        request = self.build_turn(job, index, lease.grant.slot, engine)
        turn = lease.turn = engine.submit(request)
        choice, seen = Choice(job, index, speculates=self._switch.decision.enabled), False
        try:
            prompt_tokens = await turn.accepted()
            self._listener.accepted(job)
            yield [Started(index, prompt_tokens)]
            async with aclosing(turn.batches()) as batches:
                async for batch in batches:
                    stopped = choice.stopped
                    pieces: list[JobEvent] = list(pieces_of(choice, batch))
                    if choice.stopped and not stopped:
                        turn.stop()
                    if pieces:
                        if index == 0 and not seen:
                            self._listener.first_output(job)
                        seen = True
                        yield pieces
            yield self._finish(job, request, choice, turn)
        finally:
            self._slots.record(lease.grant.slot, (*job.prompt.ids, *choice.ids))

    def _finish(self, job: Job, request: TurnRequest, choice: Choice, turn: EngineTurn) -> list[JobEvent]:
        if turn.outcome is None:
            raise TurnFailed("a turn without an end")
        rest = choice.finish()
        ended = choice.end(turn, turn.outcome)
        self._listener.finished(job, request, choice, ended)
        return [ended] if rest is None else [rest, ended]

    def build_turn(self, job: Job, index: int, slot: int, engine: EngineLink) -> TurnRequest:
        """Return what to submit for a choice.

        Raises ApiError when this engine cannot do what the job needs.
        """
        if not engine.extension:
            check_plain(job)
        room = max(1, self._context_tokens - len(job.prompt.ids))
        ids = engine.extension
        return TurnRequest(
            prompt=" ".join(map(str, job.prompt.ids)).encode() if ids else job.prompt.text.encode(),
            max_tokens=min(job.max_tokens or room, room),
            temperature=job.temperature,
            top_p=job.top_p,
            slot=slot,
            grammar=job.grammar,
            options=self._options(job, index) if engine.extension else None,
        )

    def _options(self, job: Job, index: int) -> Options:
        seed = job.seed
        if seed is None and job.temperature > 0:
            # The engine's own seed is pinned, so that an answer would repeat without being asked to.
            seed = secrets.randbits(64)
        return Options(
            detail=True,
            logprobs=job.logprobs or 0,
            seed=None if seed is None else (seed + index) % 2**64,
            depth=self._switch.request_depth,
            payload="ids",
            constrain=bool(job.grammar),
            ignore_eos=job.ignore_eos,
        )


def check_plain(job: Job) -> None:
    """Raise ApiError for what cannot be done with an engine that takes no options."""
    sampled_seed = job.seed is not None and job.temperature > 0
    needs = {
        "logprobs": job.logprobs is not None,
        "return_token_ids": job.token_ids,
        "seed": sampled_seed,
        "ignore_eos": job.ignore_eos,
        job.grammar_param: bool(job.grammar),
    }
    for feature, needed in needs.items():
        if needed:
            raise unsupported(feature, NEEDS_EXTENSION, param=feature)
    if not job.prompt.is_text:
        raise unsupported("text of special tokens inside a message", NEEDS_EXTENSION, param=job.prompt_param)


def refusal_error(error: TurnRefused, job: Job) -> ApiError:
    """Return what a client is told when the engine refuses a turn."""
    if error.code == "CONTEXT_EXCEEDED" and len(error.arguments) >= 2:
        return context_exceeded(error.arguments[0], int(error.arguments[1]), param=job.prompt_param)
    if error.code == "BAD_GRAMMAR":
        reason = " ".join(error.arguments).replace("_", " ")
        return invalid(
            f"the grammar cannot be followed: {reason}", param=job.grammar_param, code="invalid_grammar"
        )
    if error.code == "EMPTY_PROMPT":
        return invalid("the prompt is empty", param=job.prompt_param, code="empty_prompt")
    if error.code == "BAD_REQUEST":
        return invalid(
            f"the engine cannot take this request: {' '.join(error.arguments)}", code="bad_request"
        )
    return engine_failed(f"it refused the request: {error}")
