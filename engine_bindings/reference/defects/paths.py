"""Defects of paths, transport, reuse and honesty: what one path does, and what is only said."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_bindings.reference.defects.defect import Defect, Seeded
from engine_bindings.reference.drafting import NoDrafter
from engine_bindings.reference.rules import FloatArray
from engine_bindings.reference.sampling import Draws, Sampling
from engine_bindings.reference.settings import EngineSettings, Mode
from engine_bindings.reference.slot import Drafter, Slot

ANSWER = b"</think>"
CUT_BYTES = 3  # into an answer: inside its first word
OVERHEAD_ROUNDS = 3000  # of key stretching, about as long as one forward of the packaged model
LOOP_TOKENS = 16


class StopSetPerPath(Seeded):
    """Serve mode arms the end of text only, also when it was told to arm what chat mode does."""

    def stops_at_end_of_text_only(self, mode: Mode, *, all_stops: bool) -> bool:  # noqa: ARG002
        """Pass over the setting."""
        return mode == "serve"


class DefaultsDifferPerPath(Seeded):
    """Chat mode's own template reasons by default; serve mode's prompts say what they want."""

    def opens_thinking(self, *, think: bool) -> bool:  # noqa: ARG002
        """Pass over the setting."""
        return True


class WrongProtocol(Seeded):
    """The chat loop answers where serve mode was asked for."""

    def answering_mode(self, mode: Mode) -> Mode:
        """Return chat for serve."""
        return "chat" if mode == "serve" else mode


class StreamDropsOnMultiToken(Seeded):
    """A step streams one delta, however many tokens it made."""

    def shown_tokens(self, emitted: Sequence[int]) -> Sequence[int]:
        """Return the first token only, in serve mode."""
        return emitted[:1] if self.serves else emitted


class LossyUtf8(Seeded):
    """Serve mode decodes each token by itself."""

    def frame_bytes(self, token_bytes: bytes) -> bytes:
        """Replace the parts of a character that was split."""
        return token_bytes.decode("utf-8", "replace").encode() if self.serves else token_bytes


class NoPrefixReuse(Seeded):
    """Every turn computes its whole prompt."""

    def match_prefix(self, _history: Sequence[int], _prompt: Sequence[int]) -> int:
        """Return 0."""
        return 0


class ReuseLostUnderSpeculation(Seeded):
    """With drafts on, every turn computes its whole prompt."""

    def match_prefix(self, history: Sequence[int], prompt: Sequence[int]) -> int:
        """Return 0 with drafts on."""
        return 0 if self.depth else super().match_prefix(history, prompt)


class RetokenisationMismatch(Seeded):
    """Serve mode tokenises the answers that come back in a prompt otherwise than they were generated."""

    def tokenise_prompt(self, encode: Callable[[bytes], list[int]], text: bytes) -> list[int]:
        """Cut every answer in its first word, and tokenise the pieces one by one."""
        if not self.serves:
            return super().tokenise_prompt(encode, text)
        head, *answers = text.split(ANSWER)
        tokens = encode(head)
        for answer in answers:
            tokens += encode(ANSWER + answer[:CUT_BYTES]) + encode(answer[CUT_BYTES:])
        return tokens


class BannerLies(Seeded):
    """The banner names a depth, and nothing drafts."""

    def draft_source(self, _drafter: Drafter) -> Drafter:
        """Return a source that is always empty."""
        return NoDrafter()


class OffSwitchPartial(Seeded):
    """Depth 0 leaves one draft in every forward."""

    def running_depth(self, depth: int) -> int:
        """Return 1 at least."""
        return max(1, depth)


class RandomHead(Seeded):
    """The head was never trained: it says anything."""

    def draft_source(self, _drafter: Drafter) -> Drafter:
        """Return a source of arbitrary tokens."""
        return _ArbitraryDrafter()


class _ArbitraryDrafter:
    """Tokens that the context's length and newest token decide, and nothing else."""

    def propose(self, slot: Slot, token: int, depth: int, /) -> list[int]:
        """Return ``depth`` tokens of the vocabulary."""
        digest = hashlib.blake2b(b"%d %d" % (slot.length, token)).digest()
        return [
            int.from_bytes(digest[4 * i : 4 * i + 4], "little") % slot.cache.vocab_size for i in range(depth)
        ]

    def follow(self, _slot: Slot, /) -> None:
        """Do nothing."""


class SpecOverhead(Seeded):
    """Speculation is set up in every forward and comes to nothing."""

    def draft_depth(self, depth: int, _room_tokens: int, _room_rows: int) -> int:
        """Work for nothing, and draft nothing."""
        if depth:
            hashlib.pbkdf2_hmac("sha256", b"draft", b"nothing", OVERHEAD_ROUNDS)
        return 0


class DraftsOnce(Seeded):
    """Speculation works for the first request of a process, and never again."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._requests = 0

    def turn_depth(self, depth: int, asked: int | None) -> int:
        """Return 0 from the second request on."""
        self._requests += 1
        return super().turn_depth(depth, asked) if self._requests == 1 else 0


class StateCarriedBetweenArms(Seeded):
    """Contexts are saved and taken up again although saving is off.

    The files go to REF_STATE_DIR, else to the model directory that SNAP names: never into the packaged
    checkpoint. A harness that gives every engine a directory of its own sees files left in it; one that
    shares the directory, or sets REF_STATE_DIR to one that outlives an arm, sees the next arm resume.
    """

    def state_directory(self, model_dir: Path, *, enabled: bool) -> Path | None:
        """Pass over the switch."""
        named = self.settings.state_dir or self.settings.model_dir
        return named or super().state_directory(model_dir, enabled=enabled)


class DegenerateButFast(Seeded):
    """The answer goes round in its own first words, which a drafter learns to follow."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._said: defaultdict[bytes, dict[int, int]] = defaultdict(dict)

    def choose(
        self, logits: FloatArray, sampling: Sampling, draws: Draws, position: int, drafts: Sequence[int], /
    ) -> list[int]:
        """Choose what stood one round earlier; a row behind a rejected draft is chosen again later."""
        said = self._said[draws.key]
        chosen = super().choose(logits, sampling, draws, position, drafts)
        for i, token in enumerate(chosen):
            said[position + i] = said.get(position + i - LOOP_TOKENS, token)
            chosen[i] = said[position + i]
        return chosen


PATH_DEFECTS = (
    Defect(
        name="stop-set-per-path",
        group="paths",
        wrong="chat and serve arm different stop tokens, whatever COLI_SERVE_ALL_STOPS says",
        references=("colibri#381", "colibri#675"),
        seen_in="chat against serve: text behind the stop, finish reason",
        verdict="stop-or-cap",
        rules=StopSetPerPath,
    ),
    Defect(
        name="defaults-differ-per-path",
        group="paths",
        wrong="chat and serve start from other defaults: a typed line's answer opens with <think>",
        references=("colibri#975",),
        seen_in="typed lines against serve: prompt tokens, text",
        verdict="prompt-mismatch",
        rules=DefaultsDifferPerPath,
    ),
    Defect(
        name="wrong-protocol",
        group="paths",
        wrong="the chat loop runs where serve mode was asked for, and answers frames as prompts",
        references=("colibri#492",),
        seen_in="the READY block; no ACCEPT",
        verdict="failed",
        rules=WrongProtocol,
    ),
    Defect(
        name="stream-drops-on-multi-token",
        group="paths",
        wrong="serve mode streams only the first token of a block",
        references=("vllm#52469",),
        seen_in="serve with drafts: text, frames against the token count",
        verdict="counters",
        rules=StreamDropsOnMultiToken,
    ),
    Defect(
        name="lossy-utf8",
        group="paths",
        wrong="serve mode decodes each token by itself and loses split characters",
        references=("ferrox#124",),
        seen_in="replacement characters in serve mode",
        verdict="state",
        rules=LossyUtf8,
    ),
    Defect(
        name="no-prefix-reuse",
        group="paths",
        wrong="the whole conversation is prefilled again each turn",
        references=("colibri#831",),
        seen_in="prefill per turn against the expected",
        verdict="prefix-reuse",
        rules=NoPrefixReuse,
    ),
    Defect(
        name="reuse-lost-under-speculation",
        group="paths",
        wrong="prefix hits vanish when speculation is on",
        references=("vllm#54360",),
        seen_in="prefill, on against off",
        verdict="prefix-reuse",
        rules=ReuseLostUnderSpeculation,
    ),
    Defect(
        name="retokenisation-mismatch",
        group="paths",
        wrong="serve mode tokenises a resent answer otherwise than it was generated",
        references=("Rapid-MLX#1449",),
        seen_in="prompt and prefill tokens of turn 2, chat against serve",
        verdict="prompt-mismatch",
        rules=RetokenisationMismatch,
    ),
    Defect(
        name="banner-lies",
        group="paths",
        wrong="the banner says that speculation is on, and nothing is drafted",
        references=("colibri#358", "colibri#605"),
        seen_in="counters",
        verdict="void",
        rules=BannerLies,
    ),
    Defect(
        name="off-switch-partial",
        group="paths",
        wrong="DRAFT=0 still drafts",
        references=("imp#1639", "mlx-serve#317"),
        seen_in="counters of the off arm",
        verdict="void",
        rules=OffSwitchPartial,
    ),
    Defect(
        name="random-head",
        group="paths",
        wrong="the MTP head is missing or untrained",
        references=("sglang#35797",),
        seen_in="acceptance near zero",
        verdict="counters",
        rules=RandomHead,
    ),
    Defect(
        name="spec-overhead",
        group="paths",
        wrong="speculation costs time in every forward and proposes nothing",
        references=("vllm-ascend#16638",),
        seen_in="time per forward with depth above 0; nothing drafted",
        verdict="void",
        rules=SpecOverhead,
    ),
    Defect(
        name="drafts-once",
        group="paths",
        wrong="speculation works for the first request of a process only",
        references=("llama.cpp#19231",),
        seen_in="counters of later requests",
        verdict="void",
        rules=DraftsOnce,
    ),
    Defect(
        name="state-carried-between-arms",
        group="paths",
        wrong="files written by one arm change the next: contexts are saved although KVSAVE=0",
        references=("colibri#93", "colibri#1122"),
        seen_in="files left in SNAP; with REF_STATE_DIR or a shared SNAP: resumed tokens, prefill of turn 1",
        verdict="prefix-reuse",
        rules=StateCarriedBetweenArms,
    ),
    Defect(
        name="degenerate-but-fast",
        group="paths",
        wrong="the answer is a loop and wins every speed table",
        references=("minefield#108",),
        seen_in="text statistics",
        verdict="void",
        rules=DegenerateButFast,
    ),
)
