"""What a scenario file must keep between turns: what builds on what, relations, cancels, refusals, sweeps."""

from collections.abc import Iterator

from harness.scenario_format import DRAW_MARK, ConversationFile, Problem, ScenarioFile, TurnFile, name_key
from harness.scenario_lines import Location

_SWEEPS = ("caps", "stops", "repeats", "draws")
_NOT_TYPED = ("after", "cancel_after_tokens", "expect_refusal", "may_refuse", "caps")


def find_link_problems(file: ScenarioFile) -> Iterator[Problem]:
    """Yield every broken rule about the links between the turns of each conversation."""
    for i, conversation in enumerate(file.conversation):
        place: Location = ("conversation", i)
        yield from _check_sweeps(conversation, place)
        yield from _check_swept_id(file, i)
        for j, turn in enumerate(conversation.turn):
            at = (*place, "turn", j)
            yield from _check_after(conversation.turn, j, at)
            yield from _check_same_as(conversation.turn, j, at)
            yield from _check_end(turn, at)
            yield from _check_draws(turn, at, file.defaults.temperature)
            if file.entry == "line":
                yield from _check_typed(turn, at)
            if file.slots > 1:
                yield from _check_alone(turn, at)


def _problem(location: Location, message: str, hint: str = "") -> Problem:
    return Problem(location=location, message=f"{name_key(location)}: {message}", hint=hint)


def _is_sure(turn: TurnFile) -> bool:
    return turn.cancel_after_tokens is None and not turn.expect_refusal and not turn.may_refuse


def _check_after(turns: list[TurnFile], j: int, at: Location) -> Iterator[Problem]:
    turn = turns[j]
    if turn.prompt is not None:
        if turn.after is not None:
            yield _problem((*at, "after"), "an exact prompt builds on nothing", "leave it out, or use append")
        return
    after = j if turn.after is None else turn.after
    if after > j:
        yield _problem((*at, "after"), f"turn {after} does not come before this one, which is turn {j + 1}")
    elif after == 0 and j and (turn.append is not None or turn.tool is not None):
        yield _problem((*at, "after"), "there is no answer to build on after 0", "name an earlier turn")
    elif after and not _is_sure(turns[after - 1]):
        hint = f"give this turn after = N with another turn than {after}, or after = 0 to start anew"
        what = "cancelled or refused, so its answer is not the same in every run"
        yield _problem((*at, "after") if turn.after is not None else at, f"turn {after} is {what}", hint)


def _check_same_as(turns: list[TurnFile], j: int, at: Location) -> Iterator[Problem]:
    place = (*at, "same_as")
    for number in turns[j].same_as:
        if number > j:
            yield _problem(place, f"turn {number} does not come before this one, which is turn {j + 1}")
        elif not _is_sure(turns[number - 1]):
            yield _problem(place, f"turn {number} is cancelled or refused, so its answer may be any")
    if turns[j].same_as and not _is_sure(turns[j]):
        yield _problem(place, "the turn is cancelled or refused, so its answer may be any")


def _check_end(turn: TurnFile, at: Location) -> Iterator[Problem]:
    cancel = turn.cancel_after_tokens
    if cancel is not None and (turn.stop or turn.stops):
        yield _problem((*at, "cancel_after_tokens"), "the turn has stop strings too", "keep one of them")
    if cancel is not None and turn.max_tokens is not None and cancel >= turn.max_tokens:
        hint = "leave the engine room to go on for as long as it takes to hear of the cancel"
        yield _problem((*at, "cancel_after_tokens"), f"is not under max_tokens = {turn.max_tokens}", hint)
    if turn.expect_refusal and turn.may_refuse:
        yield _problem((*at, "may_refuse"), "expect_refusal is given too", "keep one of them")
    if turn.caps is not None and turn.max_tokens is not None:
        yield _problem((*at, "caps"), "max_tokens is given too", "keep one of them")
    if turn.stops and turn.stop:
        yield _problem((*at, "stops"), "stop is given too", "keep one of them")


def _check_draws(turn: TurnFile, at: Location, temperature: float) -> Iterator[Problem]:
    if turn.draws is None:
        return
    if temperature == 0:
        yield _problem((*at, "draws"), "every draw is the same", "give [defaults] a temperature above 0")
    if DRAW_MARK not in "".join(getattr(turn, kind) for kind in turn.kinds()):
        hint = "an engine that seeds each request alike would answer one prompt always alike"
        yield _problem((*at, "draws"), f"the text does not hold {DRAW_MARK}", hint)


def _check_sweeps(conversation: ConversationFile, place: Location) -> Iterator[Problem]:
    swept = [
        (*place, "turn", j, key)
        for j, turn in enumerate(conversation.turn)
        for key in _SWEEPS
        if getattr(turn, key)
    ]
    for at in swept[1:]:
        yield _problem(at, "the conversation has a sweep already", "write a conversation of its own for it")


def _check_swept_id(file: ScenarioFile, i: int) -> Iterator[Problem]:
    own = file.conversation[i]
    if not any(getattr(turn, key) for turn in own.turn for key in _SWEEPS):
        return
    for other in file.conversation:
        if other.id.startswith(f"{own.id}."):
            message = (
                f"the conversations of this sweep are called {own.id}.<value>, and {other.id!r} may be one"
            )
            yield _problem(("conversation", i, "id"), message, "give one of them another id")


def _check_alone(turn: TurnFile, at: Location) -> Iterator[Problem]:
    for key in ("stop", "stops", "cancel_after_tokens", "expect_refusal", "may_refuse"):
        if getattr(turn, key):
            yield _problem((*at, key), "turns that run at once end by themselves or at their cap (slots > 1)")


def _check_typed(turn: TurnFile, at: Location) -> Iterator[Problem]:
    for key in _NOT_TYPED:
        value = getattr(turn, key)
        if value is not None and value is not False:
            yield _problem((*at, key), 'a typed line only goes on from the line before it (entry = "line")')
