"""What is asked of an engine to find out what it can do: a few short turns, in as few starts as possible."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from engine_bindings.binding import UNKNOWN_DEPTH, Capabilities, EnginePath
from harness.grammar import Grammar
from harness.plan import Arm, CellSpec, Plan, ProbeMark, Timeouts, build_plan
from harness.probes import Probe
from harness.scenario import Conversation, Entry, Scenario, Turn

VisitKind = Literal["plain", "drafting", "limits", "limits-again", "asked", "margins", "grammar"]

# Most models end the first by themselves; none ends the second within so few tokens.
COUNT = "Count from 1 to 5."
STORY = "Tell me a story about a fox named Ida."
# No answer to this one is sure, so that one which was drawn is seen to be.
DRAW = "Say some random words."
DRAW_TOKENS = 8
COUNT_TOKENS = 24
STORY_TOKENS = 16
# Enough that an engine which goes on after a cancel is told from one that was only quick.
CANCEL_TOKENS = 40
CANCEL_AFTER = 2
# No English or French story goes on for long without it.
STOP = "e"
# The engine's own limit in the cell that asks for more.
CLAMP_SETTING = "NGEN"
CLAMP_TOKENS = 6
BEYOND_TOKENS = 12
# High, so that an answer that was drawn is not the greedy one by accident.
TEMPERATURE = 2.0
CONTEXT_TOKENS = 128
# One number is one token at least. Engines may round a small context up to 256 tokens.
LONG_NUMBERS = 320
# A running server's context cannot be chosen; a longer prompt than this is not sent to find its end.
MAX_SERVED_CONTEXT = 8192
OVERLONG_TOKENS = 2
LOGPROB_TOKENS = 8
# An answer that no model gives to COUNT by itself, and that both kinds of engine can enforce.
GRAMMAR = Grammar(kind="gbnf", text='root ::= "red" | "blue"\n')
GRAMMAR_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One start of the engine, or one session with a server: a cell, and why it is run.

    ``clamped``: the engine's own limit on an answer is lowered to CLAMP_TOKENS, where it has one.
    """

    kind: VisitKind
    probe: Probe
    clamped: bool = False

    @property
    def path(self) -> EnginePath:
        """The path that is asked."""
        return self.probe.spec.arm.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All that is to be asked: the plan of its cells, and the visits in their order, path by path."""

    plan: Plan
    visits: tuple[Visit, ...]

    @property
    def worst_case_tokens(self) -> int:
        """Tokens decoded at most."""
        return sum(visit.probe.worst_case_tokens for visit in self.visits)


def plan_examination(
    able: Capabilities,
    *,
    engine: str,
    depth: int,
    timeouts: Timeouts,
    is_served: bool = False,
    clampable: Collection[EnginePath] = (),
    brief: bool = False,
) -> Examination:
    """Plan what is asked on each path without drafts and at ``depth``.

    Args:
        able: what the binding says of the engine: its paths and how they take a turn, and nothing else.
        engine: the text of ``--engine``.
        depth: of the arm that drafts.
        timeouts: the limits on waiting.
        is_served: a server that runs already, so that its context cannot be chosen.
        clampable: the paths whose start has a limit on the length of an answer.
        brief: only what shows drafting, counts, caps and ends.

    Raises:
        UsageError: the depth is out of range.
    """
    scenarios = tuple(_list_scenarios(able, is_served=is_served))
    by_name = {scenario.name: scenario for scenario in scenarios}
    planned = build_plan(
        [by_name["plain"], by_name["plain-typed"]],
        engine=engine,
        depth=depth,
        repetitions=1,
        timeouts=timeouts,
        capabilities=able,
    )
    visits = [
        visit
        for path in able.paths
        for visit in _list_visits(able, path, depth, by_name, path in clampable, brief=brief)
    ]
    main = [visit.probe.spec for visit in visits if visit.kind in ("plain", "drafting")]
    plan = replace(
        planned,
        scenarios=scenarios,
        cells=tuple(main),
        arms=tuple(dict.fromkeys(spec.arm for spec in main)),
        contrasts=(),
    )
    return Examination(plan=plan, visits=tuple(visits))


def ask_again(visit: Visit) -> Visit:
    """Return the sampled turn of a ``limits`` visit in a start of its own: only the seed is the same."""
    scenario = visit.probe.scenario
    first = replace(scenario.conversations[0], turns=scenario.conversations[0].turns[:1])
    probe = replace(
        visit.probe,
        spec=replace(visit.probe.spec, repetition=1),
        scenario=replace(scenario, conversations=(first,)),
    )
    return replace(visit, kind="limits-again", probe=probe)


def ask_for_margins(visit: Visit) -> Visit:
    """Return an ``asked`` visit without the request for logprobs, for a path that refuses it."""
    spec = replace(visit.probe.spec, probe=None, repetition=1)
    return replace(visit, kind="margins", probe=replace(visit.probe, spec=spec))


def _list_visits(
    able: Capabilities,
    path: EnginePath,
    depth: int,
    scenarios: dict[str, Scenario],
    clamped: bool,
    *,
    brief: bool,
) -> Iterator[Visit]:
    typed = "-typed" if able.entries_of(path) == ("line",) else ""
    depths = able.depths or (0, depth)

    def visit(kind: VisitKind, arm_depth: int, *, mark: bool = False) -> Visit:
        scenario = scenarios[f"{kind}{typed}"]
        first = scenario.conversations[0].id
        spec = CellSpec(
            arm=Arm(path=path, depth=arm_depth),
            scenario=scenario.name,
            repetition=0,
            probe=ProbeMark(kind="logprobs", conversation=first, turn=0) if mark else None,
        )
        settings = (able.margin_pin,) if mark and able.margin_pin else ()
        probe = Probe(spec=spec, scenario=scenario, settings=settings)
        return Visit(kind=kind, probe=probe, clamped=clamped and kind == "limits")

    base = depths[0]
    yield visit("plain", base)
    if len(depths) > 1:
        yield visit("drafting", depths[1])
    if brief:
        return
    yield visit("limits", base)
    yield visit("asked", base, mark=True)
    if able.grammar != "none":
        drafts_only = able.grammar == "drafts" and base != UNKNOWN_DEPTH
        yield visit("grammar", depths[-1] if drafts_only else base)


def _list_scenarios(able: Capabilities, *, is_served: bool) -> Iterator[Scenario]:
    entries: tuple[tuple[str, Entry], ...] = (("", "prompt"), ("-typed", "line"))
    for suffix, entry in entries:
        for scenario in (*_list_main(), _build_limits(able, is_served=is_served), *_list_asked(able)):
            yield replace(scenario, name=scenario.name + suffix, entry=entry)


def _list_main() -> tuple[Scenario, ...]:
    talk = _converse("talk", _ask(COUNT, COUNT_TOKENS), _ask(STORY, STORY_TOKENS))
    ends = (
        _converse("drawn-0", _ask(DRAW, DRAW_TOKENS)),
        _converse("stop", replace(_ask(STORY, STORY_TOKENS), stop=(STOP,))),
        # Last, because a server may go on with it for a while, and then counts that in the next turn.
        _converse("cancel", replace(_ask(STORY, CANCEL_TOKENS), cancel_after_tokens=CANCEL_AFTER)),
    )
    return _scene("plain", talk, *ends), _scene("drafting", talk)


def _build_limits(able: Capabilities, *, is_served: bool) -> Scenario:
    drawn = [_converse(f"drawn-{n}", _ask(DRAW, BEYOND_TOKENS)) for n in (1, 2)]
    context = able.context_tokens if is_served else CONTEXT_TOKENS
    asked = context is not None and context <= MAX_SERVED_CONTEXT
    numbers = max(LONG_NUMBERS, context or 0)
    long = " ".join(str(n % 1000) for n in range(numbers))
    overlong = _converse("long", replace(_ask(long, OVERLONG_TOKENS), refusal="possible"))
    scene = _scene("limits", *drawn, *([overlong] if asked else []))
    return replace(scene, temperature=TEMPERATURE, context_tokens=None if is_served else CONTEXT_TOKENS)


def _list_asked(able: Capabilities) -> tuple[Scenario, ...]:
    asked = _scene("asked", _converse("asked", _ask(STORY, LOGPROB_TOKENS)))
    grammar = _scene("grammar", _converse("grammar", _ask(COUNT, GRAMMAR_TOKENS)))
    binds = able.grammar == "constraint"
    return asked, replace(grammar, grammar=replace(GRAMMAR, binds=binds))


def _ask(text: str, max_tokens: int) -> Turn:
    return Turn(kind="user", text=text, max_tokens=max_tokens)


def _converse(name: str, *turns: Turn) -> Conversation:
    return Conversation(id=name, category="chat", system=None, turns=turns)


def _scene(name: str, *conversations: Conversation) -> Scenario:
    return Scenario(
        name=name,
        title=name,
        description="",
        entry="prompt",
        temperature=0.0,
        top_p=1.0,
        conversations=conversations,
    )
