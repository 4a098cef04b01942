"""The command line of the server, read into ServerSettings."""

import argparse
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine_bindings.errors import UsageError
from server.settings import ServerSettings

KEY_VARIABLE = "COLI_AB_API_KEY"
DEFAULTS = ServerSettings()
MAX_KV_SLOTS = 16
MAX_DEPTH = 8


def build_parser(program: str) -> argparse.ArgumentParser:
    """Return the parser; its help is the reference of the options."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="OpenAI-compatible server. It speculates only on a certificate for exactly what it runs.",
    )
    _add_engine_options(parser)
    _add_network_options(parser)
    _add_limit_options(parser)
    return parser


def read_options(arguments: Sequence[str], environment: Mapping[str, str], program: str) -> ServerSettings:
    """Return the settings.

    Raises UsageError for values that contradict each other; exits 2 for malformed ones.
    """
    values = vars(build_parser(program).parse_args(arguments))
    values["api_key"] = values["api_key"] or environment.get(KEY_VARIABLE) or None
    settings = ServerSettings(**values)
    if settings.api_key is None and not is_loopback(settings.host):
        raise UsageError(
            f"--host {settings.host} can be reached from outside, and there is no key",
            hint=f"give --api-key, or set {KEY_VARIABLE}, or bind to 127.0.0.1",
        )
    return settings


def is_loopback(host: str) -> bool:
    """Say whether a host name or address reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--engine",
        default=DEFAULTS.engine,
        metavar="NAME[=PATH]",
        help="engine to start (default: %(default)s)",
    )
    group.add_argument("--model", dest="model_dir", type=Path, metavar="DIR", help="model directory")
    group.add_argument("--model-id", metavar="NAME", help="name in requests (default: the directory's)")
    group.add_argument(
        "--certificate",
        type=Path,
        metavar="RUN|FILE",
        help="run directory or certificate.json that allows MTP",
    )
    group.add_argument(
        "--key-file", type=Path, metavar="FILE", help="key that the certificate is sealed with"
    )
    group.add_argument(
        "--kv-slots",
        type=WholeNumber(1, MAX_KV_SLOTS),
        default=1,
        metavar="N",
        help="requests at once; above 1 MTP is off",
    )
    group.add_argument(
        "--depth",
        type=WholeNumber(0, MAX_DEPTH),
        metavar="K",
        help="draft depth, at most the certified one; 0 is off",
    )
    group.add_argument("--require-mtp", action="store_true", help="refuse to start when MTP would be off")
    group.add_argument(
        "--context", dest="context_tokens", type=WholeNumber(16, 1 << 20), default=DEFAULTS.context_tokens,
        metavar="N", help="context in tokens (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--audit", dest="audit_rate", type=_rate, default=0.0, metavar="RATE",
        help="share of greedy answers that is replayed without speculation, 0 to 1",
    )  # fmt: skip
    group.add_argument(
        "--audit-dir", type=Path, default=DEFAULTS.audit_dir, metavar="DIR", help="where differences are kept"
    )


def _add_network_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument("--host", default=DEFAULTS.host, help="address to bind to (default: %(default)s)")
    group.add_argument(
        "--port",
        type=WholeNumber(0, 65535),
        default=DEFAULTS.port,
        help="0 takes a free one (default: %(default)s)",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"key that requests must carry; better in the variable {KEY_VARIABLE}",
    )


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--queue", dest="queue_limit", metavar="N", type=WholeNumber(0, 100_000),
        default=DEFAULTS.queue_limit, help="requests that may wait; more get 429 (default: %(default)s)",
    )  # fmt: skip
    limits = {
        "request": "longest time for a request, waiting included",
        "start": "longest time for the engine to get ready",
        "first-output": "longest silence of the engine before the first token of an answer",
        "progress": "longest silence of the engine after that, before it is started again",
        "send": "longest time that a client may leave an answer unread",
    }
    for name, text in limits.items():
        field = f"{name.replace('-', '_')}_timeout_s"
        group.add_argument(
            f"--{name}-timeout", dest=field, type=_seconds, metavar="S",
            default=getattr(DEFAULTS, field), help=f"{text} (default: %(default)g s)",
        )  # fmt: skip


class WholeNumber:
    """Converts an option to a whole number between two bounds."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def __call__(self, text: str) -> int:
        """Convert; argparse turns both kinds of error into a message."""
        value = int(text)
        if not self._low <= value <= self._high:
            raise argparse.ArgumentTypeError(f"{value} is not between {self._low} and {self._high}")
        return value

    def __repr__(self) -> str:
        return "whole number"


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value
