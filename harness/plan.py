"""What will be run and what must hold: arms, contrasts, and the interleaved order of the cells."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from engine_bindings.binding import PATHS, UNKNOWN_DEPTH, Capabilities, EnginePath, EntryKind, Pin
from engine_bindings.errors import UsageError
from harness.record_json import to_dict
from harness.relations import list_relations
from harness.scenario import Scenario, is_messages
from harness.speed_plan import SpeedPlan
from harness.sweeps import expand_scenario

ContrastKind = Literal["self", "path", "speculation", "within", "slots", "build"]
ProbeKind = Literal["cold", "replay", "again", "depth", "score", "undrafted", "logprobs"]
NearTiePolicy = Literal["explain", "fail"]
Until = Literal["end", "fault"]

MIN_DEPTH = 1
# Past 8 a verify forward is as wide as a prefill chunk in some engines, and no head drafts that far usefully.
MAX_DEPTH = 8
DEFAULT_DEPTH = 3
# Two, because one run of an arm cannot show that the arm equals itself.
DEFAULT_REPETITIONS = 2
# What a thousand runs of an arm do not show of it, the next one will not.
MAX_REPETITIONS = 1_000
# One engine start each: at a second a start that is a working day, and their records are held in memory.
MAX_CELLS = 30_000
# What rounding alone may move between two logits of a float32 engine. Another order of the same additions
# moves them by 1e-5 to 1e-4; five times the larger one leaves room for deep models and stays under the 1e-3
# that another kernel family was seen to move. Engines that round activations to 8 bits move them by 1e-2 and
# more: whoever runs one and accepts that says so with --tie-gap.
DEFAULT_TIE_GAP = 5e-4

PATH_WORDS = {"chat": "chat mode", "serve": "serve mode", "cli": "the command line", "gateway": "the gateway"}
"""What a path is called in a sentence; others go by their name."""

UNKNOWN_SPECULATION = (
    "not compared: what speculation changes. One server shows one depth and does not say which; name one that"
    " speculates and one that does not with --on ADDRESS --off ADDRESS"
)

# What is planned for where nothing is known of the engine: the colibri family's paths, and no counts.
_UNKNOWN = Capabilities(
    paths=PATHS,
    max_depth=MAX_DEPTH,
    frames_are_tokens=frozenset({"serve"}),
    reports_forwards=True,
    reports_drafted=True,
    reports_cached_tokens=True,
    entries={"chat": ("line", "prompt")},
    slots_path="serve",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to get an answer: a path and a draft depth, 0 for speculation off, UNKNOWN_DEPTH for a server
    that was found running.

    ``slots`` is how many requests the engine answers at once, each in a context of its own. ``build`` names
    the engine where a run compares several.
    """

    path: EnginePath
    depth: int
    slots: int = 1
    build: str = ""

    @property
    def label(self) -> str:
        """Short name, for example ``chat/3``, ``serve/0x2`` with two slots, or ``pr:chat/3`` of a build."""
        build = f"{self.build}:" if self.build else ""
        depth = "?" if self.depth == UNKNOWN_DEPTH else self.depth
        return f"{build}{self.path}/{depth}" + (f"x{self.slots}" if self.slots > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeMark:
    """What makes a cell a probe: it answers one turn again.

    A difference was seen there, or it asks for more than a cell may whose speed is measured (``logprobs``).

    ``offset_bytes`` is where the answer is cut for a ``score`` probe.
    """

    kind: ProbeKind
    conversation: str
    turn: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """One arm on one scenario, one repetition: one start of an engine. ``probe`` is set for a probe only."""

    arm: Arm
    scenario: str
    repetition: int
    probe: ProbeMark | None = None

    @property
    def key(self) -> str:
        """Name of the cell, for example ``chat/3 quick 1`` or ``chat/3 quick 0 cold copy.1``."""
        key = f"{self.arm.label} {self.scenario} {self.repetition}"
        if self.probe is None:
            return key
        return f"{key} {self.probe.kind} {self.probe.conversation}.{self.probe.turn + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Two arms and the relation that must hold between them.

    For ``self`` both are the same arm, run again. For ``within`` both are the same arm, and what is held
    against each other are turns of one cell, as the scenario declares. For ``slots`` the second arm answers
    several requests at once. For ``build`` the first arm is the baseline's.
    """

    name: str
    kind: ContrastKind
    a: Arm
    b: Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Named limits on waiting, in seconds; every one ends the cell as a recorded failure.

    The defaults leave room for a 744B model that streams experts from disk at about one token per second;
    ``choose_timeouts`` gives tighter ones to a model that any machine can run.

    Attributes:
        start_timeout_s: process start to READY: hundreds of gigabytes may be read first.
        first_output_timeout_s: request to first byte: prefill of thousands of tokens at a few per second.
        progress_timeout_s: longest silence between two outputs: one forward with every expert cold.
        turn_timeout_s: request to the end of the turn: 4,096 tokens at one per second after a long prefill.
        exit_timeout_s: end of input to exit, before the process group is killed.
    """

    start_timeout_s: float = 1800.0
    first_output_timeout_s: float = 7200.0
    progress_timeout_s: float = 600.0
    turn_timeout_s: float = 21600.0
    exit_timeout_s: float = 60.0


# A model of up to this size is read in seconds and answers at tens of tokens per second on any machine.
SMALL_MODEL_BYTES = 1 << 30
SMALL_MODEL_TIMEOUTS = Timeouts(
    start_timeout_s=60.0,
    first_output_timeout_s=120.0,
    progress_timeout_s=30.0,
    turn_timeout_s=600.0,
    exit_timeout_s=15.0,
)


def choose_timeouts(weights_bytes: int) -> Timeouts:
    """Return the default limits for a model of that size: a hang of a small one need not cost an hour."""
    return SMALL_MODEL_TIMEOUTS if weights_bytes <= SMALL_MODEL_BYTES else Timeouts()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEntries:
    """The forms in which a path of a build takes a turn, the preferred one first."""

    path: EnginePath
    kinds: tuple[EntryKind, ...]
    build: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One of several engines that a run holds against each other.

    Attributes:
        name: of the arms that belong to it; empty for the engine under test beside a recorded baseline.
        engine: what ``--engine`` says of it, without the name.
        margin_pin: makes it print margins, None when it cannot.
        recorded: its cells were taken over from an earlier run, so it cannot be asked again.
    """

    name: str
    engine: str
    margin_pin: Pin | None = None
    recorded: bool = False

    @property
    def kind(self) -> str:
        """The kind of engine: two builds of one kind must count alike, and not only answer alike."""
        return self.engine.partition("=")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run before it starts.

    Attributes:
        cells: in the order in which they are to be run.
        near_tie: whether a proven near-tie between two depths is explained, or fails like any difference.
        tie_gap: the largest gap between two logits that counts as a near-tie.
        counters_repeat, draws_repeat, margin_pin, max_depth, logprob_paths: what the engine can show, as its
            binding says.
        context_tokens: size of the context, None when it is not known.
        builds: the engines that are held against each other, the baseline first; empty for one engine alone.
        entries: how each path takes a turn. token_paths: the paths that show which bytes are a token.
        context_paths: those on which a turn runs in the context that its conversation names.
        cold_cells: each cell starts with an empty cache; else what it reuses is not compared between cells.
        exact_prefixes: a prefix is reused to the token; else a shorter one proves nothing.
        until: ``fault`` ends the run with its first proven and named fault.
        budget_tokens: tokens that the run, probes included, may decode at most.
        left_out: what is not run, because a path cannot run it or to keep to the budget, in plain sentences.
        speed: how speed is timed and judged, None when it was not asked for.
    """

    engine: str
    depth: int
    repetitions: int
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...]
    scenarios: tuple[Scenario, ...]
    cells: tuple[CellSpec, ...]
    timeouts: Timeouts
    near_tie: NearTiePolicy = "explain"
    tie_gap: float = DEFAULT_TIE_GAP
    counters_repeat: bool = False
    draws_repeat: bool = False
    margin_pin: Pin | None = None
    max_depth: int = MAX_DEPTH
    logprob_paths: tuple[EnginePath, ...] = ()
    context_tokens: int | None = None
    builds: tuple[Build, ...] = ()
    entries: tuple[PathEntries, ...] = ()
    token_paths: tuple[EnginePath, ...] = ()
    context_paths: tuple[EnginePath, ...] = ()
    cold_cells: bool = True
    exact_prefixes: bool = True
    until: Until = "end"
    budget_tokens: int | None = None
    left_out: tuple[str, ...] = ()
    speed: SpeedPlan | None = None

    @property
    def worst_case_tokens(self) -> int:
        """Tokens decoded at most by the planned cells: the sum of their caps. Probes come on top."""
        caps = {scenario.name: scenario.worst_case_tokens for scenario in self.scenarios}
        return sum(caps[spec.scenario] for spec in self.cells if not self.is_recorded(spec.arm))

    def scenario(self, name: str) -> Scenario:
        """Return the scenario called ``name``; KeyError when the plan has none."""
        for scenario in self.scenarios:
            if scenario.name == name:
                return scenario
        raise KeyError(name)

    def entry(self, arm: Arm, scenario: Scenario) -> EntryKind | None:
        """Return the form in which an arm is asked for the turns of a scenario; None when it takes none."""
        own = (item.kinds for item in self.entries if (item.build, item.path) == (arm.build, arm.path))
        return choose_entry(scenario, next(own, ("prompt",)))

    def build_of(self, arm: Arm) -> Build | None:
        """Return the build of an arm; None for one engine alone."""
        return next((build for build in self.builds if build.name == arm.build), None)

    def is_baseline(self, arm: Arm) -> bool:
        """Say whether an arm is there to be held against only: its own faults are not judged."""
        return bool(self.builds) and arm.build == self.builds[0].name

    def is_recorded(self, arm: Arm) -> bool:
        """Say whether the cells of an arm come from an earlier run."""
        build = self.build_of(arm)
        return build is not None and build.recorded

    def margin_pin_of(self, arm: Arm) -> Pin | None:
        """Return the setting that makes the engine of an arm print margins, if there is one."""
        build = self.build_of(arm)
        return self.margin_pin if build is None else build.margin_pin

    def crosses_engines(self, contrast: Contrast) -> bool:
        """Say whether a contrast holds two kinds of engine against each other, which count differently."""
        a, b = self.build_of(contrast.a), self.build_of(contrast.b)
        return a is not None and b is not None and (a.kind != b.kind or contrast.a.path != contrast.b.path)

    def compares_texts(self, contrast: Contrast, scenario: str) -> bool:
        """Say whether the answers of both sides must be the same in a scenario: at temperature 0 they must.

        Above it an arm must repeat itself, as its seed is fixed; between arms only the distribution is one.
        """
        if self.scenario(scenario).temperature == 0 or contrast.kind == "self":
            return True
        return contrast.kind == "within" and self.draws_repeat

    def compares_counters(self, contrast: Contrast, scenario: str) -> bool:
        """Say whether both sides must draft and verify alike in a scenario.

        Between the paths they need not where a grammar only drafts: each drafts forced spans of another
        length, chat mode by an engine setting and serve mode by the draft depth.
        """
        grammar = self.scenario(scenario).grammar
        if contrast.kind == "path" and grammar is not None and not grammar.binds:
            return False
        if contrast.kind == "build":
            # The same turns in the same order: a head that reads what earlier turns left reads the same.
            return not self.crosses_engines(contrast)
        return self.counters_repeat and contrast.a.depth == contrast.b.depth

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, for JSON."""
        return to_dict(self)


def build_plan(
    scenarios: Sequence[Scenario],
    *,
    engine: str = "reference",
    depth: int = DEFAULT_DEPTH,
    repetitions: int = DEFAULT_REPETITIONS,
    timeouts: Timeouts | None = None,
    near_tie: NearTiePolicy = "explain",
    tie_gap: float = DEFAULT_TIE_GAP,
    capabilities: Capabilities | None = None,
    context_tokens: int | None = None,
) -> Plan:
    """Build the plan that decides whether serve mode equals chat mode with speculation off and at ``depth``.

    Without ``capabilities`` the engine is taken to show neither margins nor counters that repeat.

    Raises:
        UsageError: no scenario, a scenario named twice, or a depth or number of repetitions out of range.
    """
    _check_request(scenarios, depth, repetitions)
    able = capabilities or _UNKNOWN
    scenarios = tuple(expand_scenario(scenario, depth) for scenario in scenarios)
    arms, left_out = _list_arms(able, scenarios, depth)
    _check_cells(arms, scenarios, repetitions)
    return Plan(
        engine=engine,
        depth=depth,
        repetitions=repetitions,
        arms=arms,
        contrasts=build_contrasts(arms, scenarios),
        scenarios=scenarios,
        cells=_order_cells(able, arms, scenarios, repetitions),
        timeouts=timeouts or Timeouts(),
        near_tie=near_tie,
        tie_gap=tie_gap,
        counters_repeat=able.counters_repeat,
        draws_repeat=able.draws_repeat,
        margin_pin=able.margin_pin,
        context_tokens=context_tokens or able.context_tokens,
        max_depth=min(MAX_DEPTH, able.max_depth),
        logprob_paths=tuple(path for path in able.paths if path in able.reports_logprobs),
        entries=tuple(PathEntries(path=path, kinds=able.entries_of(path)) for path in able.paths),
        token_paths=tuple(path for path in able.paths if path in able.frames_are_tokens),
        context_paths=tuple(path for path in able.paths if path in able.context_paths),
        cold_cells=able.cold_cells,
        exact_prefixes=able.exact_prefixes,
        left_out=left_out,
    )


def choose_entry(scenario: Scenario, kinds: Sequence[EntryKind]) -> EntryKind | None:
    """Return the form in which a path that takes ``kinds`` gets a scenario's turns; None: it cannot run it.

    A scenario of typed lines is typed where that is possible. Messages can be rendered to an exact prompt,
    but an exact prompt can be neither typed nor taken apart into messages.
    """
    wanted: tuple[EntryKind, ...] = ("line", "prompt", "messages")
    if scenario.entry != "line":
        wanted = ("prompt", "messages") if is_messages(scenario) else ("prompt",)
    return next((kind for kind in wanted if kind in kinds), None)


def _list_arms(
    able: Capabilities, scenarios: Sequence[Scenario], depth: int
) -> tuple[tuple[Arm, ...], tuple[str, ...]]:
    """Return the arms, and what they cannot run in plain sentences."""
    depths = (0, depth) if able.depths is None else able.depths
    left_out = [UNKNOWN_SPECULATION] if UNKNOWN_DEPTH in depths else []
    left_out += (f"not run on {path}: {why}" for path, why in able.unavailable)
    paths = []
    for path in able.paths:
        unable = [s.name for s in scenarios if choose_entry(s, able.entries_of(path)) is None]
        if unable:
            takes = " and ".join(
                f"{kind}s".replace("messagess", "messages") for kind in able.entries_of(path)
            )
            left_out.append(f"not run on {path}, which takes {takes} only: {', '.join(unable)}")
        if len(unable) < len(scenarios):
            paths.append(path)
    slots = sorted({scenario.slots for scenario in scenarios} - {1}) if able.slots_path else []
    if not paths:
        raise UsageError("no path of the engine can run these scenarios", hint="; ".join(left_out))
    return (
        *(Arm(path=path, depth=d) for path in paths for d in depths),
        *(Arm(path=able.slots_path or "", depth=0, slots=number) for number in slots),
    ), tuple(left_out)


def _check_request(scenarios: Sequence[Scenario], depth: int, repetitions: int) -> None:
    if not scenarios:
        raise UsageError("no scenario to run", hint="name one with --scenario")
    names = [scenario.name for scenario in scenarios]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"scenario {name!r} is named twice", hint="more repetitions: --repetitions N")
    if not MIN_DEPTH <= depth <= MAX_DEPTH:
        hint = "depth 0 is always measured beside it"
        raise UsageError(f"draft depth {depth} is out of range {MIN_DEPTH} to {MAX_DEPTH}", hint=hint)
    if not 1 <= repetitions <= MAX_REPETITIONS:
        raise UsageError(
            f"{repetitions} repetitions are out of range 1 to {MAX_REPETITIONS:,}",
            hint="2 also check each arm against itself",
        )


def _check_cells(arms: Sequence[Arm], scenarios: Sequence[Scenario], repetitions: int) -> None:
    cells = len(arms) * len(scenarios) * repetitions
    if cells > MAX_CELLS:
        sizes = f"{len(arms)} arms, {len(scenarios)} scenarios and {repetitions:,} repetitions"
        raise UsageError(
            f"{sizes} are {cells:,} engine starts, and {MAX_CELLS:,} are the most",
            hint="lower --repetitions, or run the scenarios one after the other",
        )


def build_contrasts(arms: tuple[Arm, ...], scenarios: Sequence[Scenario]) -> tuple[Contrast, ...]:
    """Return what must hold between the arms of one build."""
    single = [arm for arm in arms if arm.slots == 1]
    related = single if any(map(list_relations, scenarios)) else ()
    return (
        *(Contrast(name=f"self {arm.label}", kind="self", a=arm, b=arm) for arm in arms),
        *_build_path_contrasts(single),
        *(
            Contrast(name=f"speculation {on.path}", kind="speculation", a=off, b=on)
            for off in single
            for on in single
            if off.depth == 0 and on.depth and on.path == off.path
        ),
        *(Contrast(name=f"within {arm.label}", kind="within", a=arm, b=arm) for arm in related),
        *(
            Contrast(name=f"slots {arm.slots}", kind="slots", a=replace(arm, slots=1), b=arm)
            for arm in arms
            if arm.slots > 1
        ),
    )


_PATH_NAMES = {UNKNOWN_DEPTH: "path", 0: "path off"}


def _build_path_contrasts(arms: Sequence[Arm]) -> list[Contrast]:
    """Hold every path against the first, at each depth; the name says which one where there are several.

    ``arms`` are those of one build.
    """
    first = arms[0].path
    others = list(dict.fromkeys(arm.path for arm in arms if arm.path != first))
    contrasts = []
    for depth in sorted({arm.depth for arm in arms}):
        for path in others:
            name = _PATH_NAMES.get(depth, "path on") + (f" {path}" if len(others) > 1 else "")
            a, b = Arm(path=first, depth=depth), Arm(path=path, depth=depth)
            contrasts.append(Contrast(name=name, kind="path", a=a, b=b))
    return contrasts


def _order_cells(
    able: Capabilities, arms: tuple[Arm, ...], scenarios: Sequence[Scenario], repetitions: int
) -> tuple[CellSpec, ...]:
    """Interleave the arms so that a machine that slows down or warms up does so for all of them alike.

    Each block of arms is followed by the same block backwards (A B C D, D C B A), so a linear drift adds the
    same to every arm; then the block is rotated by one, so that no arm is always at the edge.
    """
    cells = []
    for repetition in range(repetitions):
        for index, scenario in enumerate(scenarios):
            own = tuple(
                arm
                for arm in arms
                if arm.slots in (1, scenario.slots) and choose_entry(scenario, able.entries_of(arm.path))
            )
            order = _arm_order(own, repetition * len(scenarios) + index)
            cells += [CellSpec(arm=arm, scenario=scenario.name, repetition=repetition) for arm in order]
    return tuple(cells)


def _arm_order(arms: tuple[Arm, ...], block: int) -> tuple[Arm, ...]:
    if not arms:
        return ()
    shift = block // 2 % len(arms)
    rotated = arms[shift:] + arms[:shift]
    return rotated[::-1] if block % 2 else rotated
