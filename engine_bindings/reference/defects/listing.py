"""The list of seeded defects, for people and for programs."""

import json
import textwrap

from engine_bindings.reference.defects.defect import Defect
from engine_bindings.reference.defects.registry import DEFECTS

TITLES = {
    "state": "State",
    "ends": "Ends and limits",
    "sampling": "Sampling, counters, grammar",
    "paths": "Paths, transport, reuse, honesty",
    "control": "Controls: not faults",
}
WIDTH = 108
INDENT = "    "


def render_json() -> str:
    """Return the defects as a JSON list, in the order of the table."""
    return json.dumps([defect.to_dict() for defect in DEFECTS.values()], indent=1)


def render_table() -> str:
    """Return the defects group by group: name, verdict class and rule, then what is known of each."""
    parts: list[str] = []
    for group, title in TITLES.items():
        parts.append(f"{title}\n")
        parts += [_render_defect(defect) for defect in DEFECTS.values() if defect.group == group]
    return "\n".join(parts)


def _render_defect(defect: Defect) -> str:
    rule = f"replaces {defect.replaces}" if defect.rules else "not available"
    lines = [f"  {defect.name:<31}{defect.verdict:<18}{rule}"]
    said = [defect.wrong, f"seen in: {defect.seen_in}", f"reported in: {', '.join(defect.references)}"]
    if defect.unavailable:
        said.append(f"not available: {defect.unavailable}")
    for text in said:
        lines += textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT + "  ")
    return "\n".join((*lines, ""))
