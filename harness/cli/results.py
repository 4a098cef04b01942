"""From a run's records to its report, and onto the terminal. All of it can be done again at any time."""

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_bindings.errors import RunDirectoryError
from engine_bindings.regular_file import read_regular
from harness.budget import find_unpaid
from harness.changes import describe_changes, list_changes
from harness.cli.output import write_note, write_result
from harness.comparison import Comparison, compare
from harness.early_end import end_early
from harness.environment import BuildFacts, Environment, list_replaced
from harness.metrics import CellMetrics, collect_token_lengths, derive_metrics
from harness.pairing import pair_cells
from harness.performance import is_settled
from harness.plan import Plan
from harness.report import Report, build_report
from harness.run_checks import find_report_problem
from harness.rundir import RunContents, RunDirectory, read_run
from harness.transcript import CellRecord, Conditions
from harness.verdict import judge
from reports.json import render_json
from reports.markdown import render_markdown
from reports.text import render_text

COMPARISON = "comparison.json"
VERDICT = "verdict.json"
REPORT_JSON = "report.json"
REPORT_TEXT = "report.txt"
# report.txt and a stdout that is no terminal have one width, so that they are the same bytes everywhere.
PLAIN_WIDTH = 110
MAX_WIDTH = 140


def analyze_run(path: Path) -> Report:
    """Take a run's records through every stage after the measurement, and write what each gives.

    Raises:
        RunDirectoryError: there is no run at ``path``, or it cannot be read.
    """
    contents = read_run(path)
    plan, records = contents.plan, contents.records
    comparison = compare_records(plan, records)
    verdict = judge(plan, comparison, list_replaced(contents.environment, contents.after))
    report = build_report(
        plan,
        records,
        comparison,
        verdict,
        _describe_environment(contents.environment),
        _describe_changes(contents),
    )
    directory = RunDirectory(path)
    directory.write_value(COMPARISON, comparison)
    directory.write_value(VERDICT, verdict)
    directory.write_text(REPORT_JSON, render_json(report))
    directory.write_text(REPORT_TEXT, render_text(report, width=PLAIN_WIDTH, colour=False))
    for note in contents.notes:
        write_note(f"coli-ab: {note}\n")
    return report


def compare_records(plan: Plan, records: Sequence[CellRecord]) -> Comparison:
    """Take records through the stages up to the comparison.

    Cells that a run left out because its stopping rule ended it are not missing.
    """
    lengths = collect_token_lengths(records)
    metrics = [derive_metrics(record, lengths) for record in records]
    comparison = _compare(plan, records, metrics)
    if plan.speed is not None and plan.speed.sequential and is_settled(comparison.performance):
        return _compare(end_early(plan, records), records, metrics)
    return comparison


def _compare(plan: Plan, records: Sequence[CellRecord], metrics: Sequence[CellMetrics]) -> Comparison:
    pairing = pair_cells(plan, records)
    comparison = compare(plan, records, pairing, metrics)
    unpaid = find_unpaid(plan, comparison, records)
    return compare(plan, records, pairing, metrics, unpaid=unpaid) if unpaid else comparison


def read_report(path: Path) -> Report:
    """Read a run's report.

    Raises:
        RunDirectoryError: there is none at ``path``, or it cannot be read.
    """
    file = path / REPORT_JSON
    try:
        report = Report.from_json(read_regular(file), place=str(file))
    except OSError as error:
        raise RunDirectoryError(
            f"{file}: {error.strerror}", hint=f"if {path} is a run that was cut off: coli-ab analyze {path}"
        ) from error
    if problem := find_report_problem(report):
        raise RunDirectoryError(
            f"{file}: {problem}", hint=f"it was edited; coli-ab analyze {path} makes it anew from the records"
        )
    return report


FORMATS = ("text", "json", "markdown", "junit")

_RENDERERS: dict[str, Callable[[Report], str]] = {
    "json": render_json,
    "markdown": render_markdown,
}


def print_report(report: Report, form: str = "text") -> None:
    """Print a report on stdout in one of :data:`FORMATS`; text in the form that suits where stdout goes."""
    if form in _RENDERERS:
        write_result(_RENDERERS[form](report))
    elif form == "junit":
        from reports.junit import render_junit  # noqa: PLC0415 - its library is slow to import

        write_result(render_junit(report))
    elif sys.stdout.isatty():
        width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
        write_result(render_text(report, width=width, colour=True))
    else:
        write_result(render_text(report, width=PLAIN_WIDTH, colour=False))


def _describe_changes(contents: RunContents) -> tuple[str, ...]:
    identities = {build.name: build.identity for build in contents.environment.builds}
    return describe_changes(contents.plan, list_changes(contents.plan, contents.records, identities))


def _describe_environment(environment: Environment) -> dict[str, str]:
    """Return the circumstances in the order and words of the report."""
    memory = environment.memory_bytes
    rows = {
        "run": environment.run_id,
        "started": environment.started_at,
        "coli-ab": environment.version,
        **{name: text for build in environment.builds for name, text in _describe_build(build).items()},
        "machine": environment.processors + ("" if memory is None else f", {memory / 2**30:.0f} GiB"),
        "system": f"{environment.operating_system}, Python {environment.python}",
    }
    if environment.load_average is not None:
        rows["load before"] = f"{environment.load_average:.2f}"
    if environment.conditions is not None:
        rows |= _describe_conditions(environment.conditions)
    if environment.removed_variables:
        rows["kept from the engine"] = ", ".join(environment.removed_variables)
    return rows


def _describe_conditions(conditions: Conditions) -> dict[str, str]:
    rows = {}
    if conditions.governors:
        rows["governor"] = ", ".join(conditions.governors)
    if conditions.boost is not None:
        rows["boost"] = "on" if conditions.boost else "off"
    if conditions.temperature_c is not None:
        rows["temperature before"] = f"{conditions.temperature_c:.0f} °C"
    return rows


def _describe_build(build: BuildFacts) -> dict[str, str]:
    engine, model = build.engine, build.model
    sampled = ", sampled" if model.weights_sampled else ""
    prefix = f"{build.name} " if build.name else ""
    if engine.reported:
        return {
            f"{prefix}engine": f"{engine.version or 'an unnamed server'} at {engine.source}, by its own word",
            f"{prefix}model": f"{model.directory}, by the server's word; nothing of it is proven",
        }
    commit = f", commit {build.commit}" if build.commit else ""
    kept = [build.model_storage] if build.model_storage else []
    if build.model_cached_ratio is not None:
        kept.append(f"{build.model_cached_ratio:.0%} of the weights in memory before")
    return {
        f"{prefix}engine": f"{engine.name} {engine.version or ''}".rstrip()
        + f" ({engine.digest[:16]}) at {engine.source}{commit}",
        f"{prefix}model": f"{model.directory} ({model.weights_bytes:,} bytes of weights{sampled})",
        f"{prefix}model digests": f"weights {model.weights_digest[:16]}, config {model.config_digest[:16]},"
        f" tokenizer {model.tokenizer_digest[:16]}",
        **({f"{prefix}model storage": ", ".join(kept)} if kept else {}),
    }
