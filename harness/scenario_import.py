"""Makes a scenario of logged requests: those that extend one another become the turns of one conversation.

A scenario is a closed loop, so the logged answers are not kept: each arm gives its own.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from engine_bindings.errors import ScenarioError
from harness.redaction import Redactor
from harness.request_log import LoggedMessage, LoggedRequest, UnsupportedRequestError
from harness.scenario import Conversation, Scenario, Turn, TurnKind

DEFAULT_CAP_TOKENS = 256
# A command without output gives an empty result, and no turn may be empty.
EMPTY_RESULT = "(no output)"
SHOWN_PLACES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedScenario:
    """A scenario, what of the log is not in it in plain sentences, and how many requests are."""

    scenario: Scenario
    notes: tuple[str, ...]
    requests: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """One turn as a request shows it."""

    kind: TurnKind
    text: str


@dataclass(slots=True)
class _Talk:
    """A conversation while requests are added to it; caps and stops by the index of a turn."""

    system: str | None
    turns: list[_Asked]
    caps: dict[int, int] = field(default_factory=dict)
    stops: dict[int, tuple[str, ...]] = field(default_factory=dict)
    last: LoggedRequest | None = None

    def add(self, turns: list[_Asked], request: LoggedRequest) -> None:
        """Take over the turns of a request, which asks for the last of them."""
        self.turns = turns
        self.last = request
        if request.max_tokens is not None:
            self.caps[len(turns) - 1] = request.max_tokens
        self.stops[len(turns) - 1] = request.stop


class ScenarioImport:
    """Takes requests in the order of the log.

    Args:
        redactor: takes secrets out of all texts.
        default_cap: the cap of turns whose request names none.
    """

    def __init__(self, redactor: Redactor, *, default_cap: int = DEFAULT_CAP_TOKENS) -> None:
        self._redactor = redactor
        self._default_cap = default_cap
        self._talks: list[_Talk] = []
        self._by_digest: dict[str, _Talk] = {}
        self._notes: dict[str, list[str]] = {}
        self._requests = 0

    def refuse(self, place: str, reason: str) -> None:
        """Note a line that is no request, or holds what a scenario cannot."""
        self._note(place, f"refused: {reason}")

    def add(self, request: LoggedRequest) -> None:
        """Add a request to the conversation that it extends, or begin one."""
        try:
            if request.prompt is not None:
                self._add_prompt(request, request.prompt)
            else:
                self._add_chat(request)
        except UnsupportedRequestError as error:
            self.refuse(request.place, str(error))
            return
        self._requests += 1
        for name in request.left_out:
            self._note(request.place, f"{name} is left out: a scenario has no such thing")
        if request.temperature:
            self._note(
                request.place, "asked for a temperature above 0; the scenario is greedy, to be comparable"
            )
        if request.max_tokens is None:
            self._note(request.place, f"no max_tokens: the cap is {self._default_cap}")

    def build(self, name: str, title: str) -> ImportedScenario:
        """Return the scenario. Raises ScenarioError when no request was usable."""
        if not self._talks:
            raise ScenarioError(
                "no request in it can be imported: " + ("; ".join(self._list_notes()) or "it holds none"),
                hint="one JSON body of /v1/chat/completions or /v1/completions a line, bare or as request or"
                " body",
            )
        conversations = tuple(self._build_talk(n, talk) for n, talk in enumerate(self._talks, start=1))
        scenario = Scenario(
            name=name,
            title=self._redactor.redact(title),
            description="Imported from logged requests. The answers of the log are not in it.",
            entry="prompt",
            temperature=0.0,
            top_p=1.0,
            conversations=conversations,
        )
        return ImportedScenario(scenario=scenario, notes=tuple(self._list_notes()), requests=self._requests)

    def _add_chat(self, request: LoggedRequest) -> None:
        system, turns = self._read_turns(request)
        digests = _digest_turns(system, turns)
        if digests[-1] in self._by_digest:
            self._note(request.place, "the same request as an earlier one: kept once")
            return
        known = next((d for d in reversed(digests[:-1]) if d in self._by_digest), None)
        if known is None:
            talk = _Talk(system=system, turns=turns)
            self._talks.append(talk)
        else:
            talk = self._by_digest.pop(known)
        talk.add(turns, request)
        self._by_digest[digests[-1]] = talk

    def _read_turns(self, request: LoggedRequest) -> tuple[str | None, list[_Asked]]:
        leading = [message for message in request.messages if message.role == "system"]
        if len(leading) > 1:
            self._note(request.place, "several system messages: joined to one at the beginning")
        rest = [message for message in request.messages if message.role != "system"]
        if rest and rest[0].role == "assistant":
            self._note(request.place, "an answer before the first question is left out")
        turns = list(self._read_groups(rest, request.place))
        if not turns:
            raise UnsupportedRequestError("it asks nothing: no message of a user")
        if turns[0].kind == "tool":
            raise UnsupportedRequestError("it begins with the result of a tool")
        if rest[-1].role == "assistant":
            raise UnsupportedRequestError("it ends with the beginning of an answer, to be continued")
        system = "\n\n".join(message.text for message in leading if message.text)
        return system or None, turns

    def _read_groups(self, messages: Sequence[LoggedMessage], place: str) -> Iterator[_Asked]:
        """Yield a turn for what stands between two answers; several messages there become one."""
        for is_answer, found in groupby(messages, key=lambda message: message.role == "assistant"):
            if is_answer:
                continue
            group = list(found)
            if len(group) > 1:
                self._note(place, "several messages without an answer between them: joined to one turn")
            kind: TurnKind = "tool" if group[-1].role == "tool" else "user"
            text = "\n\n".join(message.text for message in group if message.text)
            if not text and kind == "user":
                raise UnsupportedRequestError("a message of a user is empty")
            yield _Asked(kind, text or EMPTY_RESULT)

    def _add_prompt(self, request: LoggedRequest, prompt: str) -> None:
        """Join an exact prompt to the one that it continues, with its answer or without."""
        for talk in reversed(self._talks):
            last = talk.last
            if last is None or last.prompt is None or not prompt.startswith(last.prompt):
                continue
            if prompt == last.prompt:
                self._note(request.place, "the same request as an earlier one: kept once")
                return
            answered = last.prompt + last.answer if last.answer else None
            if answered and prompt.startswith(answered):
                talk.add([*talk.turns, _Asked("append", prompt[len(answered) :])], request)
            else:
                talk.add([*talk.turns, _Asked("prompt", prompt)], request)
            return
        talk = _Talk(system=None, turns=[])
        talk.add([_Asked("prompt", prompt)], request)
        self._talks.append(talk)

    def _build_talk(self, number: int, talk: _Talk) -> Conversation:
        kinds = {turn.kind for turn in talk.turns}
        category = "agent" if "tool" in kinds else "chat" if "user" in kinds else "general"
        redact = self._redactor.redact
        turns = []
        for index, turn in enumerate(talk.turns):
            stop = tuple(redact(word) for word in talk.stops.get(index, ()))
            cap = self._choose_cap(talk, index)
            turns.append(Turn(kind=turn.kind, text=redact(turn.text), max_tokens=cap, stop=stop))
        system = None if talk.system is None else redact(talk.system)
        return Conversation(id=f"c{number}", category=category, system=system, turns=tuple(turns))

    def _choose_cap(self, talk: _Talk, index: int) -> int:
        """Return a turn's own cap, else that of the next turn that has one."""
        later = [cap for at, cap in sorted(talk.caps.items()) if at >= index]
        return later[0] if later else self._default_cap

    def _note(self, place: str, text: str) -> None:
        places = self._notes.setdefault(text, [])
        if place not in places:
            places.append(place)

    def _list_notes(self) -> Iterable[str]:
        for text, places in self._notes.items():
            more = len(places) - SHOWN_PLACES
            shown = ", ".join(places[:SHOWN_PLACES]) + (f" and {more} more" if more > 0 else "")
            yield f"{shown}: {self._redactor.redact(text)}"


def _digest_turns(system: str | None, turns: Sequence[_Asked]) -> list[str]:
    """Return a digest of each beginning of a conversation, by its number of turns less one."""
    digest = hashlib.sha256(repr(system).encode())
    digests = []
    for turn in turns:
        digest.update(repr((turn.kind, turn.text)).encode())
        digests.append(digest.hexdigest())
    return digests
