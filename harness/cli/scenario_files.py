"""Finds scenario files by name or path and reads them with the files that they name."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from engine_bindings.errors import ScenarioError
from engine_bindings.regular_file import read_regular
from harness.scenario import Scenario, parse_scenario
from scenarios import scenario_paths

ALL = "all"
# More than four of the largest prompts that an engine takes.
MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedScenario:
    """A scenario and the texts that it was read from, by their names relative to the scenario file."""

    scenario: Scenario
    files: dict[str, str]


def load_scenarios(references: list[str]) -> tuple[LoadedScenario, ...]:
    """Read the scenarios that ``--scenario`` named: shipped names, paths of files, or ``all``.

    Raises:
        ScenarioError: nothing is there, or it is not a scenario.
    """
    shipped = scenario_paths()
    names = [name for reference in references for name in (shipped if reference == ALL else [reference])]
    return tuple(load_scenario(_find(name, shipped)) for name in names)


def _find(reference: str, shipped: dict[str, Path]) -> Path:
    if reference in shipped:
        return shipped[reference]
    path = Path(reference)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path
    near = get_close_matches(reference, shipped, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise ScenarioError(
        f"no scenario is called {reference!r}",
        hint=f"{guess}shipped: {', '.join(shipped)}; a file of your own is named by its path, with .toml",
    )


def load_scenario(path: Path) -> LoadedScenario:
    """Read one scenario file and the files beside it that it names."""
    files = {"scenario.toml": _read(path, str(path))}

    def read_text(name: str) -> str:
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise ScenarioError(
                f"{path}: {name!r} leads out of the scenario's directory",
                hint="keep the files of a scenario beside or below it, so that a run can hold a copy",
            )
        files[name] = _read(path.parent / name, f"{path}: {name}")
        return files[name]

    scenario = parse_scenario(files["scenario.toml"], str(path), read_text)
    return LoadedScenario(scenario=scenario, files=files)


def _read(path: Path, place: str) -> str:
    try:
        text = read_regular(path, limit_bytes=MAX_FILE_BYTES).decode("utf-8")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{place}: not UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise ScenarioError(f"{place}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise ScenarioError(f"{place!r}: {error}", hint="no file has such a name") from error
