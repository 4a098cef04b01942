"""Chat mode: one reply after the other, as text between sentinels."""

from collections import deque
from collections.abc import Sequence

from engine_bindings.chat_template import ANSWER_OPENING, PREFIX
from engine_bindings.reference.console import TurnLog, build_empty_stat, build_stat, log
from engine_bindings.reference.constraint import Guide
from engine_bindings.reference.generate import Pick, Request, Turn
from engine_bindings.reference.guides import StandingGrammar
from engine_bindings.reference.pipes import Source, StopFlags, Writer
from engine_bindings.reference.runtime import Runtime
from engine_bindings.reference.sampling import Sampling
from engine_bindings.wire.chat_protocol import ChatServer
from engine_bindings.wire.counts import Stat
from engine_bindings.wire.events import BadPrompt, ChatCommand, Closed, Line, More, Prompt
from engine_bindings.wire.stderr_lines import KvSlots, PromptTooLong

DEFAULT_NGEN_TOKENS = 256
DEFAULT_TEMPERATURE = 0.7
LINE_MARGIN_TOKENS = 8  # a line that leaves less room for its answer starts the context over
THINK_OPENING = b"<|assistant|><think>"


class ChatMode(TurnLog):
    """The loop over commands, and the listener that writes text as it is produced."""

    def __init__(self, runtime: Runtime, source: Source, write: Writer, flags: StopFlags) -> None:
        super().__init__(prof=runtime.settings.prof, layers=runtime.config.num_hidden_layers)
        settings = runtime.settings
        self.runtime = runtime
        self.source = source
        self.write = write
        self.flags = flags
        self.server = ChatServer(slots=settings.kv_slots)
        self.commands: deque[ChatCommand] = deque()
        stops = runtime.read_stops()
        self.grammar = StandingGrammar(runtime, stops)
        self.guides: dict[int, Guide] = {}
        self.engine = runtime.build_engine(
            self, stops=stops, context_tokens=settings.context_tokens, slots=settings.kv_slots
        )
        self.engine.interrupt = lambda _turn: "stopped" if flags.interrupted else None
        self.files = runtime.open_kv_files(self.engine)
        self.slot = self.engine.slots[0]
        self.ngen_tokens = settings.ngen_tokens or DEFAULT_NGEN_TOKENS

    def run(self) -> int:
        """Answer commands until the input ends or SIGTERM comes; return the exit status."""
        pool_gb = self.runtime.kv_pool_gb
        settings = self.runtime.settings
        slots = KvSlots(slots=settings.kv_slots, context_tokens=settings.context_tokens, pool_gb=pool_gb)
        log(slots.to_line())
        self.write(self.server.encode_ready(build_empty_stat(short=True), self.runtime.build_tiers()))
        while not self.flags.terminated:
            command = self._next_command()
            if isinstance(command, Closed):
                break
            self.flags.take_interrupt()
            if command is not None:
                self._answer(command)
        return 0

    def on_tokens(self, _turn: Turn, tokens: Sequence[int], _picks: Sequence[Pick]) -> None:
        """Write the tokens' bytes as they are."""
        text = b"".join(map(self.runtime.token_bytes, tokens))
        self.write(self.server.encode_text(text))

    def _next_command(self) -> ChatCommand | None:
        """Return the next command, or None when a signal ended the wait."""
        while not self.commands:
            data = self.source.read(wait=True)
            if data is None:
                return None
            if data:
                self.server.receive_data(data)
            else:
                self.server.receive_eof()
            self.commands.extend(self.server.events())
        return self.commands.popleft()

    def _answer(self, command: ChatCommand) -> None:
        match command:
            case Prompt():
                self._answer_prompt(command)
            case BadPrompt():
                log(f"[API] PROMPT refused: {command.reason}")
                self._end(build_empty_stat(short=False))
            case Line(text=b""):
                self._end(build_empty_stat(short=True))
            case Line():
                self._answer_line(command.text)
            case More():
                self._continue()
            case _:
                self._reset()

    def _answer_prompt(self, command: Prompt) -> None:
        self.slot = self.engine.slots[command.slot]
        rules = self.engine.rules
        limit = rules.prompt_limit(self.slot.context_tokens)
        tokens = rules.fit_prompt(self.runtime.encode_prompt(command.payload), limit)
        if not tokens or not self._fits(tokens):
            self._end(build_empty_stat(short=False))
            return
        if command.max_tokens > self.ngen_tokens:
            log(f"[API] max_tokens {command.max_tokens} is more than NGEN={self.ngen_tokens}: clamped")
        turn = self._run_turn(
            tokens,
            max_tokens=min(command.max_tokens, self.ngen_tokens),
            sampling=Sampling(temperature=command.temperature, top_p=command.top_p),
            exact=True,
        )
        self._end(self._build_stat(turn, len(tokens)))
        self.files.save(self.slot)

    def _answer_line(self, text: bytes) -> None:
        self.slot = self.engine.slots[0]
        tokens = self._render_line(text)
        if self.slot.length + len(tokens) + LINE_MARGIN_TOKENS >= self.slot.context_tokens:
            log(f"[KV] context of {self.slot.context_tokens} tokens is full: starting over")
            self.slot.truncate(0, 0)
            tokens = self._render_line(text)
        if not tokens or not self._fits(tokens):
            self._end(build_empty_stat(short=False))
            return
        turn = self._run_turn(
            [*self.slot.history, *tokens],
            max_tokens=self.ngen_tokens,
            sampling=self._line_sampling(),
            exact=False,
        )
        self._end(self._build_stat(turn, len(tokens)), newline=True)
        self.files.save(self.slot)

    def _render_line(self, text: bytes) -> list[int]:
        """Return the tokens that a typed line adds to the context."""
        if not self.runtime.settings.chat_template:
            return self.runtime.tokenizer.encode(text)
        think = self.engine.rules.opens_thinking(think=self.runtime.settings.think)
        opening = THINK_OPENING if think else ANSWER_OPENING
        prefix = b"" if self.slot.length else PREFIX
        return self.runtime.tokenizer.encode(prefix + b"<|user|>" + text + opening)

    def _continue(self) -> None:
        """Go on with the last answer, as a turn whose prompt is all of the context."""
        if not self.slot.length:
            self._end(build_empty_stat(short=True))
            return
        turn = self._run_turn(
            list(self.slot.history),
            max_tokens=self.ngen_tokens,
            sampling=self._line_sampling(),
            exact=False,
            guide=self.guides.get(self.slot.index),
        )
        self._end(self._build_stat(turn, None), newline=True)
        self.files.save(self.slot)

    def _reset(self) -> None:
        self.slot.truncate(0, 0)
        self._end(build_empty_stat(short=True))
        self.files.save(self.slot)

    def _run_turn(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        exact: bool,
        guide: Guide | None = None,
    ) -> Turn:
        """Answer; without a ``guide`` from the answer that goes on, the grammar starts anew."""
        guide = self.guides[self.slot.index] = guide or self.grammar.start(tokens)
        request = Request(
            request_id=0,
            slot=self.slot.index,
            prompt=tuple(tokens),
            max_tokens=max_tokens,
            sampling=sampling,
            exact=exact,
        )
        turn = self.engine.start(request, guide)
        self.report_prefill(turn)
        while not self.engine.step():
            if self.flags.take_interrupt():
                self.engine.end(turn, "stopped")
                break
        self.report_turn(turn)
        return turn

    def _fits(self, tokens: Sequence[int]) -> bool:
        slot = self.slot
        limit = self.engine.rules.prompt_limit(slot.context_tokens)
        if len(tokens) <= limit:
            return True
        context = slot.context_tokens
        log(PromptTooLong(prompt_tokens=len(tokens), limit_tokens=limit, context_tokens=context).to_line())
        return False

    def _line_sampling(self) -> Sampling:
        settings = self.runtime.settings
        temperature = DEFAULT_TEMPERATURE if settings.temperature is None else settings.temperature
        return Sampling(temperature=temperature, top_p=settings.top_p)

    def _build_stat(self, turn: Turn, prompt_tokens: int | None) -> Stat:
        return build_stat(
            turn,
            seconds=turn.ended_s - turn.started_s,
            prompt_tokens=prompt_tokens,
            # STAT has one flag for an answer that is cut, and a broken grammar cuts it: stderr says by what.
            length_limited=self.engine.rules.length_limited(turn.finish) or turn.finish == "failed",
        )

    def _end(self, stat: Stat, *, newline: bool = False) -> None:
        self.write(self.server.encode_turn_end(stat, newline=newline))
