"""The settings fixed for engines that speak the two stdio protocols, each with the reason it is fixed."""

from collections.abc import Iterable

from engine_bindings.binding import ArmSettings, GrammarKind, Pin

# The seed has no effect at temperature 0; it is fixed so that sampled scenarios repeat.
SEED = "20261130"

GRAMMAR_VARIABLES: dict[GrammarKind, str] = {"schema": "SCHEMA", "gbnf": "GRAMMAR"}
GRAMMAR_FILES: dict[GrammarKind, str] = {"schema": "coli-ab-schema.json", "gbnf": "coli-ab-grammar.gbnf"}
"""Where the grammar of a scenario lies in the engine's own model directory."""


def build_pins(settings: ArmSettings, *, threads: int = 1) -> tuple[Pin, ...]:
    """Return the environment of one arm.

    Arms of one scenario differ in SERVE_BATCH and DRAFT only, in KV_SLOTS where one answers several requests
    at once, and in the grammar: serve mode takes it with each request.
    """
    own = (*_arm_pins(settings), *_answer_pins(settings), *_grammar_pins(settings))
    return (*own, *_STATE_PINS, *_COUNTER_PINS, *_clock_pins(threads))


def find_grammar_variables(pins: Iterable[Pin]) -> tuple[str, ...]:
    """Return the names of the pins that hold the scenario's grammar, and not one that the user set."""
    return tuple(pin.name for pin in pins if pin.name in GRAMMAR_VARIABLES.values() and not pin.overridden)


def _arm_pins(settings: ArmSettings) -> tuple[Pin, ...]:
    batch = "1" if settings.path == "serve" else "0"
    slots = "more than one slot turns speculation off in serve mode"
    if settings.slots > 1:
        served = settings.path == "serve"
        slots = (
            "requests that run at once need a slot each" if served else "the scenario names so many contexts"
        )
    return (
        Pin(name="KV_SLOTS", value=str(settings.slots), reason=slots),
        Pin(name="SERVE", value="1", reason="stay alive and take turns on stdin"),
        Pin(name="SERVE_BATCH", value=batch, reason="the arm's path: 1 is serve mode, 0 chat mode"),
        Pin(
            name="DRAFT",
            value=str(settings.depth),
            reason="the arm's draft depth; the default depends on the model",
        ),
    )


def _answer_pins(settings: ArmSettings) -> tuple[Pin, ...]:
    temperature = Pin(
        name="COLI_TEMP",
        value=f"{settings.temperature:g}",
        reason="typed lines take their temperature from here, and its default is 0.7",
    )
    top_p = Pin(name="NUCLEUS", value=f"{settings.top_p:g}", reason="typed lines take top-p from here")
    cap = Pin(
        name="NGEN",
        value=str(settings.cap_tokens),
        reason="chat mode cuts every cap to this without a word; the largest cap of the scenario",
    )
    context = settings.context_tokens
    sized = () if context is None else (Pin(name="CTX", value=str(context), reason="size of the context"),)
    return (temperature, top_p, cap, *sized)


def _grammar_pins(settings: ArmSettings) -> tuple[Pin, ...]:
    if settings.grammar is None or settings.path == "serve":
        return ()
    name, file = GRAMMAR_VARIABLES[settings.grammar], GRAMMAR_FILES[settings.grammar]
    source = Pin(
        name=name, value=file, reason="chat mode reads the scenario's grammar from its model directory"
    )
    if not settings.grammar_binds:
        return (source,)
    return (
        source,
        Pin(
            name="REF_GRAMMAR_CONSTRAIN",
            value="1",
            reason="chat mode enforces the grammar, and does not only draft from it",
        ),
    )


_STATE_PINS = (
    Pin(
        name="KVSAVE",
        value="0",
        reason="a saved conversation of one arm would be resumed by the next",
        # The history of expert use (.coli_usage) is always written; no setting turns that off.
        forbids=(".coli_kv", ".coli_kv.*"),
    ),
    Pin(name="AUTOPIN", value="0", reason="experts pinned from an earlier run's history change the timing"),
    Pin(name="SEED", value=SEED, reason="sampled scenarios repeat"),
    Pin(
        name="COLI_SERVE_ALL_STOPS",
        value="1",
        reason="serve mode otherwise arms fewer stop tokens than chat mode",
    ),
    Pin(
        name="COLI_MTP_GUARD_PCT",
        value="0",
        reason="the guard pauses drafting inside a turn, which would mix both depths in one cell",
    ),
)

_COUNTER_PINS = (
    Pin(name="PROF", value="1", reason="prints decode forwards per turn, the proof of speculation"),
)


def _clock_pins(threads: int) -> tuple[Pin, ...]:
    return (
        Pin(name="OMP_NUM_THREADS", value=str(threads), reason="a fixed number of threads for every arm"),
        Pin(
            name="COLI_NO_OMP_TUNE", value="1", reason="no re-exec and no reset of the CPU affinity at start"
        ),
    )
