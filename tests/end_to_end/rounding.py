"""Finds requests that kernels which round by the batch answer otherwise, whatever checkpoint is shipped."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest

from engine_bindings.chat_template import Message, render_messages
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.sampling import Margin
from engine_bindings.reference.serve_mode import ServeMode
from harness.degenerate import find_loop
from harness.plan import DEFAULT_TIE_GAP
from tests.engine_bindings.reference.engine_sessions import ServeSession

KERNELS = "int8-batch"
SETTINGS = {"REF_KERNELS": KERNELS, "COLI_LOGIT_GAP": "1", "COLI_SERVE_ALL_STOPS": "1"}
MAX_TOKENS = 120
# A block at the cap is cut short, so a difference that close to it need not stay put.
TOKENS_BEFORE_CAP = 20

PLACES = (
    *("harbour", "market", "castle", "forest", "mountain", "river", "village", "island", "garden", "bridge"),
    *("school", "kitchen", "station", "library", "farm", "desert", "lake", "tower", "shop", "valley"),
)
REQUESTS = ("Describe the {} in detail.", "Tell me a story about the {}.", "Tell me about the {}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedRequest:
    """A request, and the index of the first token that drafts change in its answer."""

    text: str
    token_index: int


def find_rounded_requests(count: int) -> tuple[RoundedRequest, ...]:
    """Return the first requests whose answers of draft depth 0 and 3 part well before either one ends."""
    found = tuple(islice(_try_requests(), count))
    assert len(found) == count, "answers of this checkpoint hardly meet a near-tie: add requests to try"
    return found


def _try_requests() -> Iterator[RoundedRequest]:
    for request in REQUESTS:
        for place in PLACES:
            text = request.format(place)
            index = _find_difference(text)
            if index is not None:
                yield RoundedRequest(text=text, token_index=index)


def _find_difference(text: str) -> int | None:
    prompt = render_messages([Message(role="user", text=text.encode())])
    (off, choices_off), (on, choices_on) = _answer(prompt, "0"), _answer(prompt, "3")
    if find_loop(off) or find_loop(on):
        return None  # an arm of which the answers loop is void
    for index, (a, b) in enumerate(zip(choices_off, choices_on, strict=False)):
        if a.top1_id != b.top1_id:
            # One of three that are close may be second in one arm alone; two that swap are a plain near-tie.
            swapped = (a.top1_id, a.top2_id) == (b.top2_id, b.top1_id)
            strict = min(a.top1_logit - a.top2_logit, b.top1_logit - b.top2_logit) > 2 * DEFAULT_TIE_GAP
            return index if swapped and strict and index < MAX_TOKENS - TOKENS_BEFORE_CAP else None
    return None


def _answer(prompt: bytes, depth: str) -> tuple[bytes, list[Margin]]:
    """Return the answer and the two best candidates of every choice."""
    choices: list[Margin] = []

    def script(session: ServeSession) -> Iterator[bytes | None]:
        yield session.submit(1, prompt, max_tokens=MAX_TOKENS)
        yield from session.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServeMode, "on_margin", lambda _mode, _turn, margin: choices.append(margin))
        session = ServeSession(script, rules=Rules(), DRAFT=depth, **SETTINGS)
    return session.text(1), choices
