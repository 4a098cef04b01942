"""Starts the engines of several builds: each arm is asked of the launcher of its build."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import BinaryIO, Self

from engine_bindings.binding import Launch, Pin
from harness.drivers.base import EngineSession
from harness.drivers.launcher import EngineLauncher
from harness.drivers.left_files import LeftCallback, ignore_left
from harness.plan import Arm
from harness.scenario import Scenario


class BuildsLauncher:
    """The launchers of all builds by name, as one. Use it as a context manager around a run."""

    def __init__(self, launchers: Mapping[str, EngineLauncher]) -> None:
        self._launchers = dict(launchers)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for launcher in self._launchers.values():
            self._stack.enter_context(launcher)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def launch(self, arm: Arm, scenario: Scenario, extra: Iterable[Pin] = ()) -> Launch:
        """Return how the engine of an arm is started."""
        return self._launchers[arm.build].launch(arm, scenario, extra)

    def open(
        self,
        arm: Arm,
        scenario: Scenario,
        extra: Iterable[Pin] = (),
        *,
        stderr_file: BinaryIO,
        on_output: Callable[[int], None],
        on_left: LeftCallback = ignore_left,
    ) -> AbstractContextManager[EngineSession]:
        """Start the engine of an arm."""
        launcher = self._launchers[arm.build]
        return launcher.open(
            arm, scenario, extra, stderr_file=stderr_file, on_output=on_output, on_left=on_left
        )
