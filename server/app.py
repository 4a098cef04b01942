"""The ASGI application: routes, errors as OpenAI's error object, and the key."""

import hmac
import http
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api_errors import ApiError, internal_error
from server.routes import build_routes
from server.service import Service, running

LOG = logging.getLogger("coli_ab.server")
# Anybody may ask whether the server is alive; a load balancer has no key.
OPEN_PATHS = frozenset({"/health"})
CODES = {404: "not_found", 405: "method_not_allowed"}


def build_app(service: Service) -> Starlette:
    """Return the application of a service; its lifespan runs the engine."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with running(service):
            yield

    key = service.settings.api_key
    return Starlette(
        routes=build_routes(service),
        lifespan=lifespan,
        middleware=[Middleware(RequireKey, key=key)] if key is not None else [],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: unexpected_error},
    )


class RequireKey:
    """Lets only requests with the key through. The comparison takes the same time whatever was sent."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            sent = Headers(scope=scope).get("authorization", "").encode()
            if not hmac.compare_digest(sent, self._expected):
                error = ApiError(
                    401,
                    "a valid key is needed: Authorization: Bearer KEY",
                    type="authentication_error",
                    code="invalid_api_key",
                )
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def api_error(_request: Request, error: Exception) -> Response:
    """Answer with the error that was raised."""
    assert isinstance(error, ApiError)  # noqa: S101 - registered for this class only
    return error.response()


async def http_error(request: Request, error: Exception) -> Response:
    """Answer what the router refuses, such as 404 and 405, with the error object too."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class only
    phrase = http.HTTPStatus(error.status_code).phrase
    message = f"{phrase}: {request.method} {request.url.path}"
    response = ApiError(
        error.status_code, message, code=CODES.get(error.status_code, "http_error")
    ).response()
    response.headers.update(error.headers or {})
    return response


async def unexpected_error(_request: Request, _error: Exception) -> Response:
    """Answer a fault of this server without its details; the log has them."""
    return internal_error().response()
