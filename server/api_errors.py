"""Every failure that a client can see, as one exception that carries OpenAI's error object."""

import math

from starlette.responses import JSONResponse

INVALID_REQUEST = "invalid_request_error"
MAX_RETRY_AFTER_S = 60


class ApiError(Exception):
    """A failure with its HTTP status.

    Attributes:
        status: HTTP status.
        message: what is wrong and what to do about it.
        type: OpenAI's family of the error.
        code: machine-readable name, stable across releases.
        param: the parameter at fault, dotted when nested.
        retry_after_s: seconds after which a retry makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        type: str = INVALID_REQUEST,  # noqa: A002 - the error object's own word
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, dict[str, str | None]]:
        """Return OpenAI's error object."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields}

    def response(self) -> JSONResponse:
        """Return the HTTP answer."""
        return JSONResponse(self.body(), status_code=self.status, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(min(MAX_RETRY_AFTER_S, max(1, math.ceil(self.retry_after_s))))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return a 400 about a value in the request."""
    return ApiError(400, message, param=param, code=code)


def unsupported(feature: str, reason: str, *, param: str | None = None) -> ApiError:
    """Return the 400 for something this server knows and cannot do here."""
    return ApiError(400, f"{feature} is not supported: {reason}", param=param, code="unsupported")


def not_found(message: str, *, code: str, param: str | None = None) -> ApiError:
    """Return a 404."""
    return ApiError(404, message, code=code, param=param)


def context_exceeded(prompt: str, limit_tokens: int, *, param: str) -> ApiError:
    """Return the 400 for a prompt that leaves no room for an answer; ``prompt`` says how long it is."""
    message = (
        f"the context takes a prompt of at most {limit_tokens} tokens, this one has {prompt}; shorten it"
    )
    return ApiError(400, message, code="context_length_exceeded", param=param)


def queue_full(waiting: int, retry_after_s: float) -> ApiError:
    """Return the 429 of a full queue."""
    message = f"{waiting} requests are waiting already, which is the limit of the queue; try again later"
    return ApiError(
        429, message, type="rate_limit_error", code="queue_full", retry_after_s=max(1.0, retry_after_s)
    )


def unavailable(message: str, *, code: str = "engine_unavailable") -> ApiError:
    """Return the 503 for a server that cannot take requests now."""
    return ApiError(503, message, type="server_error", code=code, retry_after_s=5.0)


def engine_failed(message: str) -> ApiError:
    """Return the 500 for an engine that broke while it worked on the request."""
    return ApiError(500, f"the engine failed: {message}", type="engine_error", code="engine_error")


def timed_out(limit_s: float) -> ApiError:
    """Return the 504 for a request that took longer than the server allows."""
    message = f"the request took longer than {limit_s:g} s; the limit is the server's --request-timeout"
    return ApiError(504, message, type="timeout_error", code="request_timeout")


def internal_error() -> ApiError:
    """Return the 500 for a fault of this server; its details are in the log only."""
    return ApiError(500, "internal error of the server", type="server_error", code="internal_error")
