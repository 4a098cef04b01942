"""The one tree of errors that this project raises on purpose.

An error here means that something could not be measured or was asked for wrongly; findings about an engine
are values, never exceptions.
"""


class ColiAbError(Exception):
    """Base of every error raised on purpose.

    Attributes:
        code: kebab-case name of the kind, stable across releases; written into run records.
        message: what is wrong, naming the value and the place.
        hint: what to do about it; may be empty.
    """

    code = "coli-ab-error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(ColiAbError):
    """The request itself cannot be carried out: a wrong option, a missing file, an impossible value."""

    code = "usage"


class ScenarioError(UsageError):
    """A scenario file is not what the format asks for."""

    code = "scenario"


class CheckpointError(UsageError):
    """A model directory is missing, incomplete or of another shape than its config says."""

    code = "checkpoint"


class RunDirectoryError(UsageError):
    """A run directory cannot be read or written."""

    code = "run-directory"


class StorageError(ColiAbError):
    """A file of a run cannot be written: the disk is full, read-only or gone. The run cannot go on."""

    code = "storage"


class EngineError(ColiAbError):
    """The engine did not do what its protocol promises; the runner records it as that cell's failure."""

    code = "engine"


class EngineStartError(EngineError):
    """The engine could not be started or ended before it was ready."""

    code = "engine-start"


class EngineDiedError(EngineError):
    """The engine ended while a turn was running."""

    code = "engine-died"


class EngineRefusedError(EngineError):
    """The engine answered a well-formed request with an error."""

    code = "engine-refused"


class EngineGarbageError(EngineError):
    """The engine wrote bytes that its protocol does not allow."""

    code = "engine-garbage"


class EngineTimeoutError(EngineError):
    """A named limit on waiting ran out.

    Attributes:
        limit_name: the option that sets the limit, without dashes, for example ``progress-timeout``.
        limit_s: the limit in seconds.
    """

    code = "engine-timeout"

    def __init__(self, message: str, *, limit_name: str, limit_s: float, hint: str = "") -> None:
        remedy = f"raise it with --{limit_name} SECONDS if the engine is only slow"
        super().__init__(message, hint=hint or remedy)
        self.limit_name = limit_name
        self.limit_s = limit_s


class WrongProtocolError(EngineError):
    """The engine speaks another of its two stdio protocols than the arm needs.

    Attributes:
        expected: ``chat`` or ``serve``.
        seen: the protocol that the READY block proved.
        evidence: the line that proved it.
    """

    code = "wrong-protocol"

    def __init__(self, *, expected: str, seen: str, evidence: str) -> None:
        super().__init__(
            f"wrong protocol: the arm needs {expected} mode, the engine's READY block is that of {seen} mode"
            f" (it sent {evidence!r})",
            hint="SERVE=1 alone starts chat mode, SERVE=1 SERVE_BATCH=1 serve mode; check any wrapper",
        )
        self.expected = expected
        self.seen = seen
        self.evidence = evidence
