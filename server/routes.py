"""The endpoints: one small function each, over the parts of a Service."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from server.answer_format import AnswerFormat
from server.api_errors import ApiError, invalid, not_found
from server.chat_format import ChatFormat
from server.completion_format import CompletionFormat
from server.job import Job
from server.openapi import build_openapi
from server.request_bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    SamplingBody,
    TokenizeBody,
    parse_body,
)
from server.service import Service
from server.streaming import StreamedAnswer, WholeAnswer

# Larger bodies are read and counted in a thread: 16 KiB take about 10 ms, in which nothing else would run.
THREAD_BYTES = 1 << 14
Handler = Callable[[Request], Awaitable[Response]]


def build_routes(service: Service) -> list[Route]:
    """Return all routes of a server."""
    posts: dict[str, Callable[[Service, bytes], Response]] = {
        "/v1/chat/completions": chat_completions,
        "/v1/completions": completions,
        "/tokenize": tokenize,
        "/detokenize": detokenize,
    }
    gets: dict[str, Callable[[Service, Request], Response]] = {
        "/v1/models": list_models,
        "/v1/models/{model:path}": get_model,
        "/health": health,
        "/metrics": metrics,
        "/profile": profile,
        "/openapi.json": openapi,
    }
    return [
        *(Route(path, _post(service, handle), methods=["POST"]) for path, handle in posts.items()),
        *(Route(path, _get(service, handle), methods=["GET"]) for path, handle in gets.items()),
    ]


def chat_completions(service: Service, raw: bytes) -> Response:
    """Answer a conversation."""
    body = parse_body(ChatBody, raw)
    return _answer(service, body, service.builder.chat_job(body), ChatFormat)


def completions(service: Service, raw: bytes) -> Response:
    """Continue an exact prompt."""
    body = parse_body(CompletionBody, raw)
    return _answer(service, body, service.builder.completion_job(body), CompletionFormat)


def tokenize(service: Service, raw: bytes) -> Response:
    """Return the token ids of a text or of a conversation."""
    body = parse_body(TokenizeBody, raw)
    builder = service.builder
    builder.check_model(body.model)
    given = [one for one in (body.content, body.prompt, body.messages) if one is not None]
    if len(given) != 1:
        raise invalid("give exactly one of content, prompt and messages", param="content")
    if body.messages is not None:
        ids = builder.chat_prompt(body.messages, body.tools or [], enable_thinking=False).ids
    else:
        text = body.content if body.content is not None else body.prompt or ""
        builder.check_length(text, param="prompt" if body.content is None else "content")
        special = body.parse_special is not False
        ids = builder.tokens.encode(text) if special else builder.tokens.encode_text(text)
    tokens: list[Any] = list(ids)
    if body.with_pieces:
        tokens = [{"id": one, "piece": _piece(builder.tokens.token_bytes(one))} for one in ids]
    return JSONResponse({"tokens": tokens, "count": len(ids), "max_model_len": builder.context_tokens})


def detokenize(service: Service, raw: bytes) -> Response:
    """Return the text of token ids, under llama.cpp's name and under vLLM's."""
    body = parse_body(DetokenizeBody, raw)
    service.builder.check_model(body.model)
    service.builder.check_ids(body.tokens, param="tokens")
    text = service.builder.tokens.decode(body.tokens).decode("utf-8", "replace")
    return JSONResponse({"content": text, "prompt": text})


def list_models(service: Service, _request: Request) -> Response:
    """List the one model."""
    return JSONResponse({"object": "list", "data": [_model(service)]})


def get_model(service: Service, request: Request) -> Response:
    """Describe the model."""
    name = request.path_params["model"]
    if name != service.builder.model_id:
        raise not_found(f"the model {name!r} is not served here", code="model_not_found", param="model")
    return JSONResponse(_model(service))


def health(service: Service, _request: Request) -> Response:
    """Say how the server is; anything but 200 means that it takes no requests now."""
    return JSONResponse(service.health(), status_code=200 if service.status() == "ok" else 503)


def metrics(service: Service, _request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def profile(service: Service, _request: Request) -> Response:
    """Return the last turns."""
    return JSONResponse({"turns": service.profile.turns()})


def openapi(service: Service, _request: Request) -> Response:
    """Describe the interface."""
    return JSONResponse(
        build_openapi(service.builder.model_id, authorised=service.settings.api_key is not None)
    )


def _answer(service: Service, body: SamplingBody, job: Job, form: type[AnswerFormat]) -> Response:
    written = form(
        job,
        service.builder.tokens,
        model=service.builder.model_id,
        fingerprint=service.fingerprint,
        created=int(time.time()),
        include_usage=body.include_usage and bool(body.stream),
    )
    kind = StreamedAnswer if body.stream else WholeAnswer
    return kind(
        service.generation.run(job),
        written,
        timeout_s=service.settings.request_timeout_s,
        on_error=service.metrics.count_error,
    )


def _post(service: Service, handle: Callable[[Service, bytes], Response]) -> Handler:
    async def endpoint(request: Request) -> Response:
        try:
            raw = await read_body(request, service.settings.max_body_bytes)
        except ClientDisconnect:
            return Response(status_code=400)
        try:
            if len(raw) > THREAD_BYTES:
                return await run_in_threadpool(handle, service, raw)
            return handle(service, raw)
        except ApiError as error:
            service.metrics.count_error(error)
            return error.response()

    return endpoint


def _get(service: Service, handle: Callable[[Service, Request], Response]) -> Handler:
    async def endpoint(request: Request) -> Response:
        return handle(service, request)

    return endpoint


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body of a request. Raises ApiError as soon as it is too large."""
    too_large = ApiError(413, f"the body is larger than {limit_bytes} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.builder.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "coli-ab",
        "max_model_len": service.builder.context_tokens,
    }


def _piece(token: bytes) -> str | list[int]:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return list(token)
