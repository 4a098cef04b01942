"""The numbers of an answer: OpenAI's usage object and llama.cpp's timings.

Prediction details are null for more than one choice: a sum over answers would not say which of them was
sped up.
"""

from collections.abc import Sequence

from server.job import ChoiceCounts, Ended

Number = float | int | None


def usage_object(ended: Sequence[Ended]) -> dict[str, object]:
    """Return the usage of an answer; a value that the engine does not report is null."""
    counts = [one.counts for one in ended]
    prompt_tokens = max((one.prompt_tokens for one in counts), default=0)
    completion_tokens = sum(one.completion_tokens for one in counts)
    single = counts[0] if len(counts) == 1 else None
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts[0].cached_tokens if counts else None},
        "completion_tokens_details": {
            "reasoning_tokens": sum(one.reasoning_tokens for one in counts),
            "accepted_prediction_tokens": single.accepted_tokens if single else None,
            "rejected_prediction_tokens": single.rejected_tokens if single else None,
        },
    }


def timings_object(ended: Ended) -> dict[str, Number]:
    """Return the timings of one choice.

    ``prompt_n`` counts the prompt tokens that were computed, ``cache_n`` the ones that were reused.
    ``predicted_ms`` runs from the first token to the last, so ``predicted_per_second`` divides by the
    tokens after the first.
    """
    counts, times = ended.counts, ended.timings
    prefill = _prefill(counts)
    return {
        "cache_n": counts.cached_tokens,
        "prompt_n": prefill,
        "prompt_ms": times.prompt_ms,
        "prompt_per_token_ms": _divide(times.prompt_ms, prefill),
        "prompt_per_second": _rate(prefill, times.prompt_ms),
        "predicted_n": counts.completion_tokens,
        "predicted_ms": times.predicted_ms,
        "predicted_per_token_ms": _divide(times.predicted_ms, times.timed_tokens),
        "predicted_per_second": _rate(times.timed_tokens, times.predicted_ms),
        "draft_n": counts.drafted_tokens,
        "draft_n_accepted": counts.accepted_tokens,
    }


def _prefill(counts: ChoiceCounts) -> int | None:
    return None if counts.cached_tokens is None else counts.prompt_tokens - counts.cached_tokens


def _divide(value: float | None, by: int | None) -> float | None:
    return None if value is None or by is None or by < 1 else round(value / by, 6)


def _rate(count: int | None, ms: float | None) -> float | None:
    return None if count is None or count < 1 or not ms else round(1000 * count / ms, 3)
