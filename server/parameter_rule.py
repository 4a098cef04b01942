"""The one rule for parameters that this server does not use.

A parameter that is listed as IGNORED is accepted with any value: it cannot change the answer. One that is
listed as NEUTRAL is accepted at a value that asks for nothing, and otherwise refused with code
`unsupported`. Everything else that an endpoint does not know is refused with code `unknown_parameter`.
"""

from collections.abc import Mapping
from typing import Any

from server.api_errors import ApiError, unsupported

IGNORED = frozenset(
    {
        "cache_prompt", "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "user", "verbosity",
    }
)  # fmt: skip

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "suffix": (None, ""),
    "top_k": (None, 0, -1),
    "web_search_options": (None,),
}


def drop_unused(body: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the parameters that the endpoint knows; raise ApiError for the first that the rule refuses."""
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name in known:
            kept[name] = value
        elif name in NEUTRAL:
            _check_neutral(name, value)
        elif name not in IGNORED:
            raise ApiError(400, f"unknown parameter {name!r}", param=name, code="unknown_parameter")
    return kept


def _check_neutral(name: str, value: Any) -> None:
    # 0 == False, so the type is compared too, except between integers and floats.
    for neutral in NEUTRAL[name]:
        if value == neutral and isinstance(value, bool) == isinstance(neutral, bool):
            return
    allowed = ", ".join(repr(neutral) for neutral in NEUTRAL[name] if neutral is not None)
    raise unsupported(f"{name}", f"leave it out{f' or send {allowed}' if allowed else ''}", param=name)
