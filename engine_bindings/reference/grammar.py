"""Grammars: GBNF, JSON Schema or Lark text compiled into matchers over this model's tokens.

The library behind it is imported at the first grammar, so that an engine without one starts quickly.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import tokenizers

from engine_bindings.reference.tokenizer import TOKENIZER_FILE, Tokenizer
from engine_bindings.wire.mux_extension import LARK_PREFIX

if TYPE_CHECKING:
    from llguidance import LLTokenizer

T = TypeVar("T")
KEPT_GRAMMARS = 64  # compiled grammars that wait to be asked for again
MAX_REASON_CHARACTERS = 200
EMPTY_LANGUAGE = "no text obeys it"
RULE = re.compile(r"^\s*[A-Za-z_][\w.-]*\s*(?:::=|:)", re.MULTILINE)
# The layout of Python's json.dumps, which the reference model writes: with the white space fixed, far more
# tokens are forced, and an answer cannot go on in white space for ever. A schema's own "x-guidance" wins.
JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarError(Exception):
    """A grammar does not compile; ``reason`` is one line, ``schema`` says that it is a JSON Schema."""

    def __init__(self, reason: str, *, schema: bool = False) -> None:
        line = " ".join(reason.split("\n", 1)[0].split())[:MAX_REASON_CHARACTERS]
        self.reason = line or "the grammar does not compile"
        self.schema = schema
        super().__init__(self.reason)


class Matcher(Protocol):
    """How far a text has come in a grammar. Tokens that are refused change nothing."""

    def try_consume_tokens(self, tokens: list[int], /) -> int:
        """Take tokens up to the first that the grammar refuses; return how many were taken."""
        ...

    def rollback(self, num_tokens: int, /) -> bool:
        """Undo the last tokens."""
        ...

    def reset(self) -> bool:
        """Undo everything."""
        ...

    def compute_bitmask(self) -> bytes:
        """Return one bit per token, lowest bit first: what may come next."""
        ...

    def compute_ff_tokens(self) -> list[int]:
        """Return the tokens that must come next, as far as their borders are certain."""
        ...

    def is_accepting(self) -> bool:
        """Return whether the text may end here."""
        ...

    def get_error(self) -> str:
        """Return what broke the matcher, empty when nothing did."""
        ...


class Grammar:
    """A compiled grammar; ``rules`` is the number of rules in its text."""

    def __init__(self, compiled: "CompiledMatcher", *, rules: int) -> None:
        self.rules = rules
        self._compiled = compiled

    def start(self) -> Matcher:
        """Return a matcher at the beginning."""
        return SafeMatcher(self._compiled.deep_copy())


class CompiledMatcher(Matcher, Protocol):
    """A matcher that can be copied."""

    def deep_copy(self) -> Matcher:
        """Return a matcher of its own in the same place."""
        ...


class SafeMatcher:
    """A matcher that tells every error by ``get_error``: what the library raises must not end a process."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._error = ""

    def try_consume_tokens(self, tokens: list[int], /) -> int:
        """Take tokens up to the first that the grammar refuses; return how many were taken."""
        return self._ask(lambda: self._matcher.try_consume_tokens(tokens), 0)

    def rollback(self, num_tokens: int, /) -> bool:
        """Undo the last tokens."""
        return self._ask(lambda: self._matcher.rollback(num_tokens), False)

    def reset(self) -> bool:
        """Undo everything."""
        return self._ask(self._matcher.reset, False)

    def compute_bitmask(self) -> bytes:
        """Return one bit per token; nothing once the matcher is broken."""
        return self._ask(self._matcher.compute_bitmask, b"")

    def compute_ff_tokens(self) -> list[int]:
        """Return the tokens that must come next, as far as their borders are certain."""
        return self._ask(self._matcher.compute_ff_tokens, [])

    def is_accepting(self) -> bool:
        """Return whether the text may end here."""
        return self._ask(self._matcher.is_accepting, False)

    def get_error(self) -> str:
        """Return what broke the matcher in one line, empty when nothing did."""
        return self._error or self._matcher.get_error().partition("\n")[0]

    def _ask(self, call: Callable[[], T], otherwise: T) -> T:
        if self._error:
            return otherwise
        try:
            return call()
        except Exception as error:  # whatever the library raises ends this turn, not the process
            self._error = str(error).partition("\n")[0] or type(error).__name__
            return otherwise


class GrammarCompiler:
    """Compiles grammars for one tokenizer. ``ends`` are the tokens that end an answer."""

    def __init__(self, model_dir: Path, *, vocab_size: int, ends: Iterable[int]) -> None:
        self._path = model_dir / TOKENIZER_FILE
        self._vocab_size = vocab_size
        self._ends = sorted(ends)
        self._tokenizer: LLTokenizer | None = None
        self.compile = lru_cache(maxsize=KEPT_GRAMMARS)(self._compile)

    def _compile(self, text: bytes) -> Grammar:
        """Compile a grammar. Raises GrammarError."""
        schema = is_schema(text)
        try:
            return self._build(text.decode("utf-8"), schema=schema)
        except GrammarError:
            raise
        except IndexError as error:
            raise GrammarError("the text ends inside a rule", schema=schema) from error
        except RecursionError as error:
            raise GrammarError("nested too deeply", schema=schema) from error
        except Exception as error:  # what the library's converters raise is a bare Exception
            raise GrammarError(str(error), schema=schema) from error

    def _build(self, text: str, *, schema: bool) -> Grammar:
        from llguidance import LLMatcher  # noqa: PLC0415 - slow to import

        compiled = LLMatcher(self._load_tokenizer(), to_library_form(text, schema=schema), log_level=0)
        if compiled.get_error():
            raise GrammarError(compiled.get_error(), schema=schema)
        grammar = Grammar(compiled, rules=1 if schema else len(RULE.findall(text)))
        if reason := find_dead_end(grammar.start()):
            raise GrammarError(reason, schema=schema)
        return grammar

    def _load_tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415 - slow to import

        if self._tokenizer is None:
            if not self._ends:
                raise GrammarError("this model has no stop token, so an answer could not end")
            # One end is enough here: which of them may come is the constraint's own business.
            plain = PlainTokenizer(self._path, vocab_size=self._vocab_size, end=self._ends[0])
            wrapped = TokenizerWrapper(plain)
            self._tokenizer = LLTokenizer(wrapped, n_vocab=self._vocab_size, eos_token=self._ends[0])
        return self._tokenizer


class PlainTokenizer:
    """The tokenizer as the library sees it: text never becomes an added token.

    With the file's own tokenizer the library forces the added token where a grammar spells its text, and then
    refuses it. Here such a token comes only where a Lark grammar names it.
    """

    def __init__(self, path: Path, *, vocab_size: int, end: int) -> None:
        tokenizer = Tokenizer(path.parent)
        content = json.loads(path.read_text("utf-8"))
        self._library = tokenizers.Tokenizer.from_str(json.dumps({**content, "added_tokens": []}))
        self.eos_token_id = end
        self.bos_token_id = None
        self.special_token_ids = sorted(tokenizer.added_ids)
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocab_size)]

    def __call__(self, text: bytes) -> list[int]:
        """Return the ids of text."""
        ids: list[int] = self._library.encode(text.decode("utf-8"), add_special_tokens=False).ids
        return ids


def find_dead_end(matcher: Matcher) -> str:
    """Return why no text can follow the part that a grammar forces first, empty when one can.

    Grammars without any text, and those that are too large for the library, show only here.
    """
    matcher.try_consume_tokens(matcher.compute_ff_tokens())
    possible = any(matcher.compute_bitmask()) or matcher.is_accepting()
    error = matcher.get_error()
    if possible and not error:
        return ""
    return EMPTY_LANGUAGE if error in {"", "NoExtensionBias"} else error


def is_schema(text: bytes) -> bool:
    """Return whether a grammar is a JSON Schema: its first character is a brace."""
    return text.lstrip().startswith(b"{")


def to_library_form(text: str, *, schema: bool) -> str:
    """Return a grammar as the library takes it. Raises what its converters raise."""
    from llguidance import LLMatcher  # noqa: PLC0415 - slow to import
    from llguidance.gbnf_to_lark import gbnf_to_lark  # noqa: PLC0415 - the same

    if schema:
        return LLMatcher.grammar_from_json_schema(text, defaults=JSON_LAYOUT)  # type: ignore[arg-type]
    prefix = LARK_PREFIX.decode()
    return text.removeprefix(prefix) if text.startswith(prefix) else gbnf_to_lark(text)
