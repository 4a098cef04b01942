"""Chat and serve mode in this process: a script feeds bytes between steps and reads the client's events."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from engine_bindings.reference.chat_mode import ChatMode
from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.model import Segment
from engine_bindings.reference.pipes import StopFlags
from engine_bindings.reference.rules import Block, Rules
from engine_bindings.reference.runtime import Checkpoint, Runtime, build_runtime, load_checkpoint
from engine_bindings.reference.serve_mode import ServeMode
from engine_bindings.reference.settings import read_settings
from engine_bindings.wire import (
    ChatClient,
    ChatServer,
    Data,
    Done,
    Line,
    More,
    MuxClient,
    Refused,
    Reset,
    Text,
    TurnEnd,
    TurnProfile,
)

PROMPT = b"[gMASK]<sop><|user|>Count from 3 to 9<|assistant|><think></think>"
Script = Callable[[Any], Iterator[bytes | None]]


@lru_cache(maxsize=4)
def cached_checkpoint(kernels: str) -> Checkpoint:
    return load_checkpoint(read_settings({"REF_KERNELS": kernels}))


PROMPT_TOKENS = len(cached_checkpoint("invariant").tokenizer.encode(PROMPT))


class StopsAt(Rules):
    """Stops at the given tokens only, so that no test depends on what the model says."""

    def __init__(self, *stops: int) -> None:
        self.stops = frozenset(stops)

    def cut_block(self, candidates: Sequence[int], stops: frozenset[int], room: int) -> Block:
        return super().cut_block(candidates, self.stops, room)


NEVER_STOPS = StopsAt()


def make_runtime(rules: Rules, **environ: str) -> Runtime:
    settings = read_settings({"SERVE": "1", "COLI_MTP_GUARD_PCT": "0", **environ})
    checkpoint = cached_checkpoint(settings.kernels)
    if settings.model_dir:
        checkpoint = replace(checkpoint, model_dir=settings.model_dir)
    return build_runtime(checkpoint, settings, rules)


class Session:
    """Source and sink of a mode; a script yields bytes to send, or None to let a step pass, then EOF."""

    def __init__(self, script: Script, client: ChatClient | MuxClient) -> None:
        self.client: Any = client
        self.mode: Any = None
        self.script = script(self)
        self.flags = StopFlags()
        self.events: list[Any] = []
        self.output = b""

    def read(self, *, wait: bool) -> bytes | None:
        item = next(self.script, b"")
        assert item is not None or not wait, "the engine waits for a command and the script has none"
        return item

    def write(self, data: bytes) -> None:
        self.output += data
        self.client.receive_data(data)
        self.events += self.client.events()

    def prefix_line(self, prompt: bytes, *, slot: int = 0) -> str:
        """The line that the engine must write for a prompt sent now."""
        history = self.mode.engine.slots[slot].history
        tokens = self.mode.runtime.tokenizer.encode(prompt)
        pairs = enumerate(zip(history, tokens, strict=False))
        shared = next((i for i, (a, b) in pairs if a != b), min(len(history), len(tokens)))
        prefill = len(tokens) - shared
        return f"[API] KV slot {slot} prefix {shared}/{len(tokens)} token, prefill {prefill}\n"

    def assert_history(self, prompt: bytes, answer: bytes, emitted: int, *, slot: int = 0) -> None:
        """The slot holds the prompt's tokens and then exactly the emitted ones."""
        tokenizer = self.mode.runtime.tokenizer
        tokens = tokenizer.encode(prompt)
        history = self.mode.engine.slots[slot].history
        assert history[: len(tokens)] == tokens
        assert b"".join(map(tokenizer.token_bytes, history[len(tokens) :])) == answer
        assert len(history) == len(tokens) + emitted
        self.assert_kv_is_cold(slot=slot)

    def assert_kv_is_cold(self, *, slot: int = 0) -> None:
        """The slot's KV rows are bit for bit those of a prefill of its history from nothing."""
        found, model = self.mode.engine.slots[slot], self.mode.runtime.checkpoint.model
        cold = KvCache(model.config, found.context_tokens)
        assert found.cache.length == found.length
        for start in range(0, found.length, 7):
            tokens = found.history[start : start + 7]
            model.forward([Segment(cache=cold, tokens=tokens, start=start)], logits_for="last")
        for layers in (found.cache.keys, cold.keys):
            assert layers[:-1, :, : found.length].any()
        assert (found.cache.keys[:-1, :, : found.length] == cold.keys[:-1, :, : found.length]).all()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def text(self, request_id: int) -> bytes:
        return b"".join(event.payload for event in self.of(Data) if event.request_id == request_id)

    def tokens(self, request_id: int) -> list[bytes]:
        return [event.payload for event in self.of(Data) if event.request_id == request_id]

    def done(self, request_id: int) -> Done:
        return next(event for event in self.of(Done) if event.request_id == request_id)

    def profiles(self) -> list[Any]:
        return [event.profile for event in self.of(TurnProfile)]

    def refusals(self) -> list[tuple[int, str, tuple[str, ...]]]:
        return [(event.request_id, event.code, event.arguments) for event in self.of(Refused)]

    def replies(self) -> list[tuple[bytes, TurnEnd]]:
        found: list[tuple[bytes, TurnEnd]] = []
        text = b""
        for event in self.events:
            if isinstance(event, Text):
                text += event.data
            elif isinstance(event, TurnEnd):
                found.append((text, event))
                text = b""
        return found


class ServeSession(Session):
    """Serve mode."""

    def __init__(self, script: Script, *, rules: Rules = NEVER_STOPS, **environ: str) -> None:
        super().__init__(script, MuxClient())
        runtime = make_runtime(rules, SERVE_BATCH="1", **environ)
        self.mode = ServeMode(runtime, self, self.write, self.flags)
        self.status = self.mode.run()

    def submit(
        self,
        request_id: int = 1,
        prompt: bytes = PROMPT,
        *,
        max_tokens: int = 12,
        slot: int = 0,
        temperature: float = 0.0,
        top_p: float = 1.0,
        grammar: bytes = b"",
    ) -> bytes:
        frame: bytes = self.client.encode_submit(
            request_id=request_id,
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            slot=slot,
            grammar=grammar,
        )
        return frame

    def wait(self) -> Iterator[None]:
        """Let steps pass until no turn runs."""
        while self.mode.engine.active:
            yield None


class ChatSession(Session):
    """Chat mode. Scripts send raw bytes; the client is told of each command when it is complete."""

    def __init__(self, script: Script, *, rules: Rules = NEVER_STOPS, **environ: str) -> None:
        super().__init__(script, ChatClient())
        runtime = make_runtime(rules, **{"COLI_TEMP": "0", **environ})
        self.reader = ChatServer(slots=runtime.settings.kv_slots)
        self.mode = ChatMode(runtime, self, self.write, self.flags)
        self.status = self.mode.run()

    def read(self, *, wait: bool) -> bytes | None:
        data = super().read(wait=wait)
        self.reader.receive_data(data or b"")
        for command in self.reader.events():
            match command:
                case Line():
                    self.client.encode_line(command.text)
                case Reset():
                    self.client.encode_reset()
                case More():
                    self.client.encode_more()
                case _:
                    self.client.encode_prompt(b"any", max_tokens=1)
        return data

    def prompt(
        self,
        payload: bytes = PROMPT,
        *,
        max_tokens: int = 12,
        temperature: float = 0.0,
        top_p: float = 1.0,
        slot: int = 0,
    ) -> bytes:
        head = f"\x02PROMPT {len(payload)} {max_tokens} {temperature:g} {top_p:g} {slot}\n"
        return head.encode() + payload + b"\n"
