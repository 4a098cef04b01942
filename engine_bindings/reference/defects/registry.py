"""All seeded defects by name, and the rules of an engine that has some of them."""

from collections.abc import Sequence
from difflib import get_close_matches

from engine_bindings.errors import UsageError
from engine_bindings.reference.defects.controls import CONTROLS
from engine_bindings.reference.defects.defect import Defect, Seeded
from engine_bindings.reference.defects.ends import END_DEFECTS
from engine_bindings.reference.defects.paths import PATH_DEFECTS
from engine_bindings.reference.defects.sampling import SAMPLING_DEFECTS
from engine_bindings.reference.defects.state import STATE_DEFECTS
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.settings import EngineSettings

DEFECTS: dict[str, Defect] = {
    defect.name: defect
    for defect in (*STATE_DEFECTS, *END_DEFECTS, *SAMPLING_DEFECTS, *PATH_DEFECTS, *CONTROLS)
}


def build_rules(settings: EngineSettings) -> Rules:
    """Return the rules that the settings ask for: the right ones, or those with the named defects.

    Raises:
        UsageError: a name that is unknown or not available, or two defects that replace the same rule.
    """
    defects = [find_defect(name) for name in settings.defects]
    if not defects:
        return Rules()
    _check_apart(defects)
    bases = tuple(defect.rules for defect in defects if defect.rules)
    combined: type[Seeded] = type("Combined", bases, {})
    return combined(settings)


def find_defect(name: str) -> Defect:
    """Return a defect that can be switched on. Raises UsageError."""
    defect = DEFECTS.get(name)
    if defect is None:
        near = get_close_matches(name, DEFECTS, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown defect {name!r}", hint=f"{guess}--list-defects names them all")
    if defect.rules is None:
        raise UsageError(f"defect {name!r} is not available", hint=defect.unavailable)
    return defect


def _check_apart(defects: Sequence[Defect]) -> None:
    seen: dict[str | None, str] = {}
    for defect in defects:
        other = seen.setdefault(defect.replaces, defect.name)
        if other != defect.name or defects.count(defect) > 1:
            raise UsageError(
                f"defects {other!r} and {defect.name!r} both replace the rule {defect.replaces!r}",
                hint="combine defects of different rules; --list-defects shows each one's",
            )
