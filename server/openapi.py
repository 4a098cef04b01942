"""The OpenAPI description, from the same models that check the requests."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.parameter_rule import IGNORED, NEUTRAL
from server.request_bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

Object = dict[str, Any]
REF = "#/components/schemas/{model}"
BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
SUMMARIES = {
    "/v1/chat/completions": "Answer a conversation",
    "/v1/completions": "Continue an exact prompt",
    "/tokenize": "Token ids of a text or of a conversation",
    "/detokenize": "Text of token ids",
    "/v1/models": "List the model",
    "/v1/models/{model}": "Describe the model",
    "/health": "State of server, engine, speculation and audit",
    "/metrics": "Metrics for Prometheus",
    "/profile": "The last turns with counts and times",
    "/openapi.json": "This description",
}
GENERATION = ("/v1/chat/completions", "/v1/completions")
FAILURES = {
    "400": "The request cannot be carried out",
    "401": "No valid key",
    "404": "No such model",
    "413": "The body is too large",
    "429": "The queue is full",
    "500": "The engine failed",
    "503": "The server takes no requests now",
    "504": "The request took too long",
}
ERROR_SCHEMA: Object = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def build_openapi(model_id: str, *, authorised: bool) -> Object:
    """Return the description of the server of one model; ``authorised`` adds the key."""
    schemas = _body_schemas(model_id)
    schemas["Error"] = ERROR_SCHEMA
    paths = {path: {"post": _operation(path, model_id, authorised)} for path in BODIES}
    paths |= {
        path: {"get": _operation(path, model_id, authorised)} for path in SUMMARIES if path not in BODIES
    }
    description: Object = {
        "openapi": "3.1.0",
        "info": {
            "title": "coli-ab reference server",
            "version": "1",
            "description": parameter_rule_text(),
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if authorised:
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"key": []}]
    return description


def parameter_rule_text() -> str:
    """Return the rule for parameters that the server does not use, as text."""
    return (
        f"Accepted and without effect: {', '.join(sorted(IGNORED))}. Accepted only at a neutral value:"
        f" {', '.join(sorted(NEUTRAL))}. Any other parameter that is not described is refused with 400."
    )


def _body_schemas(model_id: str) -> Object:
    models = sorted(set(BODIES.values()), key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=REF, by_alias=True
    )
    schemas: Object = definitions["$defs"]
    for model in models:
        schema = schemas[model.__name__]
        names = [model_id] if "model" in schema.get("required", ()) else [model_id, None]
        schema["properties"]["model"] = {"enum": names}
    for model in (ChatBody, CompletionBody):
        properties = schemas[model.__name__]["properties"]
        properties |= {name: {} for name in sorted(IGNORED) if name not in properties}
        properties |= {
            name: {"enum": list(values)} for name, values in NEUTRAL.items() if name not in properties
        }
    return schemas


def _operation(path: str, model_id: str, authorised: bool) -> Object:
    operation: Object = {
        "summary": SUMMARIES[path],
        "operationId": path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace(".", "_"),
        "responses": {"200": _success(path), **_failures(path, authorised)},
    }
    if path in BODIES:
        schema = {"$ref": REF.format(model=BODIES[path].__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if "{model}" in path:
        operation["parameters"] = [
            {
                "name": "model",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "enum": [model_id]},
            }
        ]
    return operation


def _success(path: str) -> Object:
    if path == "/metrics":
        return {"description": "Success", "content": {"text/plain": {"schema": {"type": "string"}}}}
    content: Object = {"application/json": {"schema": {"type": "object"}}}
    if path in GENERATION:
        event = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
        content["text/event-stream"] = {"schema": event}
    return {"description": "Success", "content": content}


def _failures(path: str, authorised: bool) -> Object:
    statuses = {"401"} if authorised and path != "/health" else set()
    if path in BODIES:
        statuses |= {"400", "404", "413"}
    if path in GENERATION:
        statuses |= {"429", "500", "503", "504"}
    if "{model}" in path:
        statuses.add("404")
    content = {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}
    failures = {one: {"description": FAILURES[one], "content": content} for one in sorted(statuses)}
    if path == "/health":
        failures["503"] = {
            "description": "Loading, restarting, failed or draining",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    return failures
