"""``coli-ab certificate``: show what a certificate says, or hold it against what is on this machine."""

import argparse
import datetime
import os
from pathlib import Path

from engine_bindings.binding import ArmSettings
from engine_bindings.certificate import check_run_verdict, read_certificate, read_facts, verify_certificate
from engine_bindings.certificate_key import find_key_file, read_key
from engine_bindings.errors import UsageError
from engine_bindings.registry import find_binding
from harness.cli.output import write_result
from harness.cli.settings import find_model_dir, parse_settings
from reports.certificate import render_certificate, render_problems

EXIT_NOT_VALID = 1
VERIFY_EPILOG = """\
exit statuses: 0 valid, 1 not valid (every field that differs is named), 2 it cannot be checked
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "certificate",
        help="show or verify the certificate of a run that passed",
        description="A passing run is sealed in certificate.json; docs/certificate.md says what it covers.",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="what it says; the seal is not checked")
    show.add_argument("certificate", type=Path, metavar="RUN|FILE")
    show.set_defaults(run=run_show)
    verify = actions.add_parser(
        "verify",
        help="seal, time, and every fact against the engine and model as they are now",
        epilog=VERIFY_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("certificate", type=Path, metavar="RUN|FILE")
    verify.add_argument("--engine", default="reference", metavar="NAME[=PATH]", help="default: %(default)s")
    verify.add_argument("--model", type=Path, metavar="DIR", help="default: the engine's own")
    verify.add_argument("--depth", type=int, metavar="K", help="default: the certified one")
    verify.add_argument("--kv-slots", type=int, default=1, metavar="N", help="default: %(default)s")
    verify.add_argument("--set", action="append", default=[], dest="settings", metavar="NAME=VALUE")
    verify.add_argument("--key-file", type=Path, metavar="FILE", help="the key that it was sealed with")
    verify.set_defaults(run=run_verify)


def run_show(arguments: argparse.Namespace) -> int:
    """Print a certificate."""
    write_result(render_certificate(read_certificate(arguments.certificate)))
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Print whether a certificate is valid for what the options name, and why not."""
    certificate = read_certificate(arguments.certificate)
    binding = find_binding(arguments.engine)
    model_dir = find_model_dir(binding, arguments.model)
    if model_dir is None:
        raise UsageError(
            f"--engine {arguments.engine}: a running server has no certificate",
            hint="what it runs is its word only; name the engine and the model that it was started with",
        )
    depth = certificate.facts.depth if arguments.depth is None else arguments.depth
    overrides = parse_settings(arguments.settings)
    if arguments.kv_slots != 1:
        overrides = {**overrides, "KV_SLOTS": str(arguments.kv_slots)}
    launch = binding.launch(ArmSettings(path="serve", depth=depth, cap_tokens=1), overrides)
    problems = (
        *check_run_verdict(arguments.certificate),
        *verify_certificate(
            certificate,
            key=read_key(find_key_file(arguments.key_file, os.environ)),
            facts=read_facts(binding, model_dir, depth, arguments.kv_slots, launch.pins),
            now=datetime.datetime.now(datetime.UTC),
        ),
    )
    write_result(render_problems(problems))
    return EXIT_NOT_VALID if problems else 0
