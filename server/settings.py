"""What the server is asked to do: the options of its command line as one frozen value."""

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything that is fixed when the server starts.

    Attributes:
        engine: text of ``--engine``.
        model_dir: the model; None for the one that comes with the engine.
        model_id: what ``model`` must be in requests; None for the directory's name.
        certificate: run directory or file; None for none.
        key_file: key that certificates are sealed with; None for the user's own.
        kv_slots: requests that the engine works on at once.
        depth: draft depth; None for as deep as certified.
        require_mtp: refuse to start when MTP would be off.
        audit_rate: share of the finished greedy answers that is replayed, 0 to 1.
        audit_dir: where differences are kept.
        context_tokens: context of a slot.
        queue_limit: requests that may wait.
        request_timeout_s: longest time for a request, waiting included.
        start_timeout_s: longest time for the engine to get ready.
        first_output_timeout_s: longest silence of the engine before the first token of an answer.
        progress_timeout_s: longest silence of the engine after that.
        send_timeout_s: longest time that a client may leave an answer unread.
        max_body_bytes: largest request body; the engine takes prompts of up to 16 MiB.
    """

    engine: str = "reference"
    model_dir: Path | None = None
    model_id: str | None = None
    certificate: Path | None = None
    key_file: Path | None = None
    kv_slots: int = 1
    depth: int | None = None
    require_mtp: bool = False
    audit_rate: float = 0.0
    audit_dir: Path = Path("audit")
    context_tokens: int = 4096
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    queue_limit: int = 64
    request_timeout_s: float = 600.0
    start_timeout_s: float = 600.0
    first_output_timeout_s: float = 1800.0
    progress_timeout_s: float = 120.0
    send_timeout_s: float = 60.0
    max_body_bytes: int = 32 * MIB
