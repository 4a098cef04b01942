"""The process ``coli-ab-engine``: arguments and environment in, one of four modes run, an exit status out.

The BLAS library reads its thread count when NumPy is imported, so what imports NumPy is imported after
``main`` has fixed it: one thread, which is the fastest at this model's size and the same on every machine.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from engine_bindings.errors import UsageError
from engine_bindings.reference.settings import VARIABLES, read_settings

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
USAGE_STATUS = 2
OUTPUT_CLOSED_STATUS = 1
MAX_NUMBERS = 3
DESCRIPTION = """\
A small engine with the outside of colibri: the same protocols on stdin and stdout, the same environment
variables, the same lines on stderr, around a GLM-shaped model in NumPy.

modes, chosen by the environment:
  SERVE=1                  chat mode: typed lines, or \\x02PROMPT frames with an exact prompt
  SERVE=1 SERVE_BATCH=1    serve mode: SUBMIT, STOP and CANCEL frames on KV_SLOTS contexts
  PROMPT="text"            one-shot: print the answer and the run's numbers
  none of these            oracle: compare with the token ids in REF

try:
  PROMPT="<|user|>Count from 3 to 9<|assistant|><think></think>" COLI_TEMP=0 DRAFT=3 coli-ab-engine
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine and return its exit status.

    0 after the end of input or SIGTERM, 1 when the output was closed or the input broke its protocol, 2 for a
    request that cannot be carried out.
    """
    parser = build_parser()
    options = parser.parse_args(argv)
    if len(options.numbers) > MAX_NUMBERS:
        parser.error("at most three numbers: cap expert_bits dense_bits")
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    if options.list_defects:
        return _list_defects(as_json=options.json)
    from engine_bindings.reference.defects.registry import build_rules  # noqa: PLC0415 - imports NumPy
    from engine_bindings.reference.modes import run_mode  # noqa: PLC0415 - the same

    try:
        settings = read_settings(
            os.environ,
            kernels=options.kernels,
            numbers=options.numbers,
            defects=options.defect,
            force_accept=options.force_accept,
        )
        return run_mode(settings, build_rules(settings))
    except UsageError as error:
        print(f"coli-ab-engine: {error}", file=sys.stderr)
        return USAGE_STATUS
    except BrokenPipeError:
        return OUTPUT_CLOSED_STATUS


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; its help lists the environment variables from their one declaration."""
    parser = argparse.ArgumentParser(
        prog="coli-ab-engine",
        description=DESCRIPTION,
        epilog=describe_variables(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "numbers",
        nargs="*",
        type=int,
        metavar="NUMBER",
        help="cap expert_bits dense_bits: taken as the real engine takes them; this one computes in float32",
    )
    parser.add_argument("--kernels", choices=("invariant", "int8-batch"), help="wins over REF_KERNELS")
    parser.add_argument(
        "--defect", metavar="NAME[,NAME]", help="run with seeded defects; wins over REF_DEFECT"
    )
    parser.add_argument(
        "--force-accept",
        choices=("accept", "reject", "alternate", "cycle"),
        help="choose what verify finds in the drafts; wins over REF_FORCE_ACCEPT",
    )
    parser.add_argument("--list-defects", action="store_true", help="explain the seeded defects and exit")
    parser.add_argument("--json", action="store_true", help="with --list-defects: as JSON")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    return parser


def _list_defects(*, as_json: bool) -> int:
    from engine_bindings.reference.defects.listing import render_json, render_table  # noqa: PLC0415 - imports NumPy

    try:
        print(render_json() if as_json else render_table(), flush=True)
    except BrokenPipeError:  # the reader has seen enough, as with ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def describe_variables() -> str:
    """Return the table of environment variables."""
    rows = (f"  {v.name:<22}{v.meaning} ({v.default}; {v.modes})" for v in VARIABLES)
    return "\n".join(("environment variables (default; modes):", *rows))


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: reading package metadata is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow

        try:
            found = version("coli-ab")
        except PackageNotFoundError:
            found = "from a source tree that is not installed"
        parser.exit(message=f"coli-ab-engine {found}\n")


if __name__ == "__main__":
    sys.exit(main())
