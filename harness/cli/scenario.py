"""``coli-ab scenario import``: make a scenario file of logged requests, without their secrets."""

import argparse
import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from engine_bindings.errors import ScenarioError, UsageError
from engine_bindings.regular_file import check_regular
from harness.cli.output import write_note, write_result
from harness.redaction import Redactor
from harness.request_log import UnsupportedRequestError, parse_logged_request
from harness.scenario import parse_scenario
from harness.scenario_format import MAX_CAP_TOKENS, MAX_NAME
from harness.scenario_import import DEFAULT_CAP_TOKENS, ImportedScenario, ScenarioImport
from harness.scenario_text import render_scenario

# A line of a log holds a request with its whole history; more is no log of requests.
MAX_LINE_BYTES = 64 << 20

DESCRIPTION = """\
Makes a scenario file of a log of OpenAI requests: JSON lines, each a body or a record with one under
request or body, or a directory of saved bodies (*.json, *.jsonl).

Requests that extend one another become the turns of one conversation. Keys, tokens, passwords, private
keys, e-mail addresses and home directories are taken out. Read the file before you give it away: no rule
knows every secret.
"""

EPILOG = """\
examples:
  coli-ab scenario import agent.jsonl
      writes agent.toml beside it, and says what was left out and redacted
  coli-ab scenario import saved/ --out talk.toml --redact "ACME Corp"
      a directory of bodies, and a name of your own taken out as well
  coli-ab compare --scenario agent.toml
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("scenario", help="make a scenario file of logged requests")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    action = actions.add_parser(
        "import",
        help="from a log of OpenAI requests, or a directory of saved bodies",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    action.add_argument("source", type=Path, metavar="LOG|DIR")
    action.add_argument(
        "--out", type=Path, metavar="FILE", help="scenario file (default: the log's name, .toml)"
    )
    action.add_argument("--name", metavar="NAME", help="name of the scenario (default: from the file's name)")
    action.add_argument(
        "--max-tokens",
        type=int,
        default=DEFAULT_CAP_TOKENS,
        metavar="N",
        help="cap of turns whose request names none (default: %(default)s)",
    )
    action.add_argument(
        "--redact", action="append", default=[], metavar="TEXT", help="take this out too; may be repeated"
    )
    action.add_argument("--force", action="store_true", help="write over a file that is there")
    action.set_defaults(run=run_import)


def run_import(arguments: argparse.Namespace) -> int:
    """Write the scenario file and say what is not in it."""
    out = arguments.out or Path(arguments.source.with_suffix(".toml").name)
    if not 1 <= arguments.max_tokens <= MAX_CAP_TOKENS:
        raise UsageError(f"--max-tokens {arguments.max_tokens} is out of range 1 to {MAX_CAP_TOKENS}")
    if out.exists() and not arguments.force:
        raise UsageError(f"{out}: the file is there already", hint="name another with --out, or give --force")
    redactor = Redactor(arguments.redact)
    reader = ScenarioImport(redactor, default_cap=arguments.max_tokens)
    for place, text in read_requests(arguments.source):
        try:
            reader.add(parse_logged_request(text, place))
        except UnsupportedRequestError as error:
            reader.refuse(place, str(error))
    name = arguments.name or _slug(redactor.redact(out.stem))
    imported = reader.build(name, f"Imported from {arguments.source.name}")
    text = render_scenario(imported.scenario)
    # What is written must be read again; names and texts come from outside.
    parse_scenario(text, str(out), lambda _: "")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror}", hint="name another file with --out") from error
    write_note("".join(f"{note}\n" for note in imported.notes))
    write_result(_describe(imported, redactor, out))
    return 0


def read_requests(source: Path) -> Iterator[tuple[str, str]]:
    """Yield the text of each request with its place.

    Raises:
        ScenarioError: nothing that can be read is there.
    """
    if not source.is_dir():
        yield from _read_lines(source, "")
        return
    files = sorted(path for path in source.iterdir() if path.suffix in (".json", ".jsonl", ".ndjson"))
    if not files:
        raise ScenarioError(f"{source}: no *.json and no *.jsonl in it", hint="name the log itself")
    for path in files:
        _check_regular(path)
        if path.suffix == ".json":
            yield path.name, _read_text(path)
        else:
            yield from _read_lines(path, f"{path.name} ")


def _check_regular(path: Path) -> None:
    # A log that is named may well be a pipe; one that lies in a directory would be waited for without a word.
    try:
        check_regular(path)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}", hint="take it out of the directory") from error


def _read_lines(path: Path, prefix: str) -> Iterator[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                if len(line) > MAX_LINE_BYTES:
                    hint = "it should hold one JSON object a line"
                    raise ScenarioError(
                        f"{path}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes", hint=hint
                    )
                if line.strip():
                    yield f"{prefix}line {number}", _decode(line)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LINE_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    return _decode(data)


def _decode(data: bytes) -> str:
    """Return text without a byte order mark; bytes that are no UTF-8 stay visible, and are refused."""
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:MAX_NAME].strip("-") or "imported"


def _describe(imported: ImportedScenario, redactor: Redactor, out: Path) -> str:
    scenario = imported.scenario
    lines = [
        f"{out}: scenario {scenario.name!r}, {imported.requests} requests in"
        f" {len(scenario.conversations)} conversations, {scenario.turn_count} turns,"
        f" {scenario.worst_case_tokens:,} tokens at most in one cell"
    ]
    found = ", ".join(f"{count} x {kind}" for kind, count in redactor.found.items())
    lines.append(f"redacted: {found or 'nothing was found'}; no rule knows every secret, so read the file")
    return "\n".join(lines) + "\n"
