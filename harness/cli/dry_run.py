"""What ``compare --dry-run`` prints: cells, tokens at most, and the settings that would be pinned."""

from tabulate import tabulate

from engine_bindings.binding import Pin
from harness.budget import describe_price
from harness.drivers.launcher import EngineLauncher
from harness.plan import Arm, Plan


def render_dry_run(plan: Plan, launcher: EngineLauncher) -> str:
    """Return the text; no engine is started."""
    argv = launcher.launch(plan.arms[0], plan.scenarios[0]).argv
    lines = [
        f"engine   {plan.engine}: {' '.join(argv)}",
        f"model    {launcher.model_dir}",
        f"cells    {len(plan.cells)}, one engine start each",
        f"tokens   {describe_price(plan)}",
        *plan.left_out,
        "",
        "in this order:",
        *_cell_lines(plan),
        "",
        "settings pinned for every arm (--set NAME=VALUE replaces one):",
        tabulate(_pin_rows(plan, launcher), tablefmt="plain"),
    ]
    return "\n".join(lines) + "\n"


def _cell_lines(plan: Plan) -> list[str]:
    rows = [
        (number, spec.key, f"at most {plan.scenario(spec.scenario).worst_case_tokens:,} tokens")
        for number, spec in enumerate(plan.cells, start=1)
    ]
    return [tabulate(rows, tablefmt="plain")]


def _pin_rows(plan: Plan, launcher: EngineLauncher) -> list[tuple[str, str, str]]:
    """Return name, value and reason of each pin; a value that differs between arms is given for each."""
    by_name: dict[str, list[tuple[Arm, str, Pin]]] = {}
    for arm in plan.arms:
        for scenario in plan.scenarios:
            if arm.slots not in (1, scenario.slots):
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
