"""The matrix of a selfcheck as text: each defect with what it must be called and what it was."""

from collections.abc import Iterable

from tabulate import tabulate

from harness.selfcheck.matrix import GOOD, HealthyRun, Matrix, Row

# Long places are shown whole in the JSON.
PLACE_CHARACTERS = 44
_NOTED = frozenset({"unavailable", "not run"})


def render_matrix(matrix: Matrix) -> str:
    """Return the matrix as text that ends in a newline: what fails is at the end, with its reason."""
    table = tabulate(
        [_build_cells(row) for row in matrix.rows if row.outcome not in _NOTED],
        headers=("defect", "group", "must be", "outcome", "status", "class", "caught by", "tokens", "ratio"),
        tablefmt="simple",
        disable_numparse=True,
        colalign=("left",) * 7 + ("right",) * 2,
    )
    parts = [table, "", *_list_absent(matrix.rows), *_list_wrong(matrix.rows), *_list_alarms(matrix.healthy)]
    parts += _conclude(matrix)
    return "\n".join(parts) + "\n"


def _build_cells(row: Row) -> tuple[str, ...]:
    head = (row.name, row.group, row.expected, row.outcome)
    if row.given is None:
        return (*head, "-", "-", "the run broke off", "-", "-")
    given = row.given
    caught = "; ".join(part for part in (given.contrast, given.place) if part)
    if given.against == "baseline" and given.status != "pass":
        caught = f"baseline: {caught}"
    return (
        *head,
        given.status,
        given.verdict_class,
        _shorten(caught) or "-",
        f"{given.tokens_decoded:,}",
        "-" if row.ratio is None else f"{row.ratio:.1f}",
    )


def _shorten(text: str) -> str:
    return text if len(text) <= PLACE_CHARACTERS else text[: PLACE_CHARACTERS - 3] + "..."


def _list_absent(rows: Iterable[Row]) -> list[str]:
    lines = [
        f"  {row.name}: {'not run' if row.outcome == 'not run' else f'not available: {row.error}'}"
        for row in rows
        if row.outcome in _NOTED
    ]
    return ["Not run", *lines, ""] if lines else []


def _list_wrong(rows: Iterable[Row]) -> list[str]:
    wrong = [row for row in rows if row.outcome not in GOOD | _NOTED]
    if not wrong:
        return []
    lines = []
    for row in wrong:
        said = row.given.sentence if row.given else f"the run broke off: {row.error}"
        lines.append(f"  {row.name}: {row.outcome}, {row.expected} expected: {said}")
    return ["Not as it must be", *lines, ""]


def _list_alarms(runs: Iterable[HealthyRun]) -> list[str]:
    lines = [
        f"  {run.name} ({run.what}): {run.given.sentence if run.given else run.error}"
        for run in runs
        if run.alarmed
    ]
    return ["Alarms on the healthy engine", *lines, ""] if lines else []


def _conclude(matrix: Matrix) -> list[str]:
    defects = [row for row in matrix.rows if row.group != "control" and row.outcome != "unavailable"]
    controls = [row for row in matrix.rows if row.group == "control"]
    named = sum(row.outcome == "named" for row in defects)
    alarms = sum(run.alarmed for run in matrix.healthy)
    lines = [
        f"Defects: {named} of {len(defects)} named, {matrix.count('misnamed')} misnamed, "
        f"{matrix.count('missed')} missed, {matrix.count('unavailable')} not available",
        f"Controls: {matrix.count('explained')} of {len(controls)} explained, "
        f"{matrix.count('accused')} accused",
        f"Healthy engine: {alarms} alarms in {len(matrix.healthy)} of {matrix.healthy_asked} runs, "
        f"seed {matrix.seed}",
    ]
    if matrix.plain_tokens is not None and matrix.ratios:
        lines.append(
            f"Tokens: a defect took {matrix.median_ratio:.1f} times fewer than the plain plan's "
            f"{matrix.plain_tokens:,} in the median, {matrix.ratios[0]:.1f} times in the worst case"
        )
    verdict = "interrupted" if matrix.interrupted else "PASS" if matrix.passed else "FAIL"
    return [*lines, f"{verdict}: {matrix.form} form in {matrix.seconds:.0f} s"]
