"""What an examination of an engine found, as text: a table for each path, then complaints and remedies."""

import textwrap
from collections.abc import Iterator
from itertools import groupby

from tabulate import tabulate

from engine_bindings.printable import escape_control
from harness.doctor.rows import Diagnosis, Effect, Row

WIDTH = 110
EVIDENCE_WIDTH = 62
TITLES: dict[Effect, str] = {"problem": "Problems", "caution": "Known traps"}


def render_diagnosis(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as text that ends in a newline; the conclusion is the last line."""
    parts = [f"{diagnosis.engine}, draft depth {diagnosis.depth}", ""]
    for path, rows in groupby(diagnosis.rows, key=lambda row: row.path):
        parts += [path, _render_rows(list(rows)), ""]
    for effect in TITLES:
        parts += _list_complaints(diagnosis, effect)
    parts += [f"Not asked: {note}" for note in diagnosis.notes]
    return escape_control("\n".join((*parts, conclude(diagnosis)))) + "\n"


def conclude(diagnosis: Diagnosis) -> str:
    """Return the outcome in one line."""
    problems = len(diagnosis.complaints("problem"))
    cost = f"{diagnosis.decoded_tokens:,} tokens decoded in {diagnosis.starts} starts"
    if not diagnosis.ready:
        return f"CANNOT START: the engine became ready on no path; {cost}"
    if problems:
        return f"PROBLEMS: {problems} found; {cost}"
    shown = sum(row.seen != "not shown" for row in diagnosis.rows)
    return f"AS CLAIMED: {shown} of {len(diagnosis.rows)} rows shown, no claim contradicted; {cost}"


def _render_rows(rows: list[Row]) -> str:
    return tabulate(
        [(row.capability, row.claimed or "-", row.seen, _wrap(row.evidence, EVIDENCE_WIDTH)) for row in rows],
        headers=("capability", "claimed", "seen", "evidence"),
        tablefmt="simple",
        disable_numparse=True,
    )


def _wrap(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width)) or "-"


def _list_complaints(diagnosis: Diagnosis, effect: Effect) -> Iterator[str]:
    found = diagnosis.complaints(effect)
    if not found:
        return
    yield TITLES[effect]
    for path, complaint in found:
        said = f"{path}: {complaint.name}: {complaint.message}"
        yield from textwrap.wrap(said, WIDTH, initial_indent="  ", subsequent_indent="    ")
        yield from textwrap.wrap(
            f"remedy: {complaint.remedy}", WIDTH, initial_indent="    ", subsequent_indent="    "
        )
    yield ""
