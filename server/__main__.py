"""`python -m server`: reads the options, decides on MTP, says so on the first line, and serves."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from engine_bindings.errors import ColiAbError
from engine_bindings.model_directory import private_model_directory
from server.app import build_app
from server.audit_record import check_writable
from server.launch import Plan, check_again, plan_start
from server.options import read_options
from server.service import Service, build_service, command_for
from server.settings import ServerSettings
from server.speculation import require
from server.stalled_clients import build_protocol

EXIT_USAGE = 2
# Clients that connect at the same instant; the kernel may lower it.
BACKLOG = 1024
EXIT_ENGINE = 4
EXIT_INTERRUPTED = 130
LOG = logging.getLogger("coli_ab.server")


class DrainingServer(uvicorn.Server):
    """Tells the queue at the first signal that the server is going, so that only what runs holds it up.

    Unlike its base it does not raise the signal again at the end: to be told to end is no failure.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.interrupted = False
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals that ask to end while the block runs."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down."""
        self.interrupted = self.interrupted or sig == signal.SIGINT
        self._service.admission.drain()
        super().handle_exit(sig, frame)


def main(arguments: Sequence[str] | None = None, program: str = "coli-ab serve") -> int:
    """Run the server until it is told to end; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        settings = read_options(sys.argv[1:] if arguments is None else arguments, os.environ, program)
        if settings.audit_rate > 0:
            check_writable(settings.audit_dir)
        plan = plan_start(settings, os.environ)
        if settings.require_mtp:
            require(plan.decision)
        print(f"{program}: {plan.decision.sentence}", flush=True)
        LOG.info("%s", plan.decision.sentence)
        with private_model_directory(plan.model_dir) as private_dir:
            return asyncio.run(serve(settings, plan, private_dir))
    except ColiAbError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return EXIT_USAGE


async def serve(settings: ServerSettings, plan: Plan, private_dir: Path) -> int:
    """Serve until told to end, or until the engine cannot be started at all."""
    service = build_service(
        settings,
        model_dir=plan.model_dir,
        decision=plan.decision,
        command=command_for(plan, settings, private_dir),
        engine_digest=plan.binding.fingerprint().digest,
        created=int(time.time()),
        check=lambda depth: check_again(settings, os.environ, depth),
    )
    listener = bind(settings)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"listening on http://{shown}:{port}", flush=True)
    config = uvicorn.Config(
        build_app(service),
        http=build_protocol(settings.send_timeout_s),
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        ws="none",
    )
    server = DrainingServer(config, service)
    watch = asyncio.create_task(_end_when_failed(server, service))
    try:
        await server.serve(sockets=[listener])
    finally:
        watch.cancel()
    if service.supervisor.failed.is_set():
        return EXIT_ENGINE
    return EXIT_INTERRUPTED if server.interrupted else 0


def bind(settings: ServerSettings) -> socket.socket:
    """Return a socket to listen on. Raises ColiAbError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is named; with it, every answer waits
    # 40 ms for the client's acknowledgement of the headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host.strip("[]"), settings.port))
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        raise ColiAbError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error


async def _end_when_failed(server: uvicorn.Server, service: Service) -> None:
    await service.supervisor.failed.wait()
    LOG.error("the engine cannot be started: %s", service.supervisor.last_failure)
    server.should_exit = True


if __name__ == "__main__":
    raise SystemExit(main())
