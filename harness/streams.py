"""Whether a stream holds the tokens that its engine made, also on a path that shows no token boundaries."""

from collections.abc import Sequence
from itertools import accumulate

from harness.transcript import TurnRecord


def describe_incomplete(
    label: str, turn: TurnRecord, whole: TurnRecord, lengths: Sequence[int] | None
) -> str:
    """Say how a turn's stream is not what was counted; empty where nothing speaks against it.

    Args:
        label: of the turn's arm.
        turn: whose stream is looked at.
        whole: the same turn of another arm, whose text differs.
        lengths: bytes of each token of ``whole``, None when they are not known.
    """
    emitted = turn.emitted_tokens
    if turn.token_lengths is not None:
        sent = len(turn.token_lengths)
        return "" if emitted in (None, sent) else f"{label} sent {sent} tokens and counted {emitted}"
    if lengths is None or not lengths or emitted != whole.emitted_tokens or turn.finish != whole.finish:
        return ""
    if len(turn.text) >= len(whole.text) or sum(lengths) != len(whole.text):
        return ""
    tokens = [whole.text[end - size : end] for end, size in zip(accumulate(lengths), lengths, strict=True)]
    if not is_part_of(turn.text, tokens):
        return ""
    missing = len(whole.text) - len(turn.text)
    return f"{label} counted {emitted} tokens and sent them without {missing} bytes of whole tokens"


def is_part_of(text: bytes, tokens: Sequence[bytes]) -> bool:
    """Say whether ``text`` is what is left of ``tokens`` when some of them are left out.

    >>> is_part_of(b"ad", [b"a", b"bc", b"d"])
    True
    """
    reached = {0}
    for token in tokens:
        reached |= {start + len(token) for start in reached if text.startswith(token, start)}
    return len(text) in reached
