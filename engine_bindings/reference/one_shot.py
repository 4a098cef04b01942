"""One-shot mode: the answer to PROMPT on stdout, with the run's numbers around it."""

from collections.abc import Sequence

from engine_bindings.reference.console import TurnLog, describe_forwards, log
from engine_bindings.reference.generate import Pick, Request, Turn
from engine_bindings.reference.guides import StandingGrammar
from engine_bindings.reference.machine import read_rss_gb
from engine_bindings.reference.pipes import Writer
from engine_bindings.reference.runtime import Runtime
from engine_bindings.reference.sampling import Sampling
from engine_bindings.reference.stops import StopSet

DEFAULT_NGEN_TOKENS = 64
DEFAULT_TEMPERATURE = 0.7
PREFIX_TOKENS = ("[gMASK]", "<sop>")
MIN_SECONDS = 1e-6
HEARTBEAT_TOKENS = 16
NO_PROFILE = (
    "PROFILE: expert-disk 0.000s service / 0.000s wait | expert-matmul 0.000s | attention 0.000s"
    " (including kvb 0.000s) | lm_head 0.000s | other {seconds:.3f}s\n"
    "ATTENTION: projection/RoPE 0.000s | score-softmax-value 0.000s | output projection 0.000s\n"
)


class OneShot(TurnLog):
    """One turn on a context of its own size, and the listener that writes its text."""

    def __init__(self, runtime: Runtime, write: Writer) -> None:
        super().__init__(prof=runtime.settings.prof, layers=runtime.config.num_hidden_layers)
        self.runtime = runtime
        self.write = write
        self.tokens: list[int] = []
        self.stop_ids: StopSet = runtime.read_stops()
        self.grammar = StandingGrammar(runtime, self.stop_ids)

    def run(self) -> int:
        """Answer the prompt; return the exit status."""
        runtime, settings = self.runtime, self.runtime.settings
        text = (settings.prompt or "").encode("utf-8", "surrogateescape")
        prompt = self._encode(text)
        if not prompt:
            log("prompt is empty after tokenization")
            return 0
        ngen_tokens = settings.ngen_tokens or DEFAULT_NGEN_TOKENS
        context_tokens = len(prompt) + ngen_tokens + 1
        engine = runtime.build_engine(self, stops=self.stop_ids, context_tokens=context_tokens)
        eos = self.stop_ids.ids[0] if self.stop_ids.ids else -1
        self.write(
            f"prompt: {len(prompt)} tokens | generating up to {ngen_tokens} (EOS stop={eos}) |"
            f" n-gram draft={runtime.draft_tokens}\n".encode()
        )
        self.write(text)
        turn = engine.start(self._build_request(prompt, ngen_tokens), self.grammar.start(prompt))
        prefill_s = turn.prefilled_s - turn.started_s
        self.write(f"PROFILO PREFILL ({prefill_s:.2f}s):\n{NO_PROFILE.format(seconds=prefill_s)}".encode())
        while not engine.step():
            pass
        self._report(turn)
        return 0

    def on_prefix(self, _turn: Turn) -> None:
        """Stay silent: a fresh context has no prefix."""

    def on_tokens(self, turn: Turn, tokens: Sequence[int], _picks: Sequence[Pick]) -> None:
        """Write the tokens' bytes, and a sign of life on stderr now and then."""
        before = len(self.tokens)
        self.tokens += tokens
        self.write(b"".join(map(self.runtime.tokenizer.token_bytes, tokens)))
        if len(self.tokens) // HEARTBEAT_TOKENS > before // HEARTBEAT_TOKENS:
            per_forward = len(self.tokens) / max(1, turn.forwards)
            log(f"\n[t={len(self.tokens)}  RSS {read_rss_gb():.2f} GB  hit 100%  {per_forward:.2f} tok/fw]")

    def _encode(self, text: bytes) -> list[int]:
        """Return the prompt's tokens, with GLM's two opening tokens unless they are there or switched off."""
        tokenizer = self.runtime.tokenizer
        tokens = tokenizer.encode(text)
        prefix = [tokenizer.id_of(text) for text in PREFIX_TOKENS]
        if not tokens or not self.runtime.settings.chat_template or tokens[:2] == prefix:
            return tokens
        return [*(token for token in prefix if token is not None), *tokens]

    def _build_request(self, prompt: Sequence[int], ngen_tokens: int) -> Request:
        settings = self.runtime.settings
        temperature = DEFAULT_TEMPERATURE if settings.temperature is None else settings.temperature
        return Request(
            request_id=0,
            slot=0,
            prompt=tuple(prompt),
            max_tokens=ngen_tokens,
            sampling=Sampling(temperature=temperature, top_p=settings.top_p),
        )

    def _report(self, turn: Turn) -> None:
        decode_s = max(turn.ended_s - turn.prefilled_s, MIN_SECONDS)
        profile = NO_PROFILE.format(seconds=decode_s)
        lines = (
            "\n---",
            self._describe_speed(turn, decode_s),
            self._describe_experts(),
            describe_speculation(turn),
            profile,
        )
        self.write("\n".join(lines).encode())
        if self.prof and turn.forwards:
            self.write(f"{describe_forwards(turn).to_line()}\n".encode())
        if self.runtime.settings.print_tokens:
            log(_list_tokens(f"[PROMPT_TOKENS] {len(turn.request.prompt)}:", turn.request.prompt))
            log(_list_tokens(f"[TOKENS] {len(self.tokens)} generated:", self.tokens))

    def _describe_speed(self, turn: Turn, decode_s: float) -> str:
        prefill = f"prefill {len(turn.request.prompt)} tokens in {turn.prefilled_s - turn.started_s:.2f}s"
        rate = f"{turn.emitted / decode_s:.2f} tok/s"
        decode = f"decode {turn.emitted} tokens in {decode_s:.2f}s ({rate})"
        hits = "expert hit rate 100.0% (pin 100.0% + lru 0.0%)"
        return f"{prefill} | {decode} | {hits} | RSS {read_rss_gb():.2f} GB"

    def _describe_experts(self) -> str:
        config = self.runtime.config
        sparse = config.num_hidden_layers - config.first_k_dense_replace
        loads = f"per-layer 0.00 across {sparse}; baseline topk={config.num_experts_per_tok}"
        return f"experts loaded/token: 0.0 ({loads}) | TOPK=0 TOPP=0.00"


def describe_speculation(turn: Turn) -> str:
    """Return the line with tokens per forward and acceptance.

    Unlike the real engine's it counts drafts after they were cut to the cap, and the last token's forward.
    """
    per_forward = turn.emitted / turn.forwards if turn.forwards else 1.0
    percent = 100 * turn.accepted / turn.drafted if turn.drafted else 0.0
    rate = f"{per_forward:.2f} tokens/forward ({turn.forwards} forwards per {turn.emitted} tokens)"
    return f"speculation: {rate} | MTP acceptance {percent:.0f}% ({turn.accepted}/{turn.drafted})"


def _list_tokens(head: str, tokens: Sequence[int]) -> str:
    return " ".join((head, *map(str, tokens)))
