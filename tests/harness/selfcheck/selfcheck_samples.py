"""Defects and verdicts for the tests of the selfcheck."""

from harness.findings import VerdictClass
from harness.selfcheck.declared import DeclaredDefect
from harness.selfcheck.matrix import Given, HealthyRun, Matrix, Row, build_row
from harness.verdict import Status


def make_defect(name: str = "keep-rejected-kv", verdict: VerdictClass = "state", **changes: object):
    values = {
        "name": name,
        "group": "state",
        "wrong": "rows stay",
        "references": ("a#1",),
        "seen_in": "text",
        "verdict": verdict,
        "rule": "roll_back",
        "available": True,
    }
    return DeclaredDefect.model_validate(values | changes)


def make_control(name: str = "near-tie", verdict: VerdictClass = "near-tie") -> DeclaredDefect:
    return make_defect(name, verdict, group="control")


def make_given(status: Status, verdict_class: VerdictClass, *, tokens: int = 100) -> Given:
    return Given(
        status=status,
        verdict_class=verdict_class,
        sentence=f"{status.upper()}: {verdict_class}: because",
        contrast="speculation chat",
        place="quick, copy, turn 1",
        tokens_decoded=tokens,
        cells=2,
        seconds=0.5,
    )


def make_row(
    defect: DeclaredDefect, status: Status, verdict_class: VerdictClass, *, tokens: int = 100
) -> Row:
    return build_row(defect, make_given(status, verdict_class, tokens=tokens), plain_tokens=1000)


def make_matrix(*rows: Row, healthy: tuple[HealthyRun, ...] = (), **changes: object) -> Matrix:
    values: dict[str, object] = {
        "form": "fast",
        "seed": 1,
        "plain_tokens": 1000,
        "rows": rows,
        "healthy": healthy,
        "healthy_asked": len(healthy),
        "seconds": 12.0,
    }
    return Matrix(**(values | changes))  # type: ignore[arg-type]


def make_healthy(name: str, status: Status = "pass", verdict_class: VerdictClass = "identical") -> HealthyRun:
    return HealthyRun(name=name, what="quick at depth 2: copy", given=make_given(status, verdict_class))
