"""Fits the grammar of a scenario to what the engine can do with one."""

from dataclasses import replace

from engine_bindings.binding import Binding
from engine_bindings.errors import UsageError
from harness.scenario import Scenario


def fit_grammar(scenario: Scenario, binding: Binding) -> Scenario:
    """Return the scenario as this engine is held to it: one that only drafts from a grammar is not bound.

    Raises:
        UsageError: the scenario has a grammar and the engine takes none.
    """
    support = binding.capabilities.grammar
    if scenario.grammar is None or support == "constraint":
        return scenario
    if support == "none":
        raise UsageError(
            f"scenario {scenario.name!r} has a grammar, and the engine {binding.name!r} takes none",
            hint="leave the scenario out",
        )
    return replace(scenario, grammar=replace(scenario.grammar, binds=False))
