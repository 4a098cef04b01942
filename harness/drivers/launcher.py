"""Starts one engine process for a cell and makes sure that nothing of it is left afterwards."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from engine_bindings.binding import ArmSettings, Binding, Capabilities, Launch, Pin
from harness.drivers.base import EngineSession
from harness.drivers.gateway_opening import open_gateway
from harness.drivers.guard import ProcessGuard
from harness.drivers.http_opening import open_http
from harness.drivers.left_files import LeftCallback, ignore_left
from harness.drivers.llamacpp_opening import open_llamacpp
from harness.drivers.opening import Opening, open_chat, open_serve, open_terminal
from harness.drivers.stderr_log import StderrLog
from harness.drivers.stdio import OutputCallback
from harness.grammar import Grammar
from harness.plan import Arm, Timeouts
from harness.scenario import Scenario

DRIVERS: dict[str, Callable[[Opening], AbstractContextManager[EngineSession]]] = {
    "chat": open_chat,
    "serve": open_serve,
    "gateway": open_gateway,
    "http": open_http,
    "llamacpp": open_llamacpp,
    "terminal": open_terminal,
}
"""How a session is opened, by the driver that a binding's :class:`Launch` names."""


@dataclass(kw_only=True)
class EngineLauncher:
    """Starts the engine of one binding on one model. Use it as a context manager around a run.

    Attributes:
        binding: which engine.
        model_dir: the model; the engine sees links to its files in a directory of its own. None where a
            server is reached that has its model.
        timeouts: the limits on waiting.
        overrides: settings that the user fixed, for every arm alike.
        context_tokens: size of the context for scenarios that ask for none; None is the engine's default.
        inherited: the environment that the engine's is made from.
    """

    binding: Binding
    model_dir: Path | None
    timeouts: Timeouts
    overrides: Mapping[str, str] = field(default_factory=dict)
    context_tokens: int | None = None
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __enter__(self) -> Self:
        self._guard = ProcessGuard().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guard.__exit__(kind, error, trace)

    def launch(self, arm: Arm, scenario: Scenario, extra: Iterable[Pin] = ()) -> Launch:
        """Return how the engine of an arm is started for a scenario, with ``extra`` settings of a probe."""
        grammar = _select_grammar(arm, scenario)
        settings = ArmSettings(
            path=arm.path,
            depth=arm.depth,
            cap_tokens=scenario.cap_tokens,
            context_tokens=scenario.context_tokens or self.context_tokens,
            temperature=scenario.temperature,
            top_p=scenario.top_p,
            grammar=grammar.kind if grammar else None,
            grammar_binds=grammar is not None and grammar.binds,
            slots=self._count_contexts(arm, scenario),
        )
        launch = self.binding.launch(settings, self.overrides)
        return replace(launch, pins=(*launch.pins, *extra))

    def _count_contexts(self, arm: Arm, scenario: Scenario) -> int:
        """Return how many contexts an engine needs: one for each request at once, or those turns name."""
        named = arm.slots == 1 and arm.path in self.binding.capabilities.context_paths
        return scenario.contexts if named else arm.slots

    @contextlib.contextmanager
    def open(
        self,
        arm: Arm,
        scenario: Scenario,
        extra: Iterable[Pin] = (),
        *,
        stderr_file: BinaryIO,
        on_output: OutputCallback,
        on_left: LeftCallback = ignore_left,
    ) -> Iterator[EngineSession]:
        """Start an engine in a directory of its own; leaving the block kills what still runs of it.

        Raises:
            EngineStartError: the system cannot run the program.
        """
        log = StderrLog(stderr_file)
        opening = Opening(
            launch=self.launch(arm, scenario, extra),
            slots=arm.slots,
            grammar=_select_grammar(arm, scenario),
            model_dir=self.model_dir,
            timeouts=self.timeouts,
            inherited=self.inherited,
            guard=self._guard,
            log=log,
            reported=_list_reported(self.binding.capabilities),
            on_output=on_output,
            on_left=on_left,
        )
        with contextlib.closing(log), DRIVERS[opening.launch.driver](opening) as session:
            yield session


def _list_reported(capabilities: Capabilities) -> frozenset[str]:
    """Return the counts that an engine on pipes writes to stderr for every turn."""
    told = {
        "cached_tokens": capabilities.reports_cached_tokens,
        "drafted_tokens": capabilities.reports_drafted,
    }
    return frozenset(name for name, is_told in told.items() if is_told)


def _select_grammar(arm: Arm, scenario: Scenario) -> Grammar | None:
    """Return the grammar that an arm gets, if any."""
    grammar = scenario.grammar
    return grammar if grammar is not None and grammar.is_for(arm.depth) else None
