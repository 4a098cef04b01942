"""From the records of an examination to its rows."""

from collections.abc import Iterable, Mapping
from itertools import chain

from engine_bindings.binding import Capabilities, EnginePath
from harness.counters import find_count_faults
from harness.doctor.counts import list_count_rows
from harness.doctor.drafting import list_draft_rows, list_start_rows
from harness.doctor.ends import list_between_rows, list_cap_rows, list_end_rows
from harness.doctor.probes import Examination, Visit, VisitKind
from harness.doctor.requests import (
    list_asked_rows,
    list_context_rows,
    list_grammar_rows,
    list_seed_rows,
    list_state_rows,
)
from harness.doctor.rows import Diagnosis, Row
from harness.doctor.view import PathView
from harness.engagement import CellEngagement, judge_cells
from harness.left_state import find_left_state
from harness.metrics import derive_metrics
from harness.plan import CellSpec
from harness.transcript import CellRecord

# What is found by rows of their own.
HAVE_ROWS = (
    "almost no draft is kept",
    "more drafts than the depth allows",
    "over the cap",
    "a stop that is not heard",
    "a limit that was not reached",
)

Seen = Iterable[tuple[Visit, CellRecord]]


def diagnose(examination: Examination, able: Capabilities, seen: Seen) -> Diagnosis:
    """Return what the visits that were made show; those that are missing show nothing."""
    pairs = tuple(seen)
    views = _build_views(examination, able, pairs)
    rows: list[Row] = list(chain.from_iterable(map(_list_rows, views)))
    for other in views[1:]:
        rows += list_between_rows(views[0], other)
    records = [record for _, record in pairs]
    return Diagnosis(
        engine=examination.plan.engine,
        depth=examination.plan.depth,
        rows=tuple(rows),
        ready=any(map(_shows_itself, records)),
        starts=len(records),
        decoded_tokens=sum(turn.emitted_tokens or 0 for record in records for turn in record.turns),
    )


def shows_its_path(record: CellRecord) -> bool:
    """Say whether the engine became ready in the protocol of its path."""
    return record.ready_ns is not None


def _shows_itself(record: CellRecord) -> bool:
    wrong = record.failure is not None and record.failure.code == "wrong-protocol"
    return record.ready_ns is not None or wrong


def _list_rows(view: PathView) -> Iterable[Row]:
    return chain(
        list_start_rows(view),
        list_draft_rows(view) if _was_ready(view) else (),
        list_count_rows(view) if _was_ready(view) else (),
        list_cap_rows(view) if _was_ready(view) else (),
        list_end_rows(view),
        list_seed_rows(view),
        list_asked_rows(view),
        list_grammar_rows(view) if _was_ready(view) else (),
        list_context_rows(view),
        list_state_rows(view),
    )


def _was_ready(view: PathView) -> bool:
    return any(map(shows_its_path, view.records.values()))


def _build_views(
    examination: Examination, able: Capabilities, pairs: tuple[tuple[Visit, CellRecord], ...]
) -> list[PathView]:
    plan = examination.plan
    main = {record.spec: record for visit, record in pairs if visit.probe.spec in plan.cells}
    everything = {record.spec: record for _, record in pairs}
    metrics = {spec: derive_metrics(record) for spec, record in main.items()}
    engagement = judge_cells(plan, main, metrics)
    faults, left = find_count_faults(plan, main), find_left_state(plan, everything)
    paths = dict.fromkeys(visit.path for visit, _ in pairs)
    return [
        PathView(
            path=path,
            plan=plan,
            able=able,
            records={visit.kind: record for visit, record in pairs if visit.path == path},
            clamped=any(visit.clamped for visit, _ in pairs if visit.path == path),
            engagement=_pick_engagement(path, pairs, engagement),
            faults=tuple(f for f in faults if f.arms[-1].path == path and f.rule not in HAVE_ROWS),
            left=tuple(finding for finding in left if finding.arms[-1].path == path),
        )
        for path in paths
    ]


def _pick_engagement(
    path: EnginePath,
    pairs: tuple[tuple[Visit, CellRecord], ...],
    engagement: Mapping[CellSpec, CellEngagement],
) -> dict[VisitKind, CellEngagement]:
    own = [visit for visit, _ in pairs if visit.path == path and visit.probe.spec in engagement]
    return {visit.kind: engagement[visit.probe.spec] for visit in own}
