"""Oracle mode: token ids in, token ids out, compared with a reference file; the tokenizer is not asked."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.errors import UsageError
from engine_bindings.reference.console import TurnLog, log
from engine_bindings.reference.generate import Engine, Pick, Request, Turn
from engine_bindings.reference.machine import read_rss_gb
from engine_bindings.reference.model import Segment
from engine_bindings.reference.pipes import Writer
from engine_bindings.reference.runtime import Runtime
from engine_bindings.reference.sampling import Sampling
from engine_bindings.reference.stops import StopSet

MIN_SECONDS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """A reference file: a prompt, the same with its expected continuation, the argmax at every position."""

    prompt_ids: tuple[int, ...]
    full_ids: tuple[int, ...]
    tf_pred: tuple[int, ...]


def read_oracle(path: Path, vocab_size: int) -> Oracle:
    """Read a reference file; raises UsageError that names the file and what is wrong with it."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot read oracle file ({error})",
            hint="without PROMPT and SERVE the engine compares itself with REF; set PROMPT, or SERVE=1",
        ) from error
    oracle = Oracle(
        prompt_ids=_read_ids(data, "prompt_ids", path, vocab_size),
        full_ids=_read_ids(data, "full_ids", path, vocab_size),
        tf_pred=_read_ids(data, "tf_pred", path, vocab_size),
    )
    if not oracle.prompt_ids or len(oracle.full_ids) < len(oracle.prompt_ids):
        raise UsageError(f"{path}: ref file missing prompt_ids/full_ids or empty")
    return oracle


class OracleMode(TurnLog):
    """Generates the expected number of tokens, or predicts every position, and shows the matches."""

    def __init__(self, runtime: Runtime, write: Writer) -> None:
        super().__init__(prof=runtime.settings.prof, layers=runtime.config.num_hidden_layers)
        self.runtime = runtime
        self.write = write
        self.tokens: list[int] = []

    def run(self) -> int:
        """Compare with the file; mismatches are shown and do not change the exit status."""
        settings = self.runtime.settings
        oracle = read_oracle(settings.reference_file, self.runtime.config.vocab_size)
        engine = self.runtime.build_engine(
            self, stops=StopSet(ids=()), context_tokens=len(oracle.full_ids) + 1
        )
        if settings.teacher_forcing:
            self._predict(oracle, engine)
        else:
            self._generate(oracle, engine)
        return 0

    def on_prefix(self, _turn: Turn) -> None:
        """Stay silent: a fresh context has no prefix."""

    def on_tokens(self, _turn: Turn, tokens: Sequence[int], _picks: Sequence[Pick]) -> None:
        """Keep the tokens."""
        self.tokens += tokens

    def _generate(self, oracle: Oracle, engine: Engine) -> None:
        settings = self.runtime.settings
        wanted = oracle.full_ids[len(oracle.prompt_ids) :]
        request = Request(
            request_id=0,
            slot=0,
            prompt=oracle.prompt_ids,
            max_tokens=len(wanted),
            sampling=Sampling(temperature=settings.temperature or 0.0, top_p=settings.top_p),
        )
        turn = engine.start(request)
        while not engine.step():
            pass
        matches = sum(a == b for a, b in zip(self.tokens, wanted, strict=False))
        seconds = max(turn.ended_s - turn.started_s, MIN_SECONDS)
        per_forward = turn.emitted / turn.forwards if turn.forwards else 1.0
        lines = (
            f"\nReference (oracle): {_spaced(wanted)}\nGLM C engine      : {_spaced(self.tokens)}\n"
            f"Matching tokens: {matches}/{len(wanted)}\n"
            f"N-gram speculation (DRAFT={self.runtime.draft_tokens}): {per_forward:.2f} tokens/forward"
            f" ({turn.forwards} forwards per {turn.emitted} tokens)\n"
            f"Expert cache hit rate: 100.0% (0 pin + 0 lru / 0 miss) | RSS: {read_rss_gb():.2f} GB |"
            f" {len(wanted) / seconds:.1f} tok/s\n"
        )
        self.write(lines.encode())

    def _predict(self, oracle: Oracle, engine: Engine) -> None:
        began = time.perf_counter()
        cache = engine.slots[0].cache
        spans = engine.rules.prefill_spans(0, len(oracle.full_ids))
        found: list[int] = []
        for start, end in spans:
            rows = engine.model.forward(
                [Segment(cache=cache, tokens=oracle.full_ids[start:end], start=start)]
            )
            found += rows.logits.argmax(axis=1).tolist()
        seconds = max(time.perf_counter() - began, MIN_SECONDS)
        wrong = [i for i, (a, b) in enumerate(zip(found, oracle.tf_pred, strict=False)) if a != b]
        total = len(oracle.full_ids)
        matches = min(total, len(oracle.tf_pred)) - len(wrong)
        score = f"{matches}/{total} positions | {total / seconds:.1f} pos/s"
        self.write(f"PREFILL (teacher-forcing) C vs oracle: {score}\n".encode())
        for i in wrong:
            log(f"[ORACLE] mismatch pos={i} expected={oracle.tf_pred[i]} got={found[i]}")


def _read_ids(data: object, key: str, path: Path, vocab_size: int) -> tuple[int, ...]:
    ids = data.get(key, []) if isinstance(data, dict) else None
    if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i < vocab_size for i in ids):
        raise UsageError(f"{path}: {key} is not a list of token ids below {vocab_size}")
    return tuple(ids)


def _spaced(tokens: Sequence[int]) -> str:
    return "".join(f"{token} " for token in tokens)
