"""Opens a session with llama.cpp's server: one that the cell starts for itself, or one that runs already."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from engine_bindings.errors import UsageError
from engine_bindings.llamacpp import CHAT, MODEL_MARK
from engine_bindings.model_directory import private_model_directory
from harness.drivers.base import EngineSession
from harness.drivers.http_session import HttpSession
from harness.drivers.http_transport import HttpCall, HttpxTransport
from harness.drivers.llamacpp_api import LlamaChatApi, LlamaCompletionApi, Parameters
from harness.drivers.llamacpp_counters import LlamaCounters
from harness.drivers.opening import Opening
from harness.drivers.server_process import ServerProcess, choose_port

READY = HttpCall(method="GET", path="/health")
START_HINTS = {
    "doesn't contain MTP layers": "the model has no MTP head: --set SPECULATION=ngram drafts without one",
    "failed to load model": "a model is damaged or of a kind unknown here: its last stderr lines name it",
}


@contextlib.contextmanager
def open_llamacpp(opening: Opening) -> Iterator[EngineSession]:
    """Open a session; leaving the block kills what still runs of a server of ours.

    Raises:
        EngineStartError: the system cannot run the program.
    """
    if not opening.launch.argv:
        with _open_session(opening, str(opening.launch.url), None) as session:
            yield session
        return
    assert opening.model_dir is not None, "a server is started on a model"  # noqa: S101
    with private_model_directory(opening.model_dir, opening.guard) as private:
        launch = choose_port(opening.launch)
        model = str(private / opening.model_dir.name)
        launch = replace(launch, argv=tuple(word.replace(MODEL_MARK, model) for word in launch.argv))
        host = ServerProcess.start(
            launch, inherited=opening.inherited, directory=private, log=opening.log, guard=opening.guard
        )
        try:
            with _open_session(opening, str(launch.url), host) as session:
                yield session
        finally:
            host.kill()


@contextlib.contextmanager
def _open_session(opening: Opening, url: str, host: ServerProcess | None) -> Iterator[EngineSession]:
    try:
        parameters = Parameters(opening.launch.pins, opening.grammar)
    except ValueError as error:
        raise UsageError(f"a setting is no number: {error}") from error
    transport = HttpxTransport(url)
    api = LlamaChatApi(parameters) if opening.launch.api == CHAT else LlamaCompletionApi(parameters)
    session = HttpSession(
        transport,
        api,
        opening.log,
        opening.timeouts,
        on_output=opening.on_output,
        ready=READY,
        counted=host is not None,
        counters=LlamaCounters,
        host=host,
        start_hints=START_HINTS,
    )
    try:
        yield session
    finally:
        session.close()
