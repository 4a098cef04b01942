from dataclasses import replace

import pytest

from engine_bindings.wire.mux_extension import Alternative, Options, TokenDetail
from server.audit import flush_request, is_near_tie, near_tie_gap, replay_request
from server.engine_turn import Token, TurnRequest

REQUEST = TurnRequest(
    prompt=b"5 6 7", max_tokens=9, temperature=0.0, top_p=1.0, slot=1, grammar=b"g",
    options=Options(detail=True, payload="ids", constrain=True),
)  # fmt: skip


def token(token_id: int, *others: tuple[int, float]) -> Token:
    alternatives = tuple(Alternative(*other) for other in others)
    return Token(b"x", 0, TokenDetail(1, token_id, "p", -0.5, alternatives))


def test_a_replay_differs_in_depth_only() -> None:
    replay = replay_request(REQUEST, slot=0)
    assert replay.options is not None
    assert (replay.options.depth, replay.options.constrain, replay.slot) == (0, True, 0)
    assert (replay.prompt, replay.max_tokens, replay.grammar) == (b"5 6 7", 9, b"g")


@pytest.mark.parametrize(("prompt", "flush"), [(b"5 6 7", b"0"), (b"0 1", b"1"), (b"0", b"1"), (b"1", b"0")])
def test_a_flush_shares_no_beginning(prompt: bytes, flush: bytes) -> None:
    request = flush_request(replace(REQUEST, prompt=prompt))
    assert (request.prompt, request.max_tokens) == (flush, 1)


@pytest.mark.parametrize(
    ("ids", "gap"),
    [((1, 2), None), ((1, 3), 0.25), ((1, 4), None), ((1,), None), ((1, 2, 3), None)],
)
def test_the_gap_at_the_first_difference(ids: tuple[int, ...], gap: float | None) -> None:
    replayed = [token(1), token(2, (2, -0.5), (3, -0.75))]
    assert near_tie_gap(ids, replayed) == gap


@pytest.mark.parametrize(
    ("gap", "excused"),
    [(0.0, True), (0.0001, True), (-0.25 + 0.250101, True), (0.000102, True), (0.000103, False),
     (-0.000002, True), (-0.000003, False), (-0.5, False)],
)  # fmt: skip
def test_only_a_small_margin_that_is_not_negative_is_a_near_tie(gap: float, excused: bool) -> None:
    assert is_near_tie(gap, constrained=False) is excused
    assert not is_near_tie(gap, constrained=True)
