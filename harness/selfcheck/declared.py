"""The seeded defects as the engine declares them: its list, read back from JSON."""

from collections.abc import Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from engine_bindings.errors import EngineStartError, UsageError
from harness.findings import VerdictClass

CONTROL = "control"


class DeclaredDefect(BaseModel):
    """One kind of fault that the engine can be given, or a control, which is none.

    Attributes:
        name: what the engine's setting takes.
        group: the table of kinds that it belongs to; ``control`` for what is no fault.
        wrong: what goes wrong, in words.
        references: public reports, as repository#number.
        seen_in: where it becomes visible.
        verdict: the class that the gate must give.
        rule: the rule of the engine that it replaces, None where the engine has no such rule.
        available: whether it can be switched on; ``unavailable`` says why not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    group: str
    wrong: str
    references: tuple[str, ...]
    seen_in: str
    verdict: VerdictClass
    rule: str | None
    available: bool
    unavailable: str = ""

    @property
    def is_control(self) -> bool:
        """Whether it is no fault, so that the gate must not call it one."""
        return self.group == CONTROL


_LIST = TypeAdapter(tuple[DeclaredDefect, ...])


def parse_defects(text: str | bytes) -> tuple[DeclaredDefect, ...]:
    """Parse the engine's list. Raises EngineStartError when it is not one."""
    try:
        return _LIST.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the list"
        raise EngineStartError(
            f"the engine's list of defects cannot be read: {where}: {first['msg']}",
            hint="engine and harness must be of one version",
        ) from error


def select_defects(defects: Sequence[DeclaredDefect], names: Sequence[str]) -> tuple[DeclaredDefect, ...]:
    """Return the named defects in the order of the list, or all when none is named. Raises UsageError."""
    known = {defect.name for defect in defects}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"--defect {name}: no defect of that name",
                hint=f"{guess}coli-ab-engine --list-defects names them all",
            )
    return tuple(defect for defect in defects if not names or defect.name in names)
