"""What ``compare --dry-run`` prints: cells, tokens at most, and the settings that would be pinned."""

from collections.abc import Sequence

from tabulate import tabulate

from engine_bindings.binding import Pin
from harness.budget import describe_price
from harness.cli.subjects import Subject
from harness.plan import Arm, Plan
from harness.runner import Launcher
from harness.speed_words import describe_settled


def render_dry_run(plan: Plan, launcher: Launcher, subjects: Sequence[Subject]) -> str:
    """Return the text; no engine is started."""
    recorded = sum(plan.is_recorded(spec.arm) for spec in plan.cells)
    lines = [
        *(line for subject in subjects for line in _subject_lines(plan, launcher, subject)),
        f"cells    {len(plan.cells) - recorded}, one engine start each"
        + (f"; {recorded} more are taken from the baseline" if recorded else ""),
        f"tokens   {describe_price(plan)}",
        f"minutes  {_describe_minutes(plan)}",
        *_speed_lines(plan),
        *plan.left_out,
        "",
        "in this order:",
        *_cell_lines(plan),
        "",
        "settings pinned for every arm (--set NAME=VALUE replaces one):",
        tabulate(_pin_rows(plan, launcher), tablefmt="plain"),
    ]
    return "\n".join(lines) + "\n"


def _describe_minutes(plan: Plan) -> str:
    minutes = plan.worst_case_tokens / 60
    rates = f"{minutes:,.0f} at 1 token a second, {minutes / 10:,.0f} at 10"
    return f"at most {rates}; starts and prefill come on top"


def _speed_lines(plan: Plan) -> list[str]:
    if plan.speed is None:
        return []
    return ["", "how speed is judged:", *(f"  - {text}" for text in describe_settled(plan.speed))]


def _subject_lines(plan: Plan, launcher: Launcher, subject: Subject) -> list[str]:
    arm = next(arm for arm in plan.arms if arm.build == subject.label)
    label = f"{subject.label}: " if subject.label else ""
    launch = launcher.launch(arm, plan.scenarios[0])
    started = " ".join(launch.argv) or "runs already"
    model = subject.model_dir or next((pin.value for pin in launch.pins if pin.name == "model"), "its own")
    return [f"engine   {label}{subject.engine}: {started}", f"model    {label}{model}"]


def _cell_lines(plan: Plan) -> list[str]:
    rows = [
        (number, spec.key, f"at most {plan.scenario(spec.scenario).worst_case_tokens:,} tokens")
        for number, spec in enumerate((s for s in plan.cells if not plan.is_recorded(s.arm)), start=1)
    ]
    return [tabulate(rows, tablefmt="plain")]


def _pin_rows(plan: Plan, launcher: Launcher) -> list[tuple[str, str, str]]:
    """Return name, value and reason of each pin; a value that differs between arms is given for each."""
    by_name: dict[str, list[tuple[Arm, str, Pin]]] = {}
    for arm in plan.arms:
        for scenario in plan.scenarios:
            if arm.slots not in (1, scenario.slots) or plan.is_recorded(arm):
                continue
            if plan.entry(arm, scenario) is None:
                continue
            for pin in launcher.launch(arm, scenario).pins:
                by_name.setdefault(pin.name, []).append((arm, scenario.name, pin))
    return [(name, _values(uses), uses[0][2].reason) for name, uses in by_name.items()]


def _values(uses: list[tuple[Arm, str, Pin]]) -> str:
    if len({pin.value for _, _, pin in uses}) == 1:
        return uses[0][2].value
    by_arm = {arm.label: {p.value for a, _, p in uses if a == arm} for arm, _, _ in uses}
    if all(len(values) == 1 for values in by_arm.values()):
        return ", ".join(f"{label}: {values.pop()}" for label, values in by_arm.items())
    by_scenario = {name: pin.value for _, name, pin in uses}
    return ", ".join(f"{name}: {value}" for name, value in by_scenario.items())
