"""What a seeded defect is: a subclass of the rules that replaces one of them, and what is known of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine_bindings.reference.rules import Rules
from engine_bindings.reference.settings import EngineSettings

Group = Literal["state", "ends", "sampling", "paths", "control"]
Verdict = Literal[
    "state",
    "stop-or-cap",
    "finish-reason",
    "prompt-mismatch",
    "prefix-reuse",
    "counters",
    "grammar",
    "nondeterministic",
    "void",
    "failed",
    "near-tie",
    "numerics",
]


class Seeded(Rules):
    """The right rules, in an object that knows what the engine was asked to do.

    Some faults live on one path or with drafts only; what the right rules are told does not name either.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings

    @property
    def serves(self) -> bool:
        """Whether serve mode was asked for."""
        return self.settings.mode == "serve"

    @property
    def depth(self) -> int:
        """The draft depth that was asked for; the default is 1."""
        return 1 if self.settings.draft_tokens is None else self.settings.draft_tokens


Builder = Callable[[EngineSettings], Seeded]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One kind of fault.

    Attributes:
        name: what ``--defect`` takes.
        group: the table of kinds it belongs to; controls are no faults.
        wrong: what goes wrong, in words.
        references: public reports, as repository#number.
        seen_in: where it becomes visible.
        verdict: the class that a gate should give.
        rules: the subclass that replaces one rule; None where the engine has no such rule.
        unavailable: why not, empty when it is there.
    """

    name: str
    group: Group
    wrong: str
    references: tuple[str, ...]
    seen_in: str
    verdict: Verdict
    rules: type[Seeded] | None = None
    unavailable: str = ""

    @property
    def replaces(self) -> str | None:
        """The name of the rule that is replaced."""
        return next(iter(replaced_rules(self.rules)), None) if self.rules else None

    def to_dict(self) -> dict[str, Any]:
        """Return the values of JSON."""
        values = asdict(self)
        values["rules"] = self.replaces
        return {("rule" if key == "rules" else key): value for key, value in values.items()} | {
            "available": self.rules is not None
        }


def replaced_rules(rules: type[Seeded]) -> tuple[str, ...]:
    """Return the names of the rules that a subclass defines anew."""
    return tuple(name for name in vars(rules) if not name.startswith("_") and hasattr(Rules, name))
