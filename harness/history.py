"""The index of runs over time: what each run was of, what it said, and the figures of its arms, in SQLite.

A run belongs to a **series**: one machine, model, settings, depth and set of scenarios. Only figures of one
series are held against each other over time; the engine's commit is what moves along it.
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.binding import Pin
from engine_bindings.errors import RunDirectoryError, UsageError
from engine_bindings.fingerprint import ModelFingerprint
from engine_bindings.regular_file import check_regular
from harness.environment import Environment
from harness.metrics import Totals, derive_metrics, sum_turns
from harness.pairing import select_latest
from harness.plan import Arm, CellSpec, Plan
from harness.report import Report
from harness.transcript import CellRecord
from harness.trend import COUNTS, Figure

SCHEMA_VERSION = 2
DEFAULT_FILE = Path("runs") / "history.sqlite"

_TABLES = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    started_at TEXT NOT NULL,
    path TEXT NOT NULL,
    series TEXT NOT NULL,
    status TEXT NOT NULL,
    verdict_class TEXT NOT NULL,
    sentence TEXT NOT NULL,
    engine TEXT NOT NULL,
    engine_digest TEXT NOT NULL,
    engine_commit TEXT,
    model TEXT NOT NULL,
    machine TEXT NOT NULL,
    depth INTEGER NOT NULL,
    scenarios TEXT NOT NULL,
    tokens_decoded INTEGER NOT NULL,
    is_baseline INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE figures (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    arm TEXT NOT NULL,
    engine_commit TEXT,
    metric TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (run_id, arm, metric)
);
CREATE INDEX runs_by_series ON runs (series, started_at);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run in the index. ``series`` is a digest, ``scenarios`` their names with spaces between."""

    run_id: str
    started_at: str
    path: str
    series: str
    status: str
    verdict_class: str
    sentence: str
    engine: str
    engine_digest: str
    engine_commit: str | None
    model: str
    machine: str
    depth: int
    scenarios: str
    tokens_decoded: int
    is_baseline: bool = False


def build_entry(path: Path, plan: Plan, environment: Environment, report: Report) -> Entry:
    """Return what the index holds of a run at ``path``."""
    engine, model = environment.engine, environment.model
    machine = environment.processors
    pins = {
        Pin(name=row.name, value=row.value, reason=row.reason, overridden=row.overridden): row.arms
        for row in report.pins
    }
    names = " ".join(sorted(scenario.name for scenario in plan.scenarios))
    return Entry(
        run_id=environment.run_id,
        started_at=environment.started_at,
        path=str(path.resolve()),
        series=digest_series(plan, machine, name_model(model), pins),
        status=report.verdict.status,
        verdict_class=report.verdict.verdict_class,
        sentence=report.verdict.sentence,
        engine=engine.name,
        engine_digest=engine.digest,
        engine_commit=environment.builds[0].commit if environment.builds else None,
        model=model.weights_digest[:16],
        machine=machine,
        depth=plan.depth,
        scenarios=names,
        tokens_decoded=report.comparison.tokens_decoded,
    )


def digest_series(plan: Plan, machine: str, model: str, pins: Mapping[Pin, Iterable[Arm]]) -> str:
    """Return the digest of all that must be the same in the runs of a series; the engine is not among it.

    Arms of a baseline do not count: a run is of the same series with one and without.

    Args:
        plan: of the run.
        machine: as in :attr:`Environment.processors`.
        model: its digests, as :func:`name_model` joins them.
        pins: the settings with the arms that had them.
    """
    own = [arm for arm in plan.arms if not plan.is_recorded(arm)]
    held = {pin: set(arms) for pin, arms in pins.items()}
    labels = [(pin.name, pin.value, [arm.label for arm in own if arm in held[pin]]) for pin in held]
    settings = sorted(row for row in labels if row[2])
    scenarios = sorted((s.name, repr(s)) for s in plan.scenarios)
    kind = plan.engine.partition("=")[0]
    builds = [build.name for build in plan.builds if not build.recorded] or [""]
    same = [machine, model, kind, plan.depth, builds, settings, scenarios]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]


def name_model(model: ModelFingerprint) -> str:
    """Return the digests that tell a model from another."""
    return model.weights_digest + model.config_digest


FigureKey = tuple[Arm, str]
"""An arm and the name of a metric."""


def list_figures(report: Report, records: Iterable[CellRecord]) -> dict[FigureKey, float]:
    """Return the figures of a report's arms; those that were not reported are left out.

    Counts are those of repetition 0 alone, so that runs with more repetitions, with timed cells or that ended
    early can be held against each other. An arm that did not finish it has none. Turns that a stop string
    ended are not counted: how far the engine went on behind it depends on the clock.
    """
    figures: dict[FigureKey, float | None] = {}
    latest = select_latest(records)
    for row in report.arms:
        totals = _sum_first_repetition(row.arm, report, latest)
        for metric in COUNTS if totals else ():
            figures[row.arm, metric] = getattr(totals, metric)
    for speed in report.comparison.speeds:
        figures[speed.arm, "decode_tokens_per_s"] = speed.decode_tokens_per_s
        figures[speed.arm, "ttft_ms"] = speed.ttft_ms
    for speedup in report.comparison.speedups:
        if speedup.category is None:
            figures[speedup.on, "speedup_ratio"] = speedup.speedup_ratio
            figures[speedup.on, "time_per_forward_ratio"] = speedup.time_per_forward_ratio
    return {key: value for key, value in figures.items() if value is not None}


def _sum_first_repetition(arm: Arm, report: Report, latest: Mapping[CellSpec, CellRecord]) -> Totals | None:
    ran = [row.scenario for row in report.comparison.engagements if row.arm == arm]
    records = [latest.get(CellSpec(arm=arm, scenario=name, repetition=0)) for name in ran]
    whole = [record for record in records if record is not None and record.is_complete]
    if not whole or len(whole) < len(records):
        return None
    turns = [turn for record in whole for turn in derive_metrics(record).turns]
    return sum_turns([turn for turn in turns if turn.finish != "stop-string"])


def name_commits(environment: Environment) -> dict[str, str | None]:
    """Return the commit of each build by its name."""
    return {build.name: build.commit for build in environment.builds}


class History:
    """The index in one SQLite file. Use :func:`open_history`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add_run(
        self, entry: Entry, figures: Mapping[FigureKey, float], commits: Mapping[str, str | None]
    ) -> bool:
        """Add a run, or replace it by what it says now; return whether it is new.

        ``commits`` are those of the builds by name: with two builds each figure belongs to one of them.
        """
        known = self._connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (entry.run_id,)).fetchone()
        fields = [name for name in Entry.__dataclass_fields__ if name != "is_baseline"]
        values = [getattr(entry, name) for name in fields]
        updates = ", ".join(f"{name} = excluded.{name}" for name in fields[1:])
        with self._connection:
            self._connection.execute(
                f"INSERT INTO runs ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))})"  # noqa: S608
                f" ON CONFLICT (run_id) DO UPDATE SET {updates}",
                values,
            )
            self._connection.execute("DELETE FROM figures WHERE run_id = ?", (entry.run_id,))
            rows = [
                (entry.run_id, arm.label, commits.get(arm.build), metric, value)
                for (arm, metric), value in figures.items()
            ]
            self._connection.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?)", rows)
        return known is None

    def set_baseline(self, run_id: str) -> Entry:
        """Make a run the baseline of its series. Raises UsageError when it is not in the index."""
        entry = self.find_run(run_id)
        with self._connection:
            self._connection.execute("UPDATE runs SET is_baseline = 0 WHERE series = ?", (entry.series,))
            self._connection.execute("UPDATE runs SET is_baseline = 1 WHERE run_id = ?", (entry.run_id,))
        return self.find_run(entry.run_id)

    def find_run(self, reference: str) -> Entry:
        """Return the run whose id begins with ``reference``.

        Raises:
            UsageError: no run has such an id, or several have.
        """
        found = [entry for entry in self.list_runs() if entry.run_id.startswith(reference)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise UsageError(f"no run {reference!r} in the history", hint="coli-ab history list shows them")
        raise UsageError(
            f"{len(found)} runs begin with {reference!r}: {', '.join(e.run_id for e in found[:3])} ...",
            hint="give more of the id",
        )

    def list_runs(self, series: str | None = None) -> list[Entry]:
        """Return the runs of a series, or all, the oldest first."""
        rows = self._connection.execute(
            "SELECT * FROM runs WHERE ? IS NULL OR series = ? ORDER BY started_at, run_id", (series, series)
        )
        return [Entry(**{**dict(row), "is_baseline": bool(row["is_baseline"])}) for row in rows]

    def list_figures(self, series: str, metric: str | None = None, arm: str | None = None) -> list[Figure]:
        """Return the figures of a series in the order of time, of one metric and arm where they are named."""
        rows = self._connection.execute(
            "SELECT run_id, started_at, figures.engine_commit, arm, metric, value"
            " FROM figures JOIN runs USING (run_id)"
            " WHERE series = ? AND (? IS NULL OR metric = ?) AND (? IS NULL OR arm = ?)"
            " ORDER BY started_at, run_id, arm, metric",
            (series, metric, metric, arm, arm),
        )
        figures = [Figure(**dict(row)) for row in rows]
        for figure in figures:
            if not (isinstance(figure.value, float) and math.isfinite(figure.value)):
                raise RunDirectoryError(
                    f"the history has {figure.value!r} as {figure.metric} of {figure.arm} in {figure.run_id}",
                    hint="it was edited; coli-ab history add RUN reads the run again",
                )
        return figures


@contextmanager
def open_history(path: Path, *, create: bool = False) -> Iterator[History]:
    """Open the index at ``path``; it is made when it is not there and ``create`` is set.

    Raises:
        UsageError: there is none, or it cannot be made.
        RunDirectoryError: the file is no index, or one of another version.
    """
    if not create and not path.exists():
        raise UsageError(f"there is no history at {str(path)!r}", hint="coli-ab history add RUN begins one")
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            check_regular(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA foreign_keys = ON")
            _prepare(connection, path)
            yield History(connection)
    except sqlite3.OperationalError as error:
        locked = error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        hint = "another program is writing to it; try again" if locked else "name another file with --db"
        raise RunDirectoryError(f"{path}: {error}", hint=hint) from error
    except sqlite3.Error as error:
        raise RunDirectoryError(f"{path}: {error}", hint="name the file of a history with --db") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="name another file with --db") from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif version != SCHEMA_VERSION:
        raise RunDirectoryError(
            f"{path}: version {version} of the history, and this tool knows {SCHEMA_VERSION}",
            hint="name another file with --db; the runs can be added again",
        )
    columns = {row["name"] for row in connection.execute("PRAGMA table_info(runs)")}
    if missing := Entry.__dataclass_fields__.keys() ^ columns:
        raise RunDirectoryError(
            f"{path}: its table of runs differs in {', '.join(sorted(missing))}",
            hint="it was edited; name another file with --db and add the runs again",
        )


def group_series(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the runs of each series, the series in the order of their first run."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.series, []).append(entry)
    return groups
