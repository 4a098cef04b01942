"""Finds what a build of the colibri engine holds: the binary, its command line, its HTTP gateway."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.errors import UsageError

# A source tree, its folder of sources, and an installed prefix, in the order in which they are looked for.
ENGINE_PLACES = ("colibri", "c/colibri", "libexec/colibri/colibri")
CLI_PLACES = ("coli", "c/coli", "bin/coli")
# The command line and the gateway are Python files beside `coli`, or in the libexec folder of a prefix.
LIBRARY_PLACES = (".", "../libexec/colibri")
CLI_MODULE = "tools/coli_cli.py"
GATEWAY_MODULE = "openai_server.py"
VERSION_MODULE = "version.py"
VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColibriBuild:
    """What was found.

    Attributes:
        engine: the binary.
        cli: the command line `coli`, None where only the binary was named or it is not there.
        sources: the Python files that the command line and the gateway are made of.
        version: as the build's ``version.py`` says it; None when there is none.
        missing: the paths that this build cannot offer, each with the reason.
    """

    engine: Path
    cli: Path | None = None
    sources: tuple[Path, ...] = ()
    version: str | None = None
    missing: tuple[tuple[str, str], ...] = ()


def find_build(location: str | None) -> ColibriBuild:
    """Return what ``--engine colibri=LOCATION`` names: a binary, or the directory of a build.

    Raises:
        UsageError: no location, or no binary there that can be run.
    """
    if location is None:
        raise UsageError(
            "--engine colibri: no build named",
            hint="--engine colibri=PATH, the engine's binary or the directory that holds it and coli",
        )
    directory = Path(location)
    if directory.is_dir():
        return _read_directory(directory.absolute())
    found = shutil.which(location)
    if found is None:
        what = "it may not be executed" if directory.is_file() else "no executable file there"
        raise UsageError(
            f"--engine colibri={location}: {what}",
            hint="make it executable with chmod +x, or name the directory of a build"
            if directory.is_file()
            else "name the engine's binary, or the directory of its build",
        )
    why = "only the engine's binary was named; name the directory of the build to have it too"
    return ColibriBuild(
        engine=Path(found).absolute(),
        version=_read_version(Path(found).absolute().parent),
        missing=(("cli", why), ("gateway", why)),
    )


def _read_directory(directory: Path) -> ColibriBuild:
    engine = _find_file(directory, ENGINE_PLACES, mode=os.X_OK)
    if engine is None:
        if (found := _find_file(directory, ENGINE_PLACES)) is not None:
            raise UsageError(
                f"--engine colibri={directory}: {found} may not be executed",
                hint="make it executable with chmod +x, or name another build",
            )
        places = ", ".join(str(directory / place) for place in ENGINE_PLACES)
        raise UsageError(
            f"--engine colibri={directory}: no engine binary in it",
            hint=f"build it with make; looked for {places}",
        )
    cli = _find_file(directory, CLI_PLACES)
    if cli is None:
        places = ", ".join(str(directory / place) for place in CLI_PLACES)
        why = f"no coli in the build; looked for {places}"
        return ColibriBuild(
            engine=engine,
            version=_read_version(engine.parent),
            missing=(("cli", why), ("gateway", why)),
        )
    return _add_front_ends(engine, cli)


def _add_front_ends(engine: Path, cli: Path) -> ColibriBuild:
    module, gateway = _find_module(cli, CLI_MODULE), _find_module(cli, GATEWAY_MODULE)
    missing = []
    # Without its module the launcher of today fails; a launcher that is the whole command line has none.
    if module is None and CLI_MODULE.encode() in cli.read_bytes():
        missing += [(path, f"{cli} needs {CLI_MODULE}, which is not there") for path in ("cli", "gateway")]
    elif gateway is None:
        missing.append(("gateway", f"{cli} needs {GATEWAY_MODULE}, which is not there"))
    return ColibriBuild(
        engine=engine,
        cli=cli,
        sources=tuple(path for path in (cli, module, gateway) if path is not None),
        version=_read_version(engine.parent),
        missing=tuple(missing),
    )


def _find_file(directory: Path, places: tuple[str, ...], *, mode: int = os.F_OK) -> Path | None:
    paths = (directory / place for place in places)
    return next((path for path in paths if path.is_file() and os.access(path, mode)), None)


def _find_module(cli: Path, name: str) -> Path | None:
    paths = (cli.parent / place / name for place in LIBRARY_PLACES)
    return next((path for path in paths if path.is_file()), None)


def _read_version(directory: Path) -> str | None:
    try:
        text = (directory / VERSION_MODULE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = VERSION.search(text)
    return found[1] if found else None
