"""``coli-ab history``: index runs, and see what moved over time and with which commit."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from engine_bindings.errors import RunDirectoryError, UsageError
from harness.cli.output import write_note, write_result
from harness.cli.results import read_report
from harness.history import (
    DEFAULT_FILE,
    Entry,
    History,
    build_entry,
    group_series,
    list_figures,
    name_commits,
    open_history,
)
from harness.rundir import read_run
from harness.trend import DEFAULT_BOUND, MIN_RUNS, Figure, Level, find_levels
from reports.numbers import format_decimal, format_figure

SHOWN_COMMIT = 18

DESCRIPTION = """\
Indexes runs in one SQLite file. Runs of one machine, model, engine, depth, settings and set of scenarios are
a series; only those are held against each other.
"""

EPILOG = """\
examples:
  coli-ab history add runs/*                 index runs; a run that is there already is read again
  coli-ab history list
  coli-ab history trend decode_tokens_per_s  levels over time, and the commit that each begins with
  coli-ab history baseline RUN               the run that --baseline history takes for its series
  coli-ab history export figures.csv         all figures; .parquet with the package pyarrow
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "history",
        help="index runs and see what moved over time",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--db", type=Path, default=DEFAULT_FILE, metavar="FILE", help="the index (default: %(default)s)"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    add = actions.add_parser("add", help="index runs")
    add.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    add.set_defaults(run=run_add)
    listing = actions.add_parser("list", help="list the runs, series by series")
    listing.set_defaults(run=run_list)
    show = actions.add_parser("show", help="show one run and its figures")
    show.add_argument("run_id", metavar="ID", help="an id or its beginning")
    show.set_defaults(run=run_show)
    baseline = actions.add_parser("baseline", help="make a run the baseline of its series")
    baseline.add_argument("run_id", metavar="ID", help="an id or its beginning")
    baseline.set_defaults(run=run_baseline)
    _add_trend(actions)
    export = actions.add_parser("export", help="write all figures to a .csv or .parquet file")
    export.add_argument("file", type=Path, metavar="FILE")
    export.set_defaults(run=run_export)


def _add_trend(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    trend = actions.add_parser("trend", help="levels of a figure over time, with the commits that moved it")
    trend.add_argument("metric", nargs="?", default="decode_tokens_per_s", help="default: %(default)s")
    trend.add_argument("--arm", metavar="ARM", help="one arm, for example serve/3 (default: all)")
    trend.add_argument("--series", metavar="ID", help="one series (default: all)")
    trend.add_argument(
        "--bound",
        type=_percent,
        metavar="PERCENT",
        help=f"levels closer than this are one (default: {100 * DEFAULT_BOUND:g}, and 0 for counts)",
    )
    trend.set_defaults(run=run_trend)


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to below 100")
    return value


def run_add(arguments: argparse.Namespace) -> int:
    """Index runs; one that cannot be read is named and keeps no other from being indexed.

    Raises:
        UsageError: at least one run could not be read.
    """
    # The index lies among the runs, so ``add runs/*`` names it too.
    paths = [path for path in arguments.runs if path.resolve() != arguments.db.resolve()]
    with open_history(arguments.db, create=True) as history:
        unread = [path for path in paths if not _add_run(history, path)]
    if unread:
        raise UsageError(
            f"{len(unread)} of {len(paths)} runs are not in the index",
            hint="the reason stands above for each",
        )
    return 0


def _add_run(history: History, path: Path) -> bool:
    try:
        contents, report = read_run(path), read_report(path)
    except RunDirectoryError as error:
        write_note(f"left out: {error.message}\n  {error.hint}\n")
        return False
    entry = build_entry(path, contents.plan, contents.environment, report)
    figures = list_figures(report, contents.records)
    new = history.add_run(entry, figures, name_commits(contents.environment))
    write_note(f"{'added' if new else 'read again'}: {entry.run_id}, series {entry.series}\n")
    return True


def run_list(arguments: argparse.Namespace) -> int:
    """List the runs."""
    with open_history(arguments.db) as history:
        groups = group_series(history.list_runs())
    parts = [_render_series(series, entries) for series, entries in groups.items()]
    write_result("\n".join(parts) if parts else "no runs\n")
    return 0


def _render_series(series: str, entries: Sequence[Entry]) -> str:
    first = entries[0]
    head = f"series {series}: {first.engine}, depth {first.depth}, {first.scenarios}; {first.machine}"
    rows = [
        (e.run_id, e.started_at[:16], _commit(e.engine_commit), e.status, e.verdict_class, _star(e))
        for e in entries
    ]
    return f"{head}\n{tabulate(rows, headers=('run', 'started', 'commit', 'verdict', 'class', ''))}\n"


def _star(entry: Entry) -> str:
    return "baseline" if entry.is_baseline else ""


def _commit(commit: str | None) -> str:
    return "-" if commit is None else commit[:SHOWN_COMMIT]


def run_show(arguments: argparse.Namespace) -> int:
    """Show one run."""
    with open_history(arguments.db) as history:
        entry = history.find_run(arguments.run_id)
        figures = [f for f in history.list_figures(entry.series) if f.run_id == entry.run_id]
    lines = [
        f"run       {entry.run_id}, started {entry.started_at}",
        f"verdict   {entry.sentence}",
        f"engine    {entry.engine} {entry.engine_digest[:16]}, commit {_commit(entry.engine_commit)}",
        f"model     {entry.model}",
        f"machine   {entry.machine}",
        f"series    {entry.series}{', its baseline' if entry.is_baseline else ''}",
        f"directory {entry.path}",
        "",
        tabulate(
            [(f.arm, f.metric, format_figure(f.value)) for f in figures],
            headers=("arm", "figure", "value"),
            disable_numparse=True,
        ),
    ]
    write_result("\n".join(lines) + "\n")
    return 0


def run_baseline(arguments: argparse.Namespace) -> int:
    """Make a run the baseline of its series."""
    with open_history(arguments.db) as history:
        entry = history.set_baseline(arguments.run_id)
    if entry.status != "pass":
        write_note(f"coli-ab: note that the verdict of {entry.run_id} is {entry.status}\n")
    write_result(f"{entry.run_id} is the baseline of series {entry.series}\n")
    return 0


def run_trend(arguments: argparse.Namespace) -> int:
    """Show the levels of a figure."""
    with open_history(arguments.db) as history:
        names = [arguments.series] if arguments.series else [*group_series(history.list_runs())]
        parts = [text for series in names for text in _render_trends(history, series, arguments)]
    if not parts:
        raise UsageError(
            f"no run has the figure {arguments.metric!r}"
            + (f" of the arm {arguments.arm!r}" if arguments.arm else "")
            + (f" in the series {arguments.series!r}" if arguments.series else ""),
            hint="coli-ab history show ID lists the figures of a run",
        )
    write_result("\n".join(parts))
    return 0


def _render_trends(history: History, series: str, arguments: argparse.Namespace) -> list[str]:
    figures = history.list_figures(series, arguments.metric, arguments.arm)
    bound = None if arguments.bound is None else arguments.bound / 100
    texts = []
    for arm in dict.fromkeys(figure.arm for figure in figures):
        own = [figure for figure in figures if figure.arm == arm]
        levels = find_levels(own, bound=bound)
        few = f" (from {MIN_RUNS} runs on a change can be told from noise)" if len(own) < MIN_RUNS else ""
        head = f"{arguments.metric} of {arm}, series {series}: {len(own)} runs{few}"
        texts.append(f"{head}\n{_render_levels(levels)}\n")
    return texts


def _render_levels(levels: Sequence[Level]) -> str:
    rows = [
        (
            level.first.started_at[:16],
            _commit(level.first.engine_commit),
            level.first.run_id,
            str(level.runs),
            format_figure(level.median),
            "-" if level.ratio is None else f"{100 * (level.ratio - 1):+.1f} %",
        )
        for level in levels
    ]
    headers = ("since", "commit", "run", "runs", "median", "change")
    return tabulate(rows, headers=headers, disable_numparse=True)


def run_export(arguments: argparse.Namespace) -> int:
    """Write all figures to a file."""
    with open_history(arguments.db) as history:
        rows = [
            (series, figure)
            for series in group_series(history.list_runs())
            for figure in history.list_figures(series)
        ]
    _write_frame(arguments.file, rows)
    write_result(f"{format_decimal(len(rows), 0)} figures in {arguments.file}\n")
    return 0


def _write_frame(file: Path, rows: Sequence[tuple[str, Figure]]) -> None:
    import pandas as pd  # noqa: PLC0415 - slow to import

    names = ("run_id", "started_at", "engine_commit", "arm", "metric", "value")
    frame = pd.DataFrame(
        [(series, *(getattr(figure, name) for name in names)) for series, figure in rows],
        columns=["series", *names],
    )
    try:
        if file.suffix == ".csv":
            frame.to_csv(file, index=False)
        elif file.suffix == ".parquet":
            frame.to_parquet(file, index=False)
        else:
            raise UsageError(f"{file}: neither .csv nor .parquet", hint="the ending chooses the format")
    except ImportError as error:
        raise UsageError(f"{file}: {error.msg.splitlines()[0]}", hint="pip install pyarrow") from error
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}", hint="name another file") from error
