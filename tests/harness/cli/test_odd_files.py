"""A pipe, a device or a directory where a file belongs is one clear message, and is never waited for.

Each command runs in a process of its own with a limit, as the tool hung on some of these.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Arguments = Callable[..., list[str]]
PROGRAM = "import sys; from harness.cli import main; sys.exit(main(sys.argv[1:]))"
REPOSITORY = Path(__file__).parents[3]
# Nothing here takes a tenth of it.
LIMIT_S = 120.0


def refuse(arguments: list[str]) -> str:
    """Return what a command says that is refused as a wrong request."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        cwd=REPOSITORY,
        check=False,
    )
    said = ended.stderr.decode()
    assert ended.returncode == 2, said
    assert "bug" not in said
    return said


def replace(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_in_a_model(name: str, kind: str, compare_arguments: Arguments, model_dir: Path) -> None:
    replace(model_dir / name, kind)

    assert f"{model_dir / name}: " in refuse(compare_arguments("healthy"))


def test_in_a_model_beside_what_is_read(compare_arguments: Arguments, model_dir: Path) -> None:
    replace(model_dir / "generation_config.json", "pipe")

    said = refuse(compare_arguments("healthy"))
    assert f"{model_dir / 'generation_config.json'}: a named pipe, and not a regular file" in said


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_as_a_scenario(kind: str, compare_arguments: Arguments, scenario_file: Path) -> None:
    arguments = compare_arguments("healthy")
    replace(scenario_file, kind)

    assert f"{kind}, and not a regular file" in refuse(arguments)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_as_a_file_of_a_scenario(
    kind: str, compare_arguments: Arguments, scenario_file: Path, tmp_path: Path
) -> None:
    scenario_file.write_text(scenario_file.read_text().replace('user = "Again"', 'user_file = "again.txt"'))
    replace(tmp_path / "again.txt", kind)

    assert f"{kind}, and not a regular file" in refuse(compare_arguments("healthy"))


def test_a_name_that_no_file_can_have(compare_arguments: Arguments, scenario_file: Path) -> None:
    scenario_file.write_text(scenario_file.read_text().replace('user = "Again"', r'user_file = "a\u0000b"'))

    assert "no file has such a name" in refuse(compare_arguments("healthy"))


def test_tables_nested_too_deeply(compare_arguments: Arguments, scenario_file: Path, model_dir: Path) -> None:
    scenario_file.write_text("a = " + 5_000 * "[" + 5_000 * "]")
    assert "nested too deeply" in refuse(compare_arguments("healthy"))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["analyze"], "plan.json"),
        (["report"], "report.json"),
        (["compare", "--resume"], "arguments.json"),
        (["certificate", "show"], "certificate.json"),
    ],
)
def test_in_a_run(command: list[str], name: str, tmp_path: Path) -> None:
    replace(tmp_path / name, "pipe")

    assert f"{tmp_path / name}: " in refuse([*command, str(tmp_path)])


def test_as_a_history(tmp_path: Path) -> None:
    replace(tmp_path / "index", "pipe")

    assert "a named pipe, and not a regular file" in refuse(
        ["history", "--db", str(tmp_path / "index"), "list"]
    )


def test_in_a_directory_of_logs(tmp_path: Path) -> None:
    replace(tmp_path / "a.json", "pipe")

    assert "a named pipe, and not a regular file" in refuse(["scenario", "import", str(tmp_path)])
