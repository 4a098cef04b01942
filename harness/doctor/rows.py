"""What an examination has found: a row for each capability of each path, and what is wrong with a remedy."""

from dataclasses import dataclass
from typing import Literal

from engine_bindings.binding import EnginePath

Effect = Literal["problem", "caution"]
NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What is wrong. A ``caution`` is known of the engine and harms only who does not know it.

    ``name`` is in kebab case and stays the same across releases.
    """

    name: str
    message: str
    remedy: str
    effect: Effect = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One capability of one path.

    Attributes:
        path: which; ``A and B`` where two are held against each other.
        capability: in words.
        claimed: what the binding says: ``yes``, ``no``, or empty where it says nothing.
        seen: what the probes showed; ``not shown`` when they could not.
        evidence: what was asked and what came back.
        complaint: what is wrong with it, if anything.
    """

    path: EnginePath
    capability: str
    claimed: str = ""
    seen: str
    evidence: str
    complaint: Complaint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that was found.

    Attributes:
        engine: the text of ``--engine``.
        depth: at which drafting was looked for.
        rows: path by path, then what holds between paths.
        ready: the engine became ready on some path, or proved that it speaks another protocol.
        starts: how many cells were run.
        decoded_tokens: as far as the engine counted them.
        notes: what was not asked, in plain sentences.
    """

    engine: str
    depth: int
    rows: tuple[Row, ...]
    ready: bool
    starts: int
    decoded_tokens: int
    notes: tuple[str, ...] = ()

    def complaints(self, effect: Effect) -> tuple[tuple[EnginePath, Complaint], ...]:
        """Return the complaints of one kind with their paths, each once."""
        found = ((row.path, row.complaint) for row in self.rows if row.complaint is not None)
        return tuple(dict.fromkeys(item for item in found if item[1].effect == effect))


def claim(value: bool) -> str:
    """Return a claim in words."""
    return "yes" if value else "no"


def contradict(claimed: str, seen: str, name: str, message: str, remedy: str) -> Complaint | None:
    """Return the complaint that a claim was not kept, None when it was or could not be looked at."""
    if claimed != "yes" or seen != "no":
        return None
    return Complaint(name=name, message=message, remedy=remedy)
