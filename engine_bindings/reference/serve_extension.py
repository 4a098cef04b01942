"""Serve mode's extension on the engine's side: options that wait for their request, TOKEN and SPEC lines."""

import re
from collections import OrderedDict
from collections.abc import Sequence

from engine_bindings.reference.generate import Pick, Request, Turn
from engine_bindings.reference.sampling import Sampling
from engine_bindings.wire.events import Submit
from engine_bindings.wire.mux_extension import (
    Alternative,
    OptionError,
    Options,
    Reason,
    Speculation,
    TokenDetail,
    parse_options,
)

MAX_WAITING = 4096  # a client that never submits must not fill the memory; the oldest options are forgotten
PLAIN = Options()
IDS = re.compile(rb"[0-9]{1,9}(?: [0-9]{1,9})*")
REASONS: dict[str | None, Reason] = {"stop": "stop", "length": "length"}


class WaitingOptions:
    """The OPTIONS of requests that were not submitted yet."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Options | None] = OrderedDict()

    def keep(self, request_id: int, options: Options | None) -> None:
        """Keep options for their request in place of older ones; None refuses it until new ones come."""
        self._waiting[request_id] = options
        self._waiting.move_to_end(request_id)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)

    def take(self, request_id: int) -> Options | None:
        """Return what a request is submitted with; None, again and again, while its options are refused."""
        options = self._waiting.get(request_id, PLAIN)
        if options is not None:
            self._waiting.pop(request_id, None)
        return options


def read_options(line: str) -> tuple[int, Options | None, str]:
    """Read an OPTIONS line: its request, and what it says, else None and the key that is not known.

    Raises ValueError when it names no request.
    """
    try:
        return (*parse_options(line), "")
    except OptionError as error:
        return error.request_id, None, error.key


def parse_ids(prompt: bytes, vocab_size: int) -> list[int]:
    """Read a prompt of token ids. Raises ValueError for anything but ids below ``vocab_size``."""
    if prompt and IDS.fullmatch(prompt) is None:
        raise ValueError("the prompt is not a list of token ids separated by single spaces")
    ids = [int(word) for word in prompt.split()]
    if ids and max(ids) >= vocab_size:
        raise ValueError(f"token id {max(ids)} is not below {vocab_size}")
    return ids


def build_request(submit: Submit, options: Options, tokens: Sequence[int], *, speculate: bool) -> Request:
    """Return the turn that a request asks for."""
    detailed = options.detail or options.logprobs > 0
    return Request(
        request_id=submit.request_id,
        slot=submit.slot,
        prompt=tuple(tokens),
        max_tokens=submit.max_tokens,
        sampling=Sampling(temperature=submit.temperature, top_p=submit.top_p),
        speculate=speculate,
        depth=options.depth,
        seed=options.seed,
        ignore_stops=options.ignore_eos,
        alternatives=options.logprobs if detailed else None,
    )


def describe_token(request_id: int, token: int, pick: Pick) -> bytes:
    """Return the TOKEN line of an emitted token."""
    others = tuple(Alternative(*other) for other in pick.score.alternatives)
    return TokenDetail(request_id, token, pick.origin, pick.score.logprob, others).to_line() + b"\n"


def describe_turn(turn: Turn) -> bytes:
    """Return the SPEC line of a turn that ended, nothing when its request wants no details."""
    if turn.request.alternatives is None:
        return b""
    line = Speculation(
        request_id=turn.request.request_id,
        drafted_tokens=turn.drafted - turn.forced_drafted,
        accepted_tokens=turn.accepted - turn.forced_accepted,
        forwards=turn.forwards,
        cached_tokens=turn.cached_tokens,
        reason=REASONS.get(turn.finish, "stopped"),
        forced_drafted_tokens=turn.forced_drafted,
        forced_accepted_tokens=turn.forced_accepted,
    )
    return line.to_line() + b"\n"
