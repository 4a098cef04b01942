"""The report for a pull request: verdict first, then what differs, then speed; details are folded.

A comment and a step summary have a size limit, so blocks are added while they fit and the rest is counted.
"""

from collections.abc import Iterable, Sequence

from tabulate import tabulate

from engine_bindings.printable import escape_control
from harness.contrasts import ContrastResult, FoundDifference, list_found
from harness.findings import Finding
from harness.identity import Difference
from harness.performance import Performance, SpeedRow
from harness.report import Report
from harness.speed import Speedup
from harness.speed_words import METRIC_LABELS, describe_ratio, describe_statement
from harness.verdict import describe_position
from reports.findings import describe_cost, join_alike
from reports.numbers import format_count, format_decimal, format_figure, format_percent, format_speedup

# What GitHub takes as a comment, in bytes; a step summary may be longer.
LIMIT_BYTES = 64 * 1024
# What is folded is there to be looked up; a run of hundreds of turns would push everything else out.
MAX_ROWS = 60
MAX_DIFFERENCES = 5
MAX_REASONS = 6
# A phone shows about 40 characters of code in a line without scrolling; a sentence is broken anywhere.
MAX_SIDE_CHARACTERS = 60
MAX_SENTENCE_CHARACTERS = 600

_MARKS = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE", "invalid": "INVALID"}


def render_markdown(report: Report, *, limit_bytes: int = LIMIT_BYTES) -> str:
    """Return the report as GitHub-flavoured Markdown of at most ``limit_bytes`` bytes in UTF-8."""
    text = ""
    left_out = []
    reserve = 200  # for the line that counts what is left out
    for name, block in _list_blocks(report):
        if not block:
            continue
        if len((text + block).encode()) + reserve > limit_bytes:
            left_out.append(name)
        else:
            text += block + "\n"
    if left_out:
        text += f"Left out to keep to {limit_bytes:,} bytes, and in report.json: {', '.join(left_out)}.\n"
    return text


def _list_blocks(report: Report) -> Iterable[tuple[str, str]]:
    yield "verdict", _render_verdict(report)
    yield "differences", _render_differences(report)
    yield "speed", _render_speed(report)
    yield "findings", _fold("What the differences are", _list_findings(report))
    yield "arms", _fold("Arms", _render_arms(report))
    yield "contrasts", _fold("Contrasts", _render_contrasts(report))
    yield "failed cells", _fold("Failed cells", _list_failures(report))
    yield "notes", _fold("Notes", _list_items(report.comparison.notes))
    yield "settings", _fold("Engine settings", _render_pins(report))
    yield "circumstances", _fold("Run", _render_run(report))


def _render_verdict(report: Report) -> str:
    verdict = report.verdict
    sentence = verdict.sentence.removeprefix(f"{_MARKS[verdict.status]}: ")
    lines = [f"### coli-ab: {_MARKS[verdict.status]}", "", _text(sentence), ""]
    reasons = verdict.reasons if len(verdict.reasons) > 1 else ()
    for told in (reasons, report.changes):
        lines += [f"- {_text(sentence)}" for sentence in told[:MAX_REASONS]]
        if len(told) > MAX_REASONS:
            lines.append(f"- and {len(told) - MAX_REASONS} more")
    return "\n".join(lines).rstrip() + "\n"


def _render_differences(report: Report) -> str:
    items = list_found(report.comparison.contrasts)
    if not items:
        return ""
    alike: dict[tuple[object, ...], list[tuple[ContrastResult, FoundDifference]]] = {}
    for result, found in items:
        sides = [(d.field, d.context, d.a, d.b) for d in found.differences]
        alike.setdefault((found.scenario, found.conversation, found.turn, *sides), []).append((result, found))
    lines = ["#### First differences", ""]
    for group in list(alike.values())[:MAX_DIFFERENCES]:
        lines += _render_found(*group[0], also=[result.contrast.name for result, _ in group[1:]])
    if len(alike) > MAX_DIFFERENCES:
        lines.append(f"and {len(alike) - MAX_DIFFERENCES} more.")
    return "\n".join(lines).rstrip() + "\n"


def _render_found(result: ContrastResult, found: FoundDifference, *, also: Sequence[str]) -> list[str]:
    a, b = result.contrast.a.label, result.contrast.b.label
    if a == b:
        a, b = f"{a} (first)", f"{b} (again)"
    place = f"{found.scenario}, {found.conversation}, turn {found.turn + 1}"
    same = f" (the same in {_text(', '.join(also))})" if also else ""
    lines = [f"**{_text(result.contrast.name)}**: {_text(place)}{same}", "", "```diff"]
    for difference in found.differences:
        lines += _render_difference(difference, a, b)
    return [*lines, "```", ""]


def _render_difference(difference: Difference, a: str, b: str) -> list[str]:
    lines = [f"@@ {_code(describe_position(difference))} @@"]
    if difference.context:
        lines.append(f"  after {_code(difference.context)}")
    return [*lines, f"- {a}: {_code(difference.a)}", f"+ {b}: {_code(difference.b)}"]


def _render_speed(report: Report) -> str:
    tables = []
    if report.speed is not None:
        said = [_said_row(item, row) for item in report.comparison.performance for row in item.rows]
        tables.append(_table(("arm", "figure", "said", "ratio to the first", "pairs"), said))
        split = [
            (
                item.contrast.b.label,
                describe_ratio(item.tokens_per_forward),
                describe_ratio(item.time_per_forward),
                describe_ratio(item.noise_floor),
            )
            for item in report.comparison.performance
        ]
        tables.append(_table(("arm", "tok/fwd", "time/fwd", "noise floor (A/A)"), split))
    rows = [_speed_row(row) for row in report.comparison.speedups if row.category is None]
    if rows:
        tables.append(_table(("speculation", "speed-up", "tok/fwd", "time/fwd", "pairs"), rows))
    return "#### Speed\n\n" + "\n".join(tables) if tables else ""


def _said_row(item: Performance, row: SpeedRow) -> tuple[str, ...]:
    label = METRIC_LABELS[row.metric]
    return item.contrast.b.label, label, describe_statement(row), describe_ratio(row.ratio), str(row.pairs)


def _speed_row(row: Speedup) -> tuple[str, ...]:
    if row.speedup_ratio is None:
        return row.on.label, _text(row.remark), "-", "-", str(row.pairs)
    return (
        row.on.label,
        format_speedup(row.speedup_ratio),
        format_speedup(row.tokens_per_forward_ratio),
        format_speedup(row.time_per_forward_ratio),
        str(row.rated_pairs),
    )


def _list_findings(report: Report) -> str:
    groups = join_alike(report.comparison.findings)
    lines = [_describe_findings(findings) for findings in groups[:MAX_ROWS]]
    if len(groups) > MAX_ROWS:
        lines.append(f"- and {len(groups) - MAX_ROWS} more")
    return "\n".join(lines)


def _describe_findings(findings: Sequence[Finding]) -> str:
    first = findings[0]
    subjects = ", ".join(dict.fromkeys(f.contrast or f.arms[0].label for f in findings))
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    head = f"- **{first.verdict_class}** ({first.effect}) {_text(subjects)}: {_text(first.place)}{more}"
    told = [f"  - {_text(text)}" for text in (first.reason, *first.facts)]
    return "\n".join((head, *told))


def _render_arms(report: Report) -> str:
    rows = [
        (
            row.arm.label,
            row.state,
            format_count(row.totals.emitted_tokens),
            format_count(row.totals.forwards),
            format_percent(row.totals.acceptance_rate),
            format_decimal(row.totals.tokens_per_forward),
        )
        for row in report.arms
    ]
    speeds = [
        (
            row.arm.label,
            format_figure(row.decode_tokens_per_s),
            format_figure(row.ttft_ms),
            format_figure(row.engine_tokens_per_s),
        )
        for row in report.comparison.speeds
    ]
    counts = _table(("arm", "state", "tokens", "forwards", "acceptance", "tok/fwd"), rows)
    clock = _table(("arm", "decode tok/s", "TTFT ms", "engine's own tok/s"), speeds)
    return counts + "\n" + clock


def _render_contrasts(report: Report) -> str:
    rows = [
        (
            r.contrast.name,
            r.state,
            str(r.pairs_checked),
            str(r.pairs_identical),
            format_count(r.tokens_compared),
        )
        for r in report.comparison.contrasts
    ]
    return _table(("contrast", "result", "pairs", "identical", "tokens"), rows)


def _list_failures(report: Report) -> str:
    return _list_items(
        f"{item.spec.key}: {item.failure.code}: {item.failure.message}" for item in report.comparison.failures
    )


def _render_pins(report: Report) -> str:
    rows = [(f"{pin.name}={pin.value}", "yes" if pin.overridden else "", pin.reason) for pin in report.pins]
    return _table(("setting", "by the user", "why"), rows) if rows else ""


def _render_run(report: Report) -> str:
    rows = (f"{item.name}: {item.value}" for item in report.environment)
    return _list_items((*rows, describe_cost(report)))


def _list_items(items: Iterable[str]) -> str:
    known = list(items)
    lines = [f"- {_text(item)}" for item in known[:MAX_ROWS]]
    if len(known) > MAX_ROWS:
        lines.append(f"- and {len(known) - MAX_ROWS} more")
    return "\n".join(lines)


def _fold(title: str, body: str) -> str:
    """Return a folded block; nothing when there is nothing in it."""
    return f"<details><summary>{title}</summary>\n\n{body.rstrip()}\n\n</details>\n" if body else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = [[_text(cell) for cell in row] for row in rows[:MAX_ROWS]]
    table = tabulate(shown, headers=headers, tablefmt="github", disable_numparse=True)
    more = f"\n\nand {len(rows) - MAX_ROWS} more rows" if len(rows) > MAX_ROWS else ""
    return table + more + "\n"


def _text(text: str) -> str:
    """Return text that Markdown and HTML leave as it is, in one line of limited length.

    A model's answer may hold anything: a tag, a table's border, a mention that would notify somebody.
    """
    line = " ".join(escape_control(text).split())
    if len(line) > MAX_SENTENCE_CHARACTERS:
        line = line[: MAX_SENTENCE_CHARACTERS - 1] + "…"
    for character in "\\`*_{}[]#|~":
        line = line.replace(character, f"\\{character}")
    for character, entity in _ENTITIES.items():
        line = line.replace(character, entity)
    return line.replace("@", "@\u200b")


# The ampersand first: an entity in an answer may stand for a character that would notify somebody.
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def _code(text: str) -> str:
    """Return text for a fenced block: one line that cannot end the fence."""
    line = escape_control(text).replace("```", "'''").replace("\n", " ")
    return line if len(line) <= MAX_SIDE_CHARACTERS else line[: MAX_SIDE_CHARACTERS - 1] + "…"
