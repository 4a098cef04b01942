"""Starts one engine process for a cell and makes sure that nothing of it is left afterwards."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from engine_bindings.binding import ArmSettings, Binding, Launch, Pin
from engine_bindings.model_directory import private_model_directory
from harness.drivers.base import EngineSession
from harness.drivers.chat_session import ChatSession
from harness.drivers.guard import ProcessGuard
from harness.drivers.process import EngineProcess
from harness.drivers.serve_session import ServeSession
from harness.drivers.slots_session import SlotsSession
from harness.drivers.stderr_log import StderrLog
from harness.drivers.stdio import OutputCallback, StdioSession
from harness.plan import Arm, Timeouts
from harness.scenario import Scenario

_SESSIONS: dict[str, type[StdioSession]] = {"chat": ChatSession, "serve": ServeSession}


@dataclass(kw_only=True)
class EngineLauncher:
    """Starts the engine of one binding on one model. Use it as a context manager around a run.

    Attributes:
        binding: which engine.
        model_dir: the model; the engine sees links to its files in a directory of its own.
        timeouts: the limits on waiting.
        overrides: settings that the user fixed, for every arm alike.
        context_tokens: size of the context for scenarios that ask for none; None is the engine's default.
        inherited: the environment that the engine's is made from.
    """

    binding: Binding
    model_dir: Path
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
        settings = ArmSettings(
            path=arm.path,
            depth=arm.depth,
            cap_tokens=scenario.cap_tokens,
            context_tokens=scenario.context_tokens or self.context_tokens,
            temperature=scenario.temperature,
            top_p=scenario.top_p,
            slots=arm.slots,
        )
        launch = self.binding.launch(settings, self.overrides)
        return replace(launch, pins=(*launch.pins, *extra))

    @contextlib.contextmanager
    def open(
        self,
        arm: Arm,
        scenario: Scenario,
        extra: Iterable[Pin] = (),
        *,
        stderr_file: BinaryIO,
        on_output: OutputCallback,
    ) -> Iterator[EngineSession]:
        """Start an engine in a directory of its own; leaving the block kills what still runs of it.

        Raises:
            EngineStartError: the system cannot run the program.
        """
        log = StderrLog(stderr_file)
        with private_model_directory(self.model_dir) as private:
            process = EngineProcess.start(
                self.launch(arm, scenario, extra),
                inherited=self.inherited,
                model_dir=private,
                log=log,
                guard=self._guard,
            )
            try:
                session = SlotsSession if arm.slots > 1 else _SESSIONS[arm.path]
                yield session(process, log, self.timeouts, on_output=on_output)
            finally:
                process.kill()
