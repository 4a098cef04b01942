"""What a scenario file must keep beyond keys and types: rules between turns, caps and the way in."""

from collections.abc import Iterator

from harness.grammar import build_checker
from harness.scenario_format import ConversationFile, Problem, ScenarioFile, TurnFile, name_key
from harness.scenario_lines import Location
from harness.scenario_links import find_link_problems

# A SUBMIT and a PROMPT frame hold at most this much.
MAX_PROMPT_BYTES = 16 * 1024 * 1024
# The chat loop of the engine copies a typed line into a 64 KiB buffer together with its template.
MAX_LINE_BYTES = 60_000

_RAW = {"prompt", "append"}


def find_problems(file: ScenarioFile) -> Iterator[Problem]:
    """Yield every broken rule of a file whose keys and types are right."""
    yield from _check_ids(file)
    yield from _check_grammar(file)
    for i, conversation in enumerate(file.conversation):
        place: Location = ("conversation", i)
        yield from _check_conversation(conversation, place)
        for j, turn in enumerate(conversation.turn):
            yield from _check_turn(
                turn, (*place, "turn", j), has_default_cap=file.defaults.max_tokens is not None
            )
        if file.entry == "line":
            yield from _check_line_conversation(conversation, place)
    if file.entry == "line":
        yield from _check_equal_caps(file)
    yield from find_link_problems(file)


def _problem(location: Location, message: str, hint: str = "") -> Problem:
    return Problem(location=location, message=f"{name_key(location)}: {message}", hint=hint)


def _check_ids(file: ScenarioFile) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for i, conversation in enumerate(file.conversation):
        if conversation.id in seen:
            first = seen[conversation.id] + 1
            yield _problem(
                ("conversation", i, "id"), f"{conversation.id!r} is also the id of conversation {first}"
            )
        seen.setdefault(conversation.id, i)


def _check_grammar(file: ScenarioFile) -> Iterator[Problem]:
    if file.schema_text is not None and file.grammar_text is not None:
        yield _problem(("grammar_file",), "schema_file is given too", "a scenario has one grammar")
        return
    grammar = file.grammar()
    if grammar is None:
        if "grammar_binds" in file.model_fields_set:
            yield _problem(
                ("grammar_binds",), "there is no grammar", "name one with schema_file or grammar_file"
            )
        return
    try:
        build_checker(grammar.kind, grammar.text)
    except ValueError as error:
        yield _problem(("schema_file" if grammar.kind == "schema" else "grammar_file",), str(error))


def _check_conversation(conversation: ConversationFile, place: Location) -> Iterator[Problem]:
    kinds = [set(turn.kinds()) for turn in conversation.turn]
    if kinds[0] & {"append", "tool"}:
        (kind,) = kinds[0] & {"append", "tool"} if len(kinds[0]) == 1 else ("append",)
        hint = "start with user, or with prompt for an exact prompt"
        yield _problem((*place, "turn", 0, kind), "the first turn has no answer before it", hint)
    raw = [bool(kind & _RAW) for kind in kinds]
    if any(raw) and not all(raw):
        hint = "a conversation is either user and tool turns, or prompt and append turns"
        odd = raw.index(not raw[0])
        at = (*place, "turn", odd, *conversation.turn[odd].kinds()[:1])
        yield _problem(at, "mixes messages with raw prompts", hint)
    if any(raw) and conversation.system is not None:
        hint = "write the system text into the prompt"
        yield _problem((*place, "system"), "a conversation of exact prompts has no system message", hint)


def _check_turn(turn: TurnFile, place: Location, *, has_default_cap: bool) -> Iterator[Problem]:
    kinds = turn.kinds()
    if len(kinds) != 1:
        given = f"has {' and '.join(kinds)}" if kinds else "has no text"
        yield _problem(
            (*place, kinds[-1]) if kinds else place, given, "give exactly one of user, tool, prompt, append"
        )
    if turn.max_tokens is None and turn.caps is None and not has_default_cap:
        yield _problem(place, "has no max_tokens", "give it one, or give [defaults] one")
    for kind in kinds:
        # An empty append is a turn of its own: it goes on where the cap cut the last answer.
        yield from _check_text(getattr(turn, kind), (*place, kind), may_be_empty=kind == "append")
    yield from _check_expectation(turn, place)


def _check_text(text: str, place: Location, *, may_be_empty: bool) -> Iterator[Problem]:
    if not text and not may_be_empty:
        yield _problem(place, "is empty")
    if "\0" in text:
        yield _problem(place, "holds a NUL character, which the engine's protocols refuse")
    if len(text.encode("utf-8")) > MAX_PROMPT_BYTES:
        yield _problem(place, f"is longer than {MAX_PROMPT_BYTES:,} bytes, the most that a frame holds")


def _check_expectation(turn: TurnFile, place: Location) -> Iterator[Problem]:
    if turn.expect_cached_tokens is None:
        return
    if turn.expect_prompt_tokens is None:
        hint = "add expect_prompt_tokens: it shows that the numbers belong to this tokenizer"
        yield _problem((*place, "expect_cached_tokens"), "stands alone", hint)
    elif turn.expect_cached_tokens > turn.expect_prompt_tokens:
        yield _problem(
            (*place, "expect_cached_tokens"),
            f"is more than expect_prompt_tokens = {turn.expect_prompt_tokens}",
        )


def _check_line_conversation(conversation: ConversationFile, place: Location) -> Iterator[Problem]:
    if conversation.system is not None:
        yield _problem((*place, "system"), 'a typed line carries no system message (entry = "line")')
    if conversation.slot:
        yield _problem((*place, "slot"), 'a typed line always runs in slot 0 (entry = "line")')
    last = len(conversation.turn) - 1
    for j, turn in enumerate(conversation.turn):
        at = (*place, "turn", j)
        for kind in turn.kinds():
            if kind != "user":
                yield _problem((*at, kind), 'only user turns can be typed (entry = "line")')
        if turn.user is not None:
            yield from _check_line_text(turn.user, (*at, "user"))
        if turn.stop and j != last:
            hint = "the engine's context keeps the tokens behind a stop string, the rendered prompt does not"
            yield _problem((*at, "stop"), 'only the last turn may have stop strings (entry = "line")', hint)


def _check_line_text(text: str, place: Location) -> Iterator[Problem]:
    if "\n" in text or "\r" in text:
        yield _problem(place, 'a typed line holds no line break (entry = "line")')
    if text.startswith("\x02"):
        yield _problem(place, "starts with \\x02, which the chat loop reads as a command")
    if len(text.encode("utf-8")) > MAX_LINE_BYTES:
        yield _problem(place, f"is longer than {MAX_LINE_BYTES:,} bytes, the most that a typed line may hold")


def _check_equal_caps(file: ScenarioFile) -> Iterator[Problem]:
    caps = [
        (("conversation", i, "turn", j, "max_tokens"), turn.max_tokens or file.defaults.max_tokens)
        for i, conversation in enumerate(file.conversation)
        for j, turn in enumerate(conversation.turn)
    ]
    for place, cap in caps:
        if cap is not None and caps[0][1] is not None and cap != caps[0][1]:
            hint = 'chat mode caps typed lines by a setting of the whole process (entry = "line")'
            yield _problem(place, f"{cap} differs from the cap of the first turn, {caps[0][1]}", hint)
