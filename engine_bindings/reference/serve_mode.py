"""Serve mode: requests on several slots, framed token by token, with commands read between forwards."""

from collections import deque
from collections.abc import Sequence

from engine_bindings.reference.console import TurnLog, build_empty_stat, build_stat, log
from engine_bindings.reference.constraint import UNGUIDED, DraftSource, Guide
from engine_bindings.reference.generate import Pick, Turn
from engine_bindings.reference.grammar import MAX_REASON_CHARACTERS, GrammarError
from engine_bindings.reference.guides import build_guides
from engine_bindings.reference.machine import read_hardware
from engine_bindings.reference.pipes import Source, StopFlags, Writer
from engine_bindings.reference.rules import Finish
from engine_bindings.reference.runtime import Runtime
from engine_bindings.reference.serve_extension import (
    WaitingOptions,
    build_request,
    describe_token,
    describe_turn,
    parse_ids,
    read_options,
)
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
    OptionsLine,
    Stop,
    Submit,
)
from engine_bindings.wire.mux_extension import BAD_GRAMMAR, BAD_OPTION, Options
from engine_bindings.wire.mux_protocol import MuxServer
from engine_bindings.wire.stderr_lines import GrammarLoaded, GrammarRefused, PromptTooLong, ServeSpeculation


class ServeMode(TurnLog):
    """The loop over commands and steps, and the listener that frames tokens."""

    def __init__(self, runtime: Runtime, source: Source, write: Writer, flags: StopFlags) -> None:
        super().__init__(prof=runtime.settings.prof, layers=runtime.config.num_hidden_layers)
        settings = runtime.settings
        self.runtime = runtime
        self.source = source
        self.write = write
        self.flags = flags
        self.server = MuxServer(slots=settings.kv_slots, extension=True)
        self.commands: deque[MuxCommand] = deque()
        self.options = WaitingOptions()
        self.input_ended = False
        stops = runtime.read_stops()
        self.guides = build_guides(runtime, stops)
        self.engine = runtime.build_engine(
            self, stops=stops, context_tokens=settings.context_tokens, slots=settings.kv_slots
        )
        self.engine.interrupt = self._interrupt
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
            if self.engine.rules.polls_input(running=bool(self.engine.active)):
                self._read_commands()
            if not self.engine.active and self.input_ended:
                return 0
            for turn in self.engine.step():
                self._report_end(turn)

    def on_tokens(self, turn: Turn, tokens: Sequence[int], picks: Sequence[Pick]) -> None:
        """Write one DATA frame for every token, behind its TOKEN line if wanted, a block in one write."""
        request_id, token_bytes = turn.request.request_id, self.runtime.token_bytes
        frames = [self.server.encode_data(request_id, token_bytes(token)) for token in tokens]
        if picks:
            rows = zip(tokens, picks, frames, strict=True)
            frames = [describe_token(request_id, token, pick) + frame for token, pick, frame in rows]
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
            if not self._receive(wait=not self.engine.active):
                return

    def _receive(self, *, wait: bool) -> bool:
        """Take in what has arrived; return False when nothing has."""
        data = self.source.read(wait=wait)
        if data is None:
            return False
        if data:
            self.server.receive_data(data)
        else:
            self.server.receive_eof()
        self.commands.extend(self.server.events())
        return True

    def _interrupt(self, turn: Turn) -> Finish | None:
        """Read commands between two chunks of a prompt; return how its turn ends, None when it goes on.

        Commands for others wait. A STOP or CANCEL behind a SUBMIT of the same id is not for this turn.
        """
        if self.flags.interrupted:
            return "stopped"
        if not self.input_ended and self.engine.rules.polls_input(running=True):
            self._receive(wait=False)
        request_id = turn.request.request_id
        for place, command in enumerate(self.commands):
            match command:
                case Submit() if command.request_id == request_id:
                    return None
                case Stop() | Cancel() if command.request_id == request_id:
                    del self.commands[place]
                    return "stopped" if isinstance(command, Stop) else "cancelled"
        return None

    def _carry_out(self, command: MuxCommand) -> bool:
        """Do what a command says; return whether a request started."""
        match command:
            case Submit():
                return self._submit(command)
            case OptionsLine():
                self._read_options(command.line)
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

    def _read_options(self, line: str) -> None:
        """Keep options for the request that comes next under their id; one that runs is not disturbed."""
        try:
            request_id, options, unknown = read_options(line)
        except ValueError as error:
            log(f"[API] refused: {error}")
            self._refuse(0, BAD_REQUEST)
            return
        if self._find(request_id):
            self._refuse(request_id, DUPLICATE_ID)
            return
        self.options.keep(request_id, options)
        if options is None:
            self._refuse(request_id, BAD_OPTION, unknown)

    def _submit(self, command: Submit) -> bool:
        """Start a request or refuse it; return whether it started."""
        request_id, options = command.request_id, self.options.take(command.request_id)
        if any(turn.slot.index == command.slot for turn in self.engine.active):
            return self._refuse(request_id, SLOT_BUSY)
        if self._find(request_id):
            return self._refuse(request_id, DUPLICATE_ID)
        try:
            if options is None:
                raise ValueError("its options were refused, and no new ones came")
            return self._prepare(command, options)
        except GrammarError as error:
            return self._refuse(request_id, BAD_GRAMMAR, word_reason(error.reason))
        except ValueError as error:
            log(f"[API] refused: {error}")
            return self._refuse(request_id, BAD_REQUEST)

    def _prepare(self, command: Submit, options: Options) -> bool:
        """Start a request if its prompt fits. Raises ValueError or GrammarError for what is in it."""
        rules = self.engine.rules
        limit = rules.prompt_limit(self.runtime.settings.context_tokens)
        tokens = rules.fit_prompt(self._encode(command, options), limit)
        if not self._fits(command.request_id, tokens):
            return False
        self._start(command, options, tokens, self._build_guide(command, options, tokens))
        return True

    def _encode(self, command: Submit, options: Options) -> list[int]:
        """Return the prompt's tokens. Raises ValueError for ids that are none."""
        if options.payload == "ids":
            return parse_ids(command.prompt, self.runtime.config.vocab_size)
        return self.runtime.encode_prompt(command.prompt)

    def _fits(self, request_id: int, tokens: Sequence[int]) -> bool:
        """Refuse a prompt that is empty or too long."""
        if not tokens:
            return self._refuse(request_id, EMPTY_PROMPT)
        context_tokens = self.runtime.settings.context_tokens
        limit = self.engine.rules.prompt_limit(context_tokens)
        if len(tokens) <= limit:
            return True
        line = PromptTooLong(prompt_tokens=len(tokens), limit_tokens=limit, context_tokens=context_tokens)
        log(line.to_line())
        return self._refuse(request_id, CONTEXT_EXCEEDED, len(tokens), limit)

    def _build_guide(self, command: Submit, options: Options, tokens: Sequence[int]) -> Guide:
        """Return what the request's grammar does. Raises GrammarError for a constraint that is none."""
        if not self.engine.rules.heeds_grammar():
            return UNGUIDED
        if options.constrain:
            return self.guides.constrain(
                self.guides.compiler.compile(command.grammar),
                tokens,
                after_think=options.constrain_after == "think",
                to_the_last=options.ignore_eos,
            )
        return self._build_draft_source(command, options) if command.grammar else UNGUIDED

    def _build_draft_source(self, command: Submit, options: Options) -> Guide:
        """Return a source of drafts, for greedy turns only as in the real engine."""
        try:
            grammar = self.guides.compiler.compile(command.grammar)
        except GrammarError as error:
            log(describe_refusal(error).to_line())
            return UNGUIDED
        span = self.runtime.settings.span_tokens
        log(GrammarLoaded(rules=grammar.rules, span_tokens=span).to_line())
        if command.temperature > 0:
            span = 0
        if options.depth is not None:
            span = min(span, options.depth)
        return DraftSource(grammar.start(), span_tokens=span)

    def _start(self, command: Submit, options: Options, tokens: Sequence[int], guide: Guide) -> None:
        self.write(self.server.encode_accept(command.request_id, len(tokens)))
        request = build_request(command, options, tokens, speculate=not isinstance(guide, DraftSource))
        self.report_prefill(self.engine.start(request, guide))

    def _stop(self, request_id: int) -> None:
        turn = self._find(request_id)
        if turn is None:
            self._refuse(request_id, NOT_FOUND)
            return
        self.engine.end(turn, "stopped")
        self._report_end(turn)

    def _cancel(self, request_id: int) -> None:
        turn = self._find(request_id)
        if turn is None:
            self._refuse(request_id, NOT_FOUND)
            return
        self.engine.end(turn, "cancelled")
        self._report_end(turn)

    def _end_all(self) -> None:
        for turn in list(self.engine.active):
            self.engine.end(turn, "stopped")
            self._report_end(turn)

    def _find(self, request_id: int) -> Turn | None:
        return next((turn for turn in self.engine.active if turn.request.request_id == request_id), None)

    def _refuse(self, request_id: int, code: str, *arguments: int | str) -> bool:
        self.write(self.server.encode_error(request_id, code, *arguments))
        return False

    def _report_end(self, turn: Turn) -> None:
        self.report_turn(turn)
        if turn.finish == "cancelled":
            self._refuse(turn.request.request_id, CANCELLED)
        elif turn.finish == "failed":
            self._refuse(turn.request.request_id, BAD_GRAMMAR, word_reason(turn.guide.failure))
        else:
            self._write_done(turn)
        self.files.save(turn.slot)

    def _write_done(self, turn: Turn) -> None:
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
            + describe_turn(turn)
            + self.server.encode_profile(build_profile(turn, seconds))
            + self.server.encode_done(request_id, stat)
        )


def describe_refusal(error: GrammarError) -> GrammarRefused:
    """Return the line that says why a request's grammar is not used."""
    return GrammarRefused(reason=error.reason, source="SCHEMA" if error.schema else "GRAMMAR")


def word_reason(reason: str) -> str:
    """Return a reason as one word of an ERROR line."""
    return "_".join(reason[:MAX_REASON_CHARACTERS].split())


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
