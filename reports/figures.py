"""The parts of the text report that measure: prefill, speed, what speculation is worth, expected facts."""

from collections.abc import Iterable, Sequence

from harness.plan import Arm
from harness.prefill import PrefillRow
from harness.report import Report
from harness.speed import Speedup
from reports.evidence import name_arms
from reports.numbers import (
    NOT_REPORTED,
    format_decimal,
    format_figure,
    format_percent,
    format_speedup,
)
from reports.page import Page

_Place = tuple[str, str, int]


def add_prefill(page: Page, report: Report) -> None:
    """Add what each turn took from the cache; turns that nothing is expected of and that all arms share
    are counted.
    """
    groups = _group_by_turn(report.comparison.prefill)
    shown = {place: rows for place, rows in groups.items() if _is_telling(place, rows)}
    if not groups:
        return
    page.add_heading("Prefill per turn")
    conversation = ("", "")
    for place, rows in shown.items():
        if place[:2] != conversation:
            conversation = place[:2]
            page.add_line(f"  {place[0]}, {place[1]}")
        for row, arms in _group_by_figures(rows):
            _add_prefill_line(page, row, name_arms(arms, report))
    if len(shown) < len(groups):
        count = len(groups) - len(shown)
        turns = "1 first turn" if count == 1 else f"{count} first turns"
        page.add_item(f"{turns} without an expectation: the same in every arm")


def _group_by_turn(rows: Iterable[PrefillRow]) -> dict[_Place, list[PrefillRow]]:
    groups: dict[_Place, list[PrefillRow]] = {}
    for row in rows:
        groups.setdefault((row.scenario, row.conversation, row.turn), []).append(row)
    return groups


def _is_telling(place: _Place, rows: Sequence[PrefillRow]) -> bool:
    return place[2] > 0 or any(row.declared for row in rows) or len(_group_by_figures(rows)) > 1


def _group_by_figures(rows: Sequence[PrefillRow]) -> list[tuple[PrefillRow, list[Arm]]]:
    groups: dict[tuple[object, ...], tuple[PrefillRow, list[Arm]]] = {}
    for row in rows:
        key = (row.prompt_tokens, row.cached_tokens, row.prefill_tokens, row.expected_cached_tokens)
        groups.setdefault(key, (row, []))[1].append(row.arm)
    return list(groups.values())


def _add_prefill_line(page: Page, row: PrefillRow, arms: str) -> None:
    measured = (
        f"prefix {_plain(row.cached_tokens)}/{_plain(row.prompt_tokens)} prefill {_plain(row.prefill_tokens)}"
    )
    style = {"wrong": "red", "not as derived": "yellow"}.get(row.state, "")
    page.add_line(f"    turn {row.turn + 1:<2} {measured:<30} {_expectation(row):<14} {arms}", style=style)


def _plain(value: int | None) -> str:
    # Without separators, so that the figures can be found in the engine's own stderr.
    return NOT_REPORTED if value is None else str(value)


def _expectation(row: PrefillRow) -> str:
    if row.expected_cached_tokens is None:
        return "expected -"
    word = "WRONG, expected" if row.state == "wrong" else "expected" if row.declared else "derived"
    return f"{word} {row.expected_cached_tokens}"


def add_speed(page: Page, report: Report) -> None:
    """Add speed by the client's clock, and what speculation is worth on each path."""
    page.add_heading("Speed, medians over turns, by the client's clock")
    rows = [
        (
            row.arm.label,
            format_figure(row.decode_tokens_per_s),
            format_figure(row.ttft_ms),
            format_figure(row.time_per_forward_ms),
            f"{row.rated_turns} of {row.turns}",
            format_figure(row.engine_tokens_per_s),
        )
        for row in report.comparison.speeds
    ]
    headers = ("arm", "decode tok/s", "TTFT ms", "ms/fwd", "turns with a rate", "engine's own tok/s")
    page.add_table(headers, rows, numeric=range(1, 6))
    if any(row.engine_tokens_per_s is not None for row in report.comparison.speeds):
        words = {word.name: word.definition for word in report.words}
        page.add_item(
            "decode tok/s: 1000 / TPOT, by the client's clock and without what the first delivery brought. "
            f"Engine's own tok/s: {words['engine_tokens_per_s']}"
        )
    for row in report.comparison.speedups:
        if row.category is None:
            page.add_item(_describe_speedup(row))
    _add_classes(page, [row for row in report.comparison.speedups if row.category is not None])


def _describe_speedup(row: Speedup) -> str:
    name = f"{row.on.path}, speed-up of depth {row.on.depth}"
    if row.speedup_ratio is None:
        return f"{name}: {row.remark}"
    return (
        f"{name}: {format_speedup(row.speedup_ratio)} = tokens per forward "
        f"{format_speedup(row.tokens_per_forward_ratio)} / time per forward "
        f"{format_speedup(row.time_per_forward_ratio)} ({row.rated_pairs} identical pairs with a rate)"
    )


def _add_classes(page: Page, rows: Sequence[Speedup]) -> None:
    if not rows:
        return
    page.add_heading("What speculation is worth, by class")
    cells = [
        (
            row.category or "",
            row.on.label,
            str(row.pairs),
            format_percent(row.acceptance_rate),
            format_decimal(row.tokens_per_forward),
            format_speedup(row.speedup_ratio),
        )
        for row in sorted(rows, key=lambda row: row.category or "")
    ]
    headers = ("class", "arm", "identical pairs", "acceptance", "tok/fwd", "speed-up")
    page.add_table(headers, cells, numeric=range(2, 6))


def add_facts(page: Page, report: Report) -> None:
    """Add the expected facts: found by which arms, missed by which."""
    if not report.comparison.facts:
        return
    facts = report.comparison.facts
    whole = sum(1 for row in facts if not row.missing)
    page.add_heading(f"Expected facts: {whole} of {len(facts)} found by every arm")
    for row in facts:
        # What no arm found is in the notes: it says something about the model, not about the arms.
        if row.missing and row.found:
            place = f"{row.scenario}, {row.conversation}, turn {row.turn + 1}"
            found, missing = name_arms(row.found, report), name_arms(row.missing, report)
            page.add_item(f"{place}: {row.fact!r} found by {found}, missed by {missing}")
