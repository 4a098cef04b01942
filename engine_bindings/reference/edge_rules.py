"""Every decision around the decode loop that an engine can get wrong: what is asked, shown, counted and kept.

``rules`` holds those of the loop itself; both make up one object, so a variant engine is a subclass that
replaces one method. Where a rule returns what it was given, the doc says what must not happen to it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from engine_bindings.reference.sampling import Draws, Score
from engine_bindings.reference.settings import Kernels, Mode
from engine_bindings.reference.slot import Drafter


class EdgeRules:
    """The right decisions."""

    # which loop, which settings

    def answering_mode(self, mode: Mode) -> Mode:
        """Return the mode whose loop answers: the one that was asked for."""
        return mode

    def computing_kernels(self, kernels: Kernels) -> Kernels:
        """Return the kernels that compute: those that were asked for."""
        return kernels

    def running_depth(self, depth: int) -> int:
        """Return the draft depth that runs: the one that was asked for and that the banner names."""
        return depth

    def stops_at_end_of_text_only(self, mode: Mode, *, all_stops: bool) -> bool:
        """Return whether the end of text alone ends an answer: in serve mode, unless all stops are asked."""
        return mode == "serve" and not all_stops

    def opens_thinking(self, *, think: bool) -> bool:
        """Return whether a typed line's answer opens with reasoning: only when that was asked for."""
        return think

    def state_directory(self, model_dir: Path, *, enabled: bool) -> Path | None:
        """Return where contexts are saved between processes; None, and nothing is written, when it is off."""
        return model_dir if enabled else None

    # the prompt

    def tokenise_prompt(self, encode: Callable[[bytes], list[int]], text: bytes) -> list[int]:
        """Return a prompt's tokens: the whole text at once, so that text alone decides where tokens end."""
        return encode(text)

    def fit_prompt(self, prompt: list[int], _limit_tokens: int) -> list[int]:
        """Return the prompt to answer: all of it, as one that is longer than the limit must be refused."""
        return prompt

    def heeds_grammar(self) -> bool:
        """Return whether the grammar of a serve mode request is used: on this path as on the others."""
        return True

    def polls_input(self, *, running: bool) -> bool:  # noqa: ARG002 - commands count at any time
        """Return whether commands are read between two forwards: also while turns run."""
        return True

    # what a client is shown

    def frame_bytes(self, token_bytes: bytes) -> bytes:
        """Return a token's bytes as they are sent: unchanged, also where they split a character."""
        return token_bytes

    def shown_tokens(self, emitted: Sequence[int]) -> Sequence[int]:
        """Return the tokens that a client is shown of those that were emitted together: all of them."""
        return emitted

    # sources of drafts and of chance

    def draft_source(self, drafter: Drafter) -> Drafter:
        """Return where drafts come from: the source that the checkpoint and the settings give."""
        return drafter

    def draw_numbers(self, seed: int | None, prompt: Sequence[int]) -> Draws:
        """Return a request's random numbers: its own, from the seed and the prompt alone."""
        return Draws.for_request(seed, prompt)

    # counters

    def reported_cached(self, matched: int) -> int:
        """Return how many of the prompt's tokens are said to be reused: those that were."""
        return matched

    def counted_drafts(self, drafts: Sequence[int]) -> int:
        """Return how many tokens count as drafted in one forward: every one that was verified."""
        return len(drafts)

    def counted_accepted(self, _drafts: Sequence[int], _chosen: Sequence[int], kept: int) -> int:
        """Return how many tokens count as accepted in one forward: the leading ones that were emitted."""
        return kept

    def reported_score(self, score: Score, *, drafted: bool) -> Score:  # noqa: ARG002 - the origin does not matter
        """Return the score that is reported of a token: its row's, for an accepted draft as well."""
        return score
