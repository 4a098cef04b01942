"""Which tokens end an answer on each path."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine_bindings.errors import CheckpointError

END_OF_TEXT = "<|endoftext|>"


class Specials(Protocol):
    """What the stop set asks of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the added tokens that are marked special."""
        ...

    def id_of(self, text: str) -> int | None:
        """Return the id of a token's text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSet:
    """Stop tokens in the order that the engine shows them.

    ``from_tokenizer`` counts those that only the tokenizer names, ``filtered`` those that serve mode left
    out.
    """

    ids: tuple[int, ...]
    from_tokenizer: int = 0
    filtered: int = 0


def read_stops(model_dir: Path, tokenizer: Specials) -> StopSet:
    """Return every stop token: both config files' eos_token_id, the end of text, all special tokens."""
    named = [*_read_eos(model_dir / "config.json"), *_read_eos(model_dir / "generation_config.json")]
    end = tokenizer.id_of(END_OF_TEXT)
    configured = list(dict.fromkeys([*named, *([] if end is None else [end])]))
    others = sorted(tokenizer.special_ids - set(configured))
    return StopSet(ids=(*configured, *others), from_tokenizer=len(others))


def keep_end_of_text(stops: StopSet, tokenizer: Specials) -> StopSet:
    """Return serve mode's stop set: only the end of text, so that tool-call markup does not end an answer.

    A tokenizer without an end-of-text token keeps all of them.
    """
    end = tokenizer.id_of(END_OF_TEXT)
    if end is None:
        return stops
    return StopSet(ids=(end,), filtered=len(stops.ids) - 1)


def _read_eos(path: Path) -> list[int]:
    if not path.is_file():
        return []
    try:
        value = json.loads(path.read_bytes()).get("eos_token_id")
        ids = [] if value is None else [int(i) for i in (value if isinstance(value, list) else [value])]
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: eos_token_id cannot be read: {error}") from error
    return ids
