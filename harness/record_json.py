"""JSON text of the frozen dataclasses that a run directory holds, and back again."""

import base64
import binascii
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from engine_bindings.errors import RunDirectoryError, UsageError

T = TypeVar("T")


def bytes_to_json(data: bytes) -> str | dict[str, str]:
    """Return ``data`` as a string when it is valid UTF-8, else as ``{"base64": ...}``.

    An answer cut at its cap may end inside a character, so text alone cannot hold it.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def bytes_from_json(value: object) -> object:
    """Undo :func:`bytes_to_json`; any other value is passed on for the type check to refuse."""
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, dict) and set(value) == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"not base64: {error}") from error
    return value


Payload = Annotated[bytes, BeforeValidator(bytes_from_json), PlainSerializer(bytes_to_json, when_used="json")]
"""Bytes that the JSON form keeps readable where they are text."""


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    # Building an adapter takes milliseconds, and a run directory holds thousands of records.
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return ``value``, a dataclass, as JSON, its fields in order: equal values give equal text.

    Raises:
        UsageError: a text in it is not UTF-8, as the name of a file may be.
    """
    try:
        return _adapter(type(value)).dump_json(value, indent=indent).decode("utf-8")
    except PydanticSerializationError as error:
        raise UsageError(
            f"a {type(value).__name__} cannot be kept: {error}",
            hint="the path of the engine, the model or the run is not UTF-8: rename it",
        ) from error


def to_dict(value: object) -> dict[str, Any]:
    """Return ``value``, a dataclass, as the plain data that its JSON stands for."""
    data: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json")
    return data


def from_json(kind: type[T], text: str | bytes, *, place: str = "") -> T:
    """Read a value of ``kind`` from ``text``.

    Args:
        kind: the dataclass to build.
        text: one JSON value.
        place: where the text stands, for the error message.

    Raises:
        RunDirectoryError: the text is not JSON or does not fit ``kind``.
    """
    try:
        value: T = _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the value"
        message = f"{place or 'JSON'}: not a {kind.__name__}: {where}: {first['msg']}"
        raise RunDirectoryError(
            message, hint="the file was cut short, edited, or written by another version"
        ) from error
    return value
