"""The shipped scenarios: data files beside this module, which only finds them."""

from pathlib import Path

DIRECTORY = Path(__file__).parent


def scenario_paths() -> dict[str, Path]:
    """Return every shipped scenario file by its name, in alphabetical order."""
    return {path.stem: path for path in sorted(DIRECTORY.glob("*.toml"))}
