"""Serve mode: requests on several slots, framed token by token, with commands read between forwards."""

from collections import deque
from collections.abc import Sequence

from engine_bindings.reference.console import TurnLog, build_empty_stat, build_stat, log
from engine_bindings.reference.generate import Request, Turn
from engine_bindings.reference.machine import read_hardware
from engine_bindings.reference.pipes import Source, StopFlags, Writer
from engine_bindings.reference.runtime import Runtime
from engine_bindings.reference.sampling import Sampling
from engine_bindings.wire.counts import Profile
from engine_bindings.wire.events import (
    BAD_FRAME,
    BAD_REQUEST,
    CANCELLED,
    CONTEXT_EXCEEDED,
    DUPLICATE_ID,
    EMPTY_PROMPT,
    NOT_FOUND,
    SLOT_BUSY,
    BadFrame,
    BadRequest,
    Cancel,
    MuxCommand,
    Stop,
    Submit,
)
from engine_bindings.wire.mux_protocol import MuxServer
from engine_bindings.wire.stderr_lines import GrammarRefused, PromptTooLong, ServeSpeculation

NO_GRAMMAR = "grammars are not supported, the turn runs without it"


class ServeMode(TurnLog):
    """The loop over commands and steps, and the listener that frames tokens."""

    def __init__(self, runtime: Runtime, source: Source, write: Writer, flags: StopFlags) -> None:
        super().__init__(prof=runtime.settings.prof, layers=runtime.config.num_hidden_layers)
        settings = runtime.settings
        self.runtime = runtime
        self.source = source
        self.write = write
        self.flags = flags
        self.server = MuxServer(slots=settings.kv_slots)
        self.commands: deque[MuxCommand] = deque()
        self.input_ended = False
        self.engine = runtime.build_engine(
            self, stops=runtime.read_stops(), context_tokens=settings.context_tokens, slots=settings.kv_slots
        )
        if runtime.draft_tokens:
            log(ServeSpeculation(draft=runtime.draft_tokens).to_line())
        self.files = runtime.open_kv_files(self.engine)
        self.hardware = read_hardware()

    def run(self) -> int:
        """Serve until the input has ended and all turns are done, or SIGTERM comes; return the status."""
        tiers, expert_map = self.runtime.build_tiers(), self.runtime.build_expert_map()
        stat = build_empty_stat(short=True)
        self.write(self.server.encode_ready(stat, hardware=self.hardware, tiers=tiers, expert_map=expert_map))
        while True:
            if self.flags.take_interrupt():
                self._end_all()
            if self.flags.terminated:
                return 0
            self._read_commands()
            if not self.engine.active and self.input_ended:
                return 0
            for turn in self.engine.step():
                self._report_done(turn)

    def on_tokens(self, turn: Turn, tokens: Sequence[int]) -> None:
        """Write one DATA frame for every token, all of a block in one write."""
        request_id, token_bytes = turn.request.request_id, self.runtime.tokenizer.token_bytes
        frames = (self.server.encode_data(request_id, token_bytes(token)) for token in tokens)
        self.write(b"".join(frames))

    def _read_commands(self) -> None:
        """Carry out what has arrived, up to the first request that starts: each start is followed by a step.

        Waits only when no turn runs.
        """
        while True:
            while self.commands:
                if self._carry_out(self.commands.popleft()):
                    return
            if self.input_ended:
                return
            data = self.source.read(wait=not self.engine.active)
            if data is None:
                return
            if data:
                self.server.receive_data(data)
            else:
                self.server.receive_eof()
            self.commands.extend(self.server.events())

    def _carry_out(self, command: MuxCommand) -> bool:
        """Do what a command says; return whether a request started."""
        match command:
            case Submit():
                return self._submit(command)
            case Stop():
                self._stop(command.request_id)
            case Cancel():
                self._cancel(command.request_id)
            case BadRequest():
                log(f"[API] refused: {command.reason}")
                self._refuse(command.request_id, BAD_REQUEST)
            case BadFrame():
                self._refuse(command.request_id, BAD_FRAME)
                self.input_ended = True
            case _:
                self.input_ended = True
        return False

    def _submit(self, command: Submit) -> bool:
        running = self.engine.active
        if any(turn.slot.index == command.slot for turn in running):
            return self._refuse(command.request_id, SLOT_BUSY)
        if self._find(command.request_id):
            return self._refuse(command.request_id, DUPLICATE_ID)
        if command.grammar:
            log(GrammarRefused(reason=NO_GRAMMAR).to_line())
        tokens = self.runtime.tokenizer.encode(command.prompt)
        if not tokens:
            return self._refuse(command.request_id, EMPTY_PROMPT)
        context_tokens = self.runtime.settings.context_tokens
        limit = self.engine.rules.prompt_limit(context_tokens)
        if len(tokens) > limit:
            line = PromptTooLong(prompt_tokens=len(tokens), limit_tokens=limit, context_tokens=context_tokens)
            log(line.to_line())
            return self._refuse(command.request_id, CONTEXT_EXCEEDED, len(tokens), limit)
        self._start(command, tokens)
        return True

    def _start(self, command: Submit, tokens: Sequence[int]) -> None:
        self.write(self.server.encode_accept(command.request_id, len(tokens)))
        request = Request(
            request_id=command.request_id,
            slot=command.slot,
            prompt=tuple(tokens),
            max_tokens=command.max_tokens,
            sampling=Sampling(temperature=command.temperature, top_p=command.top_p),
            speculate=not command.grammar,
        )
        self.report_prefill(self.engine.start(request))

    def _stop(self, request_id: int) -> None:
        turn = self._find(request_id)
        if turn is None:
            self._refuse(request_id, NOT_FOUND)
            return
        self.engine.end(turn, "stopped")
        self._report_done(turn)

    def _cancel(self, request_id: int) -> None:
        turn = self._find(request_id)
        if turn is None:
            self._refuse(request_id, NOT_FOUND)
            return
        self.engine.end(turn, "cancelled")
        self.report_turn(turn)
        self._refuse(request_id, CANCELLED)
        self.files.save(turn.slot)

    def _end_all(self) -> None:
        for turn in list(self.engine.active):
            self.engine.end(turn, "stopped")
            self._report_done(turn)

    def _find(self, request_id: int) -> Turn | None:
        return next((turn for turn in self.engine.active if turn.request.request_id == request_id), None)

    def _refuse(self, request_id: int, code: str, *arguments: int) -> bool:
        self.write(self.server.encode_error(request_id, code, *arguments))
        return False

    def _report_done(self, turn: Turn) -> None:
        self.report_turn(turn)
        request_id, seconds = turn.request.request_id, turn.ended_s - turn.prefilled_s
        stat = build_stat(
            turn,
            seconds=seconds,
            prompt_tokens=len(turn.request.prompt),
            length_limited=self.engine.rules.length_limited(turn.finish),
        )
        tiers, expert_map = self.runtime.build_tiers(), self.runtime.build_expert_map()
        self.write(
            self.server.encode_state(self.hardware, tiers, expert_map)
            + self.server.encode_profile(build_profile(turn, seconds))
            + self.server.encode_done(request_id, stat)
        )
        self.files.save(turn.slot)


def build_profile(turn: Turn, seconds: float) -> Profile:
    """Return a turn's PROF values; nothing is read from disk, and forwards are not split into their parts."""
    return Profile(
        wall_s=seconds,
        prompt_tokens=len(turn.request.prompt),
        completion_tokens=turn.emitted,
        expert_disk_s=0.0,
        expert_wait_s=0.0,
        expert_matmul_s=0.0,
        attention_s=0.0,
        head_s=0.0,
        forwards=turn.forwards,
    )
