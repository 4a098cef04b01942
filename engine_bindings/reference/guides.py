"""Builds the guide of a turn: from the grammar of a request, or from the one in the environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.errors import UsageError
from engine_bindings.reference.console import log
from engine_bindings.reference.constraint import UNGUIDED, Constraint, DraftSource, Guide, Opening
from engine_bindings.reference.grammar import Grammar, GrammarCompiler, GrammarError
from engine_bindings.reference.runtime import Runtime
from engine_bindings.reference.stops import StopSet
from engine_bindings.reference.tokenizer import Tokenizer
from engine_bindings.wire.limits import DEFAULT_LIMITS

THINK, END_OF_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guides:
    """What all guides of an engine share. ``ends`` are the stop tokens, ``vocab_size`` the model's."""

    compiler: GrammarCompiler
    tokenizer: Tokenizer
    vocab_size: int
    ends: frozenset[int]

    def constrain(
        self, grammar: Grammar, prompt: Sequence[int], *, after_think: bool, to_the_last: bool = False
    ) -> Constraint:
        """Return a constraint on the answer to ``prompt``.

        With ``after_think`` the grammar begins behind ``</think>`` when the prompt ends in ``<think>``.
        """
        return Constraint(
            grammar.start(),
            vocab_size=self.vocab_size,
            ends=self.ends,
            opening=self._find_opening(prompt) if after_think else None,
            to_the_last=to_the_last,
        )

    def _find_opening(self, prompt: Sequence[int]) -> Opening | None:
        opened, closing = self.tokenizer.id_of(THINK), self.tokenizer.id_of(END_OF_THINK)
        if opened is None or closing is None or prompt[-1] != opened:
            return None
        return Opening(closing=closing, barred=self.ends | self.tokenizer.special_ids)


def build_guides(runtime: Runtime, stops: StopSet) -> Guides:
    """Return the guides of an engine that stops at ``stops``."""
    vocab_size, ends = runtime.config.vocab_size, frozenset(stops.ids)
    return Guides(
        compiler=GrammarCompiler(runtime.checkpoint.model_dir, vocab_size=vocab_size, ends=ends),
        tokenizer=runtime.tokenizer,
        vocab_size=vocab_size,
        ends=ends,
    )


class StandingGrammar:
    """The grammar of the environment, for every answer of chat and one-shot mode.

    A source of drafts that cannot be used is left out with a word on stderr, as in the real engine; a
    constraint that cannot be used is an error, as the answers would not be what was asked for.
    """

    def __init__(self, runtime: Runtime, stops: StopSet) -> None:
        """Read and compile the grammar. Raises UsageError when it is to constrain and cannot."""
        settings = runtime.settings
        self.span_tokens = settings.span_tokens
        self.constrains = settings.grammar_constrains
        self.guides = build_guides(runtime, stops)
        self.grammar = self._load(settings.grammar) if settings.grammar else None

    def start(self, prompt: Sequence[int]) -> Guide:
        """Return the guide of a new answer."""
        if self.grammar is None:
            return UNGUIDED
        if self.constrains:
            return self.guides.constrain(self.grammar, prompt, after_think=True)
        return DraftSource(self.grammar.start(), span_tokens=self.span_tokens)

    def _load(self, source: str) -> Grammar | None:
        label = "text in the environment" if is_grammar_text(source) else source
        try:
            grammar = self.guides.compiler.compile(read_grammar(source))
        except GrammarError as error:
            if self.constrains:
                hint = "correct the grammar, or switch REF_GRAMMAR_CONSTRAIN off"
                raise UsageError(f"{label}: {error.reason}", hint=hint) from error
            log(f"[{'SCHEMA' if error.schema else 'GRAMMAR'}] {label}: {error.reason}")
            return None
        effect = f"forced span capped at {self.span_tokens} tokens/forward"
        log(f"[GRAMMAR] {label}: {grammar.rules} rules, {'constrains' if self.constrains else effect}")
        return grammar


def is_grammar_text(source: str) -> bool:
    """Return whether GRAMMAR or SCHEMA holds a grammar itself, not the path of one."""
    return "::=" in source or source.lstrip().startswith(("{", "%lark"))


def read_grammar(source: str) -> bytes:
    """Return the text of a grammar from a path or the text itself. Raises GrammarError."""
    if is_grammar_text(source):
        return source.encode("utf-8", "surrogateescape")
    try:
        with Path(source).open("rb") as file:
            text = file.read(DEFAULT_LIMITS.max_grammar_bytes + 1)
    except OSError as error:
        raise GrammarError(f"cannot open: {error.strerror}") from error
    if len(text) > DEFAULT_LIMITS.max_grammar_bytes:
        raise GrammarError(f"larger than {DEFAULT_LIMITS.max_grammar_bytes} bytes")
    return text
