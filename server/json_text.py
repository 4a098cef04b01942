"""Reading JSON that a client or a model wrote; what is no JSON, no text or too deep is refused plainly."""

import json
from typing import Any

# An array of arrays of arrays ... would overflow the stack of the reader or of the template.
MAX_JSON_DEPTH = 64


class JsonTextError(ValueError):
    """The text cannot be used; ``place`` is the value at fault, None for the whole."""

    def __init__(self, message: str, place: tuple[str, ...] | None = None) -> None:
        super().__init__(message)
        self.place = place


def parse_json(raw: str | bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises JsonTextError, also for half a surrogate pair, which is no text, and for more than MAX_JSON_DEPTH
    levels.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
    except JsonTextError:
        raise
    except UnicodeDecodeError as error:
        raise JsonTextError(f"it is not UTF-8: byte {error.start} is wrong") from error
    except json.JSONDecodeError as error:
        raise JsonTextError(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise JsonTextError(_too_deep()) from error
    except ValueError as error:
        raise JsonTextError("a number has too many digits") from error
    if _is_deeper(value, MAX_JSON_DEPTH):
        raise JsonTextError(_too_deep())
    # Text in UTF-8 holds no surrogates, so only an escape can make one.
    if "\\ud" in text or "\\uD" in text or isinstance(raw, str):
        _check_surrogates(value, ())
    return value


def _refuse_constant(name: str) -> float:
    raise JsonTextError(f"{name} is not a JSON value")


def _too_deep() -> str:
    return f"it is nested more than {MAX_JSON_DEPTH} levels deep"


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        return levels == 0 or any(_is_deeper(item, levels - 1) for item in value.values())
    if isinstance(value, list):
        return levels == 0 or any(_is_deeper(item, levels - 1) for item in value)
    return False


def _check_surrogates(value: Any, place: tuple[str, ...]) -> None:
    if isinstance(value, str):
        _check_text(value, place)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, place)
            _check_surrogates(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_surrogates(item, (*place, str(index)))


def _check_text(text: str, place: tuple[str, ...]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise JsonTextError("it holds half a surrogate pair, which is no text", place) from error
