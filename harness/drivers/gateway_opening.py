"""Opens a session with the colibri engine's gateway, which a cell starts for itself."""

import contextlib
from collections.abc import Iterator

from harness.drivers.base import EngineSession
from harness.drivers.gateway_counters import GatewayCounters
from harness.drivers.http_api import ChatApi
from harness.drivers.http_opening import open_transport, read_parameters
from harness.drivers.http_session import HttpSession
from harness.drivers.left_files import list_left_files, read_files
from harness.drivers.opening import Opening, open_directory
from harness.drivers.server_process import OUTPUT_NAME, ServerProcess, choose_port


@contextlib.contextmanager
def open_gateway(opening: Opening) -> Iterator[EngineSession]:
    """Start the gateway in a directory of its own; leaving the block kills it and the engine behind it.

    Raises:
        EngineStartError: the system cannot run the program.
    """
    launch = choose_port(opening.launch)
    settings = {pin.name: pin.value for pin in launch.pins if pin.name in launch.parameters}
    with open_directory(opening) as private:
        before = read_files(private)
        host = ServerProcess.start(
            launch, inherited=opening.inherited, directory=private, log=opening.log, guard=opening.guard
        )
        session = HttpSession(
            open_transport(launch, opening.inherited),
            ChatApi(read_parameters(settings, api=launch.api)),
            opening.log,
            opening.timeouts,
            on_output=opening.on_output,
            counted=True,
            counters=GatewayCounters,
            host=host,
        )
        try:
            yield session
        finally:
            session.close()
            host.kill()
            left = list_left_files(before, read_files(private))
            opening.on_left(tuple(file for file in left if file.name != OUTPUT_NAME))
