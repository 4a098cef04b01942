"""The numbers of a request that both protocols share: what they may be and how they are written."""

import math
import re

MAX_TOKENS = 2**31 - 1
MAX_REQUEST_ID = 2**64 - 1
_FLOAT = re.compile(rb"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")


def sampling_fault(*, max_tokens: int, temperature: float, top_p: float) -> str | None:
    """Say what is wrong, or None: max_tokens from 1, temperature from 0 to 2, top_p above 0 and up to 1."""
    if not 1 <= max_tokens <= MAX_TOKENS:
        return f"max_tokens {max_tokens} is not between 1 and {MAX_TOKENS}"
    if not (math.isfinite(temperature) and 0 <= temperature <= 2):
        return f"temperature {temperature:g} is not between 0 and 2"
    if not (math.isfinite(top_p) and 0 < top_p <= 1):
        return f"top_p {top_p:g} is not above 0 and up to 1"
    return None


def format_sampling(*, max_tokens: int, temperature: float, top_p: float) -> str:
    """Write the three fields as both headers hold them."""
    return f"{max_tokens} {temperature:.8g} {top_p:.8g}"


def parse_float(field: bytes) -> float:
    """Read a float as C does, without its names for infinity and not-a-number; raises ValueError."""
    if _FLOAT.fullmatch(field) is None:
        raise ValueError(f"not a number: {field[:40]!r}")
    return float(field)
