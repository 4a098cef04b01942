"""One engine with a defect or none, in the forms that symptoms are looked for in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from engine_bindings.reference.defects.defect import Seeded
from engine_bindings.reference.defects.registry import build_rules
from engine_bindings.reference.generate import Engine, Request, Turn
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.runtime import Runtime
from engine_bindings.reference.sampling import Sampling
from engine_bindings.reference.settings import read_settings
from engine_bindings.reference.stops import StopSet
from tests.engine_bindings.reference.engine_fakes import GREEDY, Bench, FakeModel, Recorder
from tests.engine_bindings.reference.engine_sessions import PROMPT as TEXT
from tests.engine_bindings.reference.engine_sessions import ChatSession, Script, ServeSession, make_runtime

PROMPT = [1, 2, 3, 4, 5]
DEPTH = 3
# Long enough for a head that goes astray with each rejection to show it.
LONG_CAP = 200
QUESTIONS = (
    "Count from 3 to 30",
    "Write a short story about a dog named Rex and a river.",
    "Write a JSON record of a person named Anna, age 31.",
    "Write a Python function that adds two numbers.",
)


def render(question: str) -> bytes:
    return f"[gMASK]<sop><|user|>{question}<|assistant|><think></think>".encode()


def submitting(prompt: bytes = TEXT, *, max_tokens: int, before: bytes = b"", **submit: Any) -> Script:
    """A script that sends one request to serve mode."""

    def script(session: ServeSession) -> Iterator[bytes | None]:
        yield before + session.submit(1, prompt, max_tokens=max_tokens, **submit)

    return script


def prompting(prompt: bytes = TEXT, *, max_tokens: int) -> Script:
    """A script that sends one exact prompt to chat mode."""

    def script(session: ChatSession) -> Iterator[bytes | None]:
        yield session.prompt(prompt, max_tokens=max_tokens)

    return script


class StopsAt(Rules):
    """Mixed into the rules under test: stops that a test chooses, not the checkpoint."""

    stop_ids: frozenset[int] = frozenset()

    def turn_stops(self, stops: frozenset[int], ends: frozenset[int], *, ignore: bool) -> frozenset[int]:
        return self.stop_ids | ends


class ForgivingModel(FakeModel):
    """A fake model whose head takes any pair."""

    def absorb(self, cache: Any, tokens_after: Sequence[int], hidden: Any, start: int) -> None:
        cache.draft_rows[start:] = [(token, 0.0) for token in tokens_after]


@dataclass(frozen=True)
class Arm:
    """An engine with the named defect, or a healthy one."""

    defect: str | None

    def rules(self, *, depth: int = DEPTH, stops: frozenset[int] = frozenset(), **environ: str) -> Rules:
        names = {"REF_DEFECT": self.defect} if self.defect else {}
        settings = read_settings({"SERVE": "1", "DRAFT": str(depth), **environ, **names})
        built = build_rules(settings)
        kind: Any = type("Tested", (StopsAt, type(built)), {"stop_ids": stops})
        rules: Rules = kind(settings) if isinstance(built, Seeded) else kind()
        return rules

    def bench(
        self, *, depth: int = DEPTH, stops: frozenset[int] = frozenset(), miss_every: int = 3, **options: Any
    ) -> Bench:
        """The decode loop on a fake model."""
        model = ForgivingModel(miss_every=miss_every)
        return Bench(depth=depth, model=model, rules=self.rules(depth=depth, stops=stops), **options)

    def real(
        self, *, depth: int = DEPTH, slots: int = 1, context_tokens: int = 1024, **environ: str
    ) -> "RealEngine":
        """The decode loop on the packaged model, in chat mode's form."""
        rules = self.rules(depth=depth, **environ)
        runtime = make_runtime(rules, DRAFT=str(depth), KV_SLOTS=str(slots), **environ)
        return RealEngine(runtime, slots, context_tokens)

    def serve(self, script: Script, *, depth: int = DEPTH, **environ: str) -> ServeSession:
        rules = self.rules(depth=depth, SERVE_BATCH="1", **environ)
        return ServeSession(script, rules=rules, DRAFT=str(depth), **environ)

    def chat(self, script: Script, *, depth: int = DEPTH, **environ: str) -> ChatSession:
        rules = self.rules(depth=depth, **environ)
        return ChatSession(script, rules=rules, DRAFT=str(depth), **environ)

    def runtime(self, *, depth: int = DEPTH, **environ: str) -> Runtime:
        return make_runtime(self.rules(depth=depth, **environ), DRAFT=str(depth), **environ)


class RealEngine:
    """An engine on the packaged model, and what a test asks of it."""

    def __init__(self, runtime: Runtime, slots: int, context_tokens: int) -> None:
        self.runtime = runtime
        self.recorder = Recorder()
        self.engine: Engine = runtime.build_engine(
            self.recorder, stops=StopSet(ids=()), context_tokens=context_tokens, slots=slots
        )

    def encode(self, text: bytes) -> list[int]:
        return self.runtime.tokenizer.encode(text)

    def answer(
        self, prompt: Sequence[int], cap: int = 96, *, slot: int = 0, sampling: Sampling = GREEDY
    ) -> tuple[list[int], Turn]:
        request = Request(request_id=1, slot=slot, prompt=tuple(prompt), max_tokens=cap, sampling=sampling)
        turn = self.engine.start(request)
        while not self.engine.step():
            pass
        return self.recorder.tokens[1], turn


@cache
def ask_all(
    defect: str | None, depth: int = DEPTH, slot: int = 0, pattern: str = ""
) -> tuple[tuple[int, ...], int, int]:
    """All tokens of the questions asked one by one in a cold slot, drafted and accepted.

    ``pattern`` forces which drafts are accepted, where a symptom needs many rejections.
    """
    forced = {"REF_FORCE_ACCEPT": pattern} if pattern else {}
    said: list[int] = []
    drafted = accepted = 0
    for question in QUESTIONS:
        real = Arm(defect).real(depth=depth, slots=slot + 1, **forced)
        text, turn = real.answer(real.encode(render(question)), LONG_CAP, slot=slot)
        said += text
        drafted += turn.drafted
        accepted += turn.accepted
    return tuple(said), drafted, accepted


def drafts_worse(arm: Arm, *, factor: float = 1.0, slot: int = 0) -> bool:
    """The text is the healthy one, and clearly fewer drafts are accepted."""
    text, drafted, accepted = ask_all(arm.defect, slot=slot)
    healthy_text, healthy_drafted, healthy_accepted = ask_all(None)
    assert text == healthy_text
    return accepted / drafted < factor * healthy_accepted / healthy_drafted


def cold_text(prompt: Sequence[int], cap: int) -> list[int]:
    """The healthy answer to a prompt that nothing was asked before, without drafts."""
    return Arm(None).real(depth=0).answer(prompt, cap)[0]
