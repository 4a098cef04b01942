"""On what a run was made: machine, versions, engine and model."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.binding import is_engine_variable
from engine_bindings.fingerprint import EngineFingerprint, ModelFingerprint, read_version
from harness.conditions import read_conditions
from harness.transcript import Conditions

CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFacts:
    """One engine and its model.

    Attributes:
        name: of the build; empty for one engine alone.
        commit: of the source tree that the engine lies in, with ``dirty`` behind it where files are changed;
            None outside one.
        model_storage: file system and device of the model. model_cached_ratio: the share of the weights in
            the page cache before the first cell. None where the system does not tell.
    """

    name: str
    engine: EngineFingerprint
    model: ModelFingerprint
    commit: str | None = None
    model_storage: str | None = None
    model_cached_ratio: float | None = None

    @property
    def identity(self) -> dict[str, str]:
        """What makes it another build, by variable."""
        return {
            "engine": f"{self.engine.name} {self.engine.digest[:16]}",
            "model weights": self.model.weights_digest[:16],
            "model config": self.model.config_digest[:16],
            "tokenizer": self.model.tokenizer_digest[:16],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The record in environment.json.

    Attributes:
        run_id: name of the run.
        started_at: time of day, ISO 8601.
        version: of this tool.
        command: its command line.
        removed_variables: engine variables that were set outside and kept from the engine; names only.
        load_average: of the last minute, before the first cell.
        engine, model: of the first build, or of the only one. builds: all of them.
        conditions: the state of the machine before the first cell.
    """

    run_id: str
    started_at: str
    version: str
    command: tuple[str, ...]
    python: str
    operating_system: str
    machine: str
    cpu: str
    cpu_count: int
    memory_bytes: int | None
    load_average: float | None
    removed_variables: tuple[str, ...]
    engine: EngineFingerprint
    model: ModelFingerprint
    builds: tuple[BuildFacts, ...] = ()
    conditions: Conditions | None = None

    @property
    def processors(self) -> str:
        """What the runs of one machine have in common."""
        return _describe_processors(self.cpu, self.cpu_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildAfter:
    """What a build was when its run ended; where that cannot be told, ``problem`` says why."""

    name: str
    identity: dict[str, str] | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentAfter:
    """The record in environment_after.json: the builds each time that the run ended, also by an interruption.

    A server that was found running is not among them: its word was no proof at the start either.
    """

    builds: tuple[BuildAfter, ...]


def list_replaced(before: Environment, after: EnvironmentAfter | None) -> tuple[str, ...]:
    """Say what of each engine and model was another when the run ended, in plain sentences."""
    known = {build.name: build.identity for build in before.builds}
    sentences = []
    for build in after.builds if after else ():
        name = f"{build.name}: " if build.name else ""
        if build.identity is None:
            sentences.append(f"{name}{build.problem}")
            continue
        was = known.get(build.name, {})
        sentences += [
            f"{name}{variable} changed while the run went on, from {was[variable]} to {value}"
            for variable, value in build.identity.items()
            if variable in was and was[variable] != value
        ]
    return tuple(dict.fromkeys(sentences))


def read_environment(
    *,
    run_id: str,
    started_at: str,
    command: tuple[str, ...],
    variables: Mapping[str, str],
    builds: Sequence[BuildFacts],
) -> Environment:
    """Read the machine's part and put the record together; ``builds`` are all engines, in order."""
    return Environment(
        run_id=run_id,
        started_at=started_at,
        version=read_version(),
        command=command,
        python=platform.python_version(),
        operating_system=platform.platform(),
        machine=platform.machine(),
        cpu=_read_cpu_name(),
        cpu_count=_count_cpus(),
        memory_bytes=_read_memory_bytes(),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        removed_variables=tuple(sorted(filter(is_engine_variable, variables))),
        engine=builds[0].engine,
        model=builds[0].model,
        builds=tuple(builds),
        conditions=read_conditions(),
    )


def read_processors() -> str:
    """Return what :attr:`Environment.processors` is on this machine."""
    return _describe_processors(_read_cpu_name(), _count_cpus())


def _describe_processors(cpu: str, count: int) -> str:
    return f"{cpu}, {count} CPUs"


def _count_cpus() -> int:
    return os.cpu_count() or 1


def _read_cpu_name() -> str:
    try:
        lines = CPU_INFO.read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _read_memory_bytes() -> int | None:
    if sys.platform == "win32":
        return None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
