"""The scenario file as it is written: its keys, their types, and messages that name line, key and remedy."""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from engine_bindings.errors import ScenarioError
from harness.grammar import Grammar
from harness.scenario_lines import Location, line_of, locate_keys

MAX_CAP_TOKENS = 1_000_000
# A text repeated more often than this is no test of a small context any more.
MAX_REPEATS = 100_000
# More draws than this are more than any difference that matters needs.
MAX_DRAWS = 10_000
DRAW_MARK = "{draw}"
"""Stands in a drawn turn's text for the number of the draw."""
# The smallest context that leaves room for a prompt with its template and a few tokens.
MIN_CONTEXT_TOKENS = 16
# The most that the engines we know take.
MAX_SLOTS = 16
# Both names are parts of file names in a run directory, which may have 255 bytes.
MAX_NAME = 80
# Problems shown at once: enough to mend a file in one go, few enough to read.
MAX_PROBLEMS = 8

FILE_FORMS = ("user", "tool", "prompt", "append", "system")
"""Keys whose text may come from a file, written as ``<key>_file``."""

GRAMMAR_FORMS = ("schema_file", "grammar_file")
"""Keys of the top whose text always comes from a file; their value becomes that text."""

NonEmpty = Annotated[str, Field(min_length=1)]
Kind = Literal["user", "tool", "prompt", "append"]
KINDS: tuple[Kind, ...] = ("user", "tool", "prompt", "append")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TurnFile(_Table):
    """One ``[[conversation.turn]]``."""

    user: str | None = None
    tool: str | None = None
    prompt: str | None = None
    append: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_CAP_TOKENS)] | None = None
    stop: list[NonEmpty] = []
    expect: list[NonEmpty] = []
    expect_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    expect_cached_tokens: Annotated[int, Field(ge=0)] | None = None
    after: Annotated[int, Field(ge=0)] | None = None
    same_as: list[Annotated[int, Field(ge=1)]] = []
    cancel_after_tokens: Annotated[int, Field(ge=1, le=MAX_CAP_TOKENS)] | None = None
    expect_refusal: bool = False
    may_refuse: bool = False
    caps: Literal["grid", "every"] | None = None
    stops: list[NonEmpty] = []
    draws: Annotated[int, Field(ge=2, le=MAX_DRAWS)] | None = None
    repeats: list[Annotated[int, Field(ge=1, le=MAX_REPEATS)]] = []

    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds that this turn has a text for; exactly one in a valid file."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    def content(self) -> tuple[Kind, str]:
        """Return the one kind of this turn and its text."""
        (kind,) = self.kinds()
        return kind, getattr(self, kind)


class ConversationFile(_Table):
    """One ``[[conversation]]``."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=MAX_NAME)]
    category: Annotated[str, Field(alias="class", min_length=1)] = "general"
    system: str | None = None
    slot: Annotated[int, Field(ge=0, lt=MAX_SLOTS)] = 0
    turn: Annotated[list[TurnFile], Field(min_length=1)]


class DefaultsFile(_Table):
    """The ``[defaults]`` table."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_CAP_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0


class ScenarioFile(_Table):
    """A whole scenario file."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=MAX_NAME)]
    title: str = ""
    description: str = ""
    entry: Literal["prompt", "line"] = "prompt"
    schema_text: Annotated[str | None, Field(alias="schema_file")] = None
    grammar_text: Annotated[str | None, Field(alias="grammar_file")] = None
    grammar_binds: bool = True
    context_tokens: Annotated[int, Field(ge=MIN_CONTEXT_TOKENS)] | None = None
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    defaults: DefaultsFile = DefaultsFile()
    conversation: Annotated[list[ConversationFile], Field(min_length=1)]

    @field_validator("schema_version", mode="before")
    @classmethod
    def _check_schema(cls, value: object) -> object:
        # True and 1.0 equal 1, and would pass for it.
        if isinstance(value, bool | float):
            raise PydanticCustomError("schema_type", "must be the whole number 1")
        return value

    def grammar(self) -> Grammar | None:
        """Return the grammar of the file's answers, if it has one."""
        if self.schema_text is not None:
            return Grammar(kind="schema", text=self.schema_text, binds=self.grammar_binds)
        if self.grammar_text is not None:
            return Grammar(kind="gbnf", text=self.grammar_text, binds=self.grammar_binds)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a file: where, what, and the remedy."""

    location: Location
    message: str
    hint: str = ""


def parse_tables(text: str, source: str, read_text: Callable[[str], str]) -> ScenarioFile:
    """Parse ``text`` into its tables, with ``*_file`` keys replaced by the text that they name.

    Raises:
        ScenarioError: not TOML, or not these keys and types.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: not TOML: {error}") from error
    except RecursionError as error:
        raise ScenarioError(
            f"{source}: lists or tables are nested too deeply", hint=_WHERE_TO_READ
        ) from error
    lines = locate_keys(text)
    raise_problems(_resolve_file_forms(data, read_text), lines, source)
    try:
        return ScenarioFile.model_validate(data)
    except ValidationError as error:
        raise_problems(_describe_errors(error), lines, source)
        raise


def raise_problems(problems: Iterable[Problem], lines: Mapping[Location, int], source: str) -> None:
    """Raise one ScenarioError that lists ``problems`` in the order of their lines, if there are any."""
    found = sorted(
        ((line_of(lines, problem.location), problem) for problem in problems), key=lambda item: item[0]
    )
    if not found:
        return
    shown = [f"{source}:{line}: {problem.message}" for line, problem in found[:MAX_PROBLEMS]]
    if len(found) > MAX_PROBLEMS:
        shown.append(f"and {len(found) - MAX_PROBLEMS} more problems")
    hints = dict.fromkeys(problem.hint for _, problem in found[:MAX_PROBLEMS] if problem.hint)
    raise ScenarioError("\n".join(shown), hint="; ".join(hints))


def name_key(location: Location) -> str:
    """Return ``location`` as a reader of the file would say it: ``conversation 2, turn 1: user``."""
    words = []
    for part, following in zip(location, (*location[1:], None), strict=True):
        if isinstance(part, str):
            words.append(f"{part} {following + 1}" if isinstance(following, int) else part)
    if len(words) < 2 or words[-1][-1].isdigit():
        return ", ".join(words)
    return f"{', '.join(words[:-1])}: {words[-1]}"


def _resolve_file_forms(data: dict[str, Any], read_text: Callable[[str], str]) -> list[Problem]:
    """Replace every ``<key>_file`` in ``data`` by ``<key>`` with the file's text; return what went wrong."""
    named = [(key, data[key]) for key in GRAMMAR_FORMS if isinstance(data.get(key), str)]
    read = [_read_one(data, key, name, (key,), read_text) for key, name in named]
    problems = [problem for problem in read if problem]
    for location, table in _text_tables(data):
        for key in FILE_FORMS:
            name = table.get(f"{key}_file")
            if isinstance(name, str) and (problem := _resolve_one(table, key, name, location, read_text)):
                problems.append(problem)
    return problems


def _resolve_one(
    table: dict[str, Any], key: str, name: str, location: Location, read_text: Callable[[str], str]
) -> Problem | None:
    place = (*location, f"{key}_file")
    if key in table:
        return Problem(
            location=place, message=f"{name_key(place)}: both {key} and {key}_file are given", hint="keep one"
        )
    del table[f"{key}_file"]
    return _read_one(table, key, name, place, read_text)


def _read_one(
    table: dict[str, Any], key: str, name: str, place: Location, read_text: Callable[[str], str]
) -> Problem | None:
    """Put the text of the file ``name`` under ``key``, or return why it cannot be read."""
    try:
        table[key] = read_text(name)
    except (OSError, UnicodeDecodeError) as error:
        return Problem(location=place, message=f"{name_key(place)}: cannot read {name!r}: {error}")
    except ScenarioError as error:
        return Problem(location=place, message=f"{name_key(place)}: {error.message}", hint=error.hint)
    return None


def _text_tables(data: dict[str, Any]) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Yield the tables that may hold texts, conversations and turns, with their locations."""
    for i, conversation in _tables_in(data.get("conversation")):
        yield ("conversation", i), conversation
        for j, turn in _tables_in(conversation.get("turn")):
            yield ("conversation", i, "turn", j), turn


def _tables_in(value: object) -> Iterator[tuple[int, dict[str, Any]]]:
    if isinstance(value, list):
        yield from ((index, item) for index, item in enumerate(value) if isinstance(item, dict))


def _describe_errors(error: ValidationError) -> Iterator[Problem]:
    for item in error.errors(include_url=False):
        location: Location = item["loc"]
        context = item.get("ctx", {})
        if item["type"] == "extra_forbidden":
            yield _describe_unknown_key(location)
        elif item["type"] == "missing":
            yield Problem(location=location, message=f"{name_key(location)} is missing", hint=_WHERE_TO_READ)
        else:
            said = _REPHRASED.get(item["type"], item["msg"]).format(**context)
            shown = f"{name_key(location)} = {_shorten(item['input'])}"
            yield Problem(location=location, message=f"{shown}: {said}")


_WHERE_TO_READ = "docs/scenario-format.md lists the keys"
_REPHRASED = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text in quotes",
    "list_type": "must be a list",
    "bool_type": "must be true or false",
    "model_type": "must be a table",
    "literal_error": "must be {expected}",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
}


def _describe_unknown_key(location: Location) -> Problem:
    key = str(location[-1])
    known = _known_keys(location[:-1])
    message = f"{name_key(location)} is not a key of the format"
    homes = [home for home, keys in _KEYS.items() if key in keys]
    close = () if homes else difflib.get_close_matches(key, known, n=1)
    if close:
        return Problem(location=location, message=message, hint=f"did you mean {close[0]!r} for {key!r}?")
    hint = f"{key!r} belongs in {_HOMES[homes[0]]}" if homes else f"the keys here are {', '.join(known)}"
    return Problem(location=location, message=message, hint=hint)


def _keys_of(model: type[_Table]) -> tuple[str, ...]:
    names = tuple(field.alias or name for name, field in model.model_fields.items())
    return names + tuple(f"{name}_file" for name in names if name in FILE_FORMS)


_KEYS: dict[tuple[str, ...], tuple[str, ...]] = {
    (): _keys_of(ScenarioFile),
    ("defaults",): _keys_of(DefaultsFile),
    ("conversation",): _keys_of(ConversationFile),
    ("conversation", "turn"): _keys_of(TurnFile),
}
_HOMES: dict[tuple[str, ...], str] = {
    (): "the top of the file, before the first table",
    ("defaults",): "[defaults]",
    ("conversation",): "[[conversation]]",
    ("conversation", "turn"): "[[conversation.turn]]",
}


def _known_keys(location: Location) -> Sequence[str]:
    return _KEYS.get(tuple(part for part in location if isinstance(part, str)), ())


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
